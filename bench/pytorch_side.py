"""PyTorch's side of compare_pytorch.py: its calls on flashomp's inputs, in both layouts of memory, and their rows."""

import contextlib
import ctypes
import gc
import pathlib
import re
import statistics
import time

SHAPE = re.compile(r"b(\d+)_h(\d+)(?:kv(\d+))?_n(\d+)(?:x(\d+))?_d(\d+)(?:v(\d+))?(?:_latent)?(_causal|_topleft)?(_varlen)?$")
LAYOUTS = ("bhnd", "bnhd")  # of the memory of PyTorch's tensors; the second is flashomp's
FEWEST_REPETITIONS = 5


class Pytorch:
    """PyTorch's kernels on the GPU that is first."""

    device, prefix = "cuda", "pytorch"

    def __init__(self):
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        self.torch, self.use = torch, sdpa_kernel
        self.backends = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
                         "math": SDPBackend.MATH, "efficient": SDPBackend.EFFICIENT_ATTENTION}
        self.label = f"PyTorch {torch.__version__}"
        self.where = f"{torch.cuda.get_device_name()} (device 0)"
        self.versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}

    def refusal(self, shape):
        """Why there is no call for a shape; None where there is one."""
        s = sizes(shape)
        if s["packed"]:
            return "scaled_dot_product_attention has no packed sequences"
        if s["causal"] and s["seqlen_q"] != s["seqlen_k"]:
            return "is_causal is top-left"
        return None

    def tensor(self, stored, layout):
        """[batch, heads, rows, depth] on the device, in memory as `layout` says, from [batch, rows, heads, depth]."""
        kind, extents, data = stored
        dtype = {"BF16": self.torch.bfloat16, "F16": self.torch.float16, "F32": self.torch.float32}[kind]
        ours = self.torch.frombuffer(data, dtype=dtype).reshape(extents).to(self.device, copy=True)  # not the file's pages
        moved = ours.transpose(1, 2)
        return moved.contiguous() if layout == "bhnd" else moved

    def calls(self, shape, inputs, kernel, layout):
        """Yields (direction, call): what is to be timed, on inputs that are there."""
        torch, s = self.torch, sizes(shape)
        q, k, v = (self.tensor(inputs[name], layout).detach().requires_grad_(True) for name in "qkv")
        dout = self.tensor(inputs["do"], layout)
        grouped = {"enable_gqa": True} if s["heads_q"] != s["heads_kv"] else {}

        def attention():
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=s["causal"], **grouped)

        with self.use(self.backends[kernel]):  # until the generator is closed: choosing takes time too
            with torch.no_grad():
                yield "forward", attention
            out = attention()
            yield "backward", lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)

    def synchronize(self):
        self.torch.cuda.synchronize()

    def peak(self, call):
        """Most memory above what there was before, in bytes."""
        self.synchronize()
        before = self.torch.cuda.memory_allocated()
        self.torch.cuda.reset_peak_memory_stats()
        call()
        self.synchronize()
        return self.torch.cuda.max_memory_allocated() - before

    def kernel_time(self, call):
        """Seconds that the kernels of a call ran, without gaps, copies and memsets."""
        profiler = self.torch.profiler
        with profiler.profile(activities=[profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
            call()
            self.synchronize()
        kernels = [event for event in profile.events() if not event.name.startswith(("Memcpy", "Memset"))
                   and event.device_type == self.torch.autograd.DeviceType.CUDA]
        return sum(event.time_range.elapsed_us() for event in kernels) * 1e-6

    def release(self):
        self.torch.cuda.empty_cache()

    def is_out_of_memory(self, error):
        return isinstance(error, self.torch.cuda.OutOfMemoryError)


class PytorchOnCpu(Pytorch):
    """PyTorch's kernels on this machine's cores."""

    device, prefix = "cpu", "pytorch-cpu"

    def __init__(self, threads):
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        torch.set_num_threads(threads)
        self.torch, self.use = torch, sdpa_kernel
        self.backends = {"flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}
        self.label = f"PyTorch {torch.__version__}"
        self.where = f"host ({threads} thread{'s' if threads > 1 else ''})"
        self.versions = {"torch": torch.__version__, "torch_cpu_capability": torch.backends.cpu.get_cpu_capability()}

    def synchronize(self):
        pass

    def peak(self, call):
        ctypes.CDLL(None).malloc_trim(0)  # what was freed and is still resident would be taken again unseen
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew
        before = resident("VmRSS")
        call()
        return max(0, resident("VmHWM") - before)

    def release(self):
        gc.collect()

    def is_out_of_memory(self, error):
        return "can't allocate memory" in str(error)


def resident(key):
    """Bytes of this process's pages."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))


def sizes(shape):
    words = SHAPE.match(shape).groups()
    batch, heads, heads_kv, length, length_k, depth, depth_v = (int(word) if word else None for word in words[:7])
    return {"batch": batch, "heads_q": heads, "heads_kv": heads_kv or heads, "seqlen_q": length,
            "seqlen_k": length_k or length, "head_dim": depth, "head_dim_v": depth_v or depth,
            "causal": words[7] is not None, "packed": words[8] is not None}


def error_of(why):
    return {"error_occurred": True, "error_message": why.strip().splitlines()[0][:200]}


def failed(shape, direction, implementation, why):
    return {"implementation": implementation, "direction": direction, "shape": shape} | error_of(why)


def alternating(calls, synchronize, repetitions, min_time, time_limit=float("inf")):
    """{name: wall-clock seconds of a synchronous call, the mean of each repetition} of {name: (call, context)}.

    The calls take turns within each repetition, and each turn begins with another one. context(), which makes a context
    manager, is entered before the clock starts. Where all repetitions would take longer than time_limit seconds there are
    fewer, but at least FEWEST_REPETITIONS.
    """
    def several(name, count):
        call, context = calls[name]
        with context():
            start = time.perf_counter()
            for _ in range(count):
                call()
                synchronize()
            return (time.perf_counter() - start) / count

    counts, total = {}, 0.0
    for name in calls:
        several(name, 1)
        took = several(name, 1)
        counts[name] = max(1, round(min_time / max(took, 1e-7) + 0.5))
        total += took * counts[name]
    if total * repetitions > time_limit:
        repetitions = max(min(FEWEST_REPETITIONS, repetitions), int(time_limit / total))
    times, names = {name: [] for name in calls}, list(calls)
    for number in range(repetitions):
        for name in names[number % len(names):] + names[:number % len(names)]:
            times[name].append(several(name, counts[name]))
    return times


def timed(call, synchronize, repetitions, min_time):
    """Wall-clock seconds of a synchronous call: the mean of each repetition."""
    return alternating({"": (call, contextlib.nullcontext)}, synchronize, repetitions, min_time)[""]


def row_of_times(times):
    """What a row says of the seconds of its repetitions: ms, the median among them."""
    median = statistics.median(times)
    return {"repetitions": len(times), "real_time": median * 1e3, "least_time": min(times) * 1e3,
            "most_time": max(times) * 1e3, "spread": (max(times) - min(times)) / median}


def rows_of_layout(pytorch, shape, inputs, kernel, layout, arguments):
    """One row for each direction, by one layout: times, or why there is none."""
    rows = []
    try:
        with contextlib.closing(pytorch.calls(shape, inputs, kernel, layout)) as calls:
            for direction, call in calls:
                peak = pytorch.peak(call)
                times = timed(call, pytorch.synchronize, arguments.repetitions, arguments.min_time)
                row = row_of_times(times) | {"peak_bytes": peak}
                if arguments.kernel_time:
                    kernels = [pytorch.kernel_time(call) * 1e3 for _ in times]
                    row |= {"kernel_time": statistics.median(kernels), "least_kernel_time": min(kernels),
                            "most_kernel_time": max(kernels)}
                rows.append(row)
    except RuntimeError as error:  # torch.cuda.OutOfMemoryError is one
        rows += [error_of("out of memory" if pytorch.is_out_of_memory(error) else str(error))] * (2 - len(rows))
    finally:
        pytorch.release()
    return rows


def best_of(layouts):
    """The row of the layout that is faster, with the kernel time of the one whose kernels are; both are in `layouts`."""
    there = {layout: row for layout, row in layouts.items() if "real_time" in row}
    if not there:
        return next(iter(layouts.values()))
    best = min(there, key=lambda layout: there[layout]["real_time"])
    row = there[best] | {"layout": best, "layouts": layouts}
    with_kernels = [layout for layout in there if "kernel_time" in there[layout]]
    if with_kernels:
        by_kernels = min(with_kernels, key=lambda layout: there[layout]["kernel_time"])
        row |= {key: there[by_kernels][key] for key in ("kernel_time", "least_kernel_time", "most_kernel_time")}
        row["kernel_layout"] = by_kernels
    return row


def pytorch_rows(pytorch, shape, inputs, kernel, arguments):
    """Rows of one kernel for one shape, each of the layout that is best for it."""
    name = f"{pytorch.prefix}-{kernel}"
    refusal = pytorch.refusal(shape) or (None if inputs is not None else "flashomp has no inputs of this shape")
    if refusal:
        rows = [error_of(refusal)] * 2
    else:
        by_layout = {layout: rows_of_layout(pytorch, shape, inputs, kernel, layout, arguments) for layout in LAYOUTS}
        rows = [best_of({layout: both[number] for layout, both in by_layout.items()}) for number in range(2)]
    return [{"implementation": name, "direction": direction, "shape": shape} | row |
            {"label": f"{pytorch.label} {kernel} on {pytorch.where}", "ran_on": pytorch.where,
             "on_device": float(pytorch.device == "cuda")} for direction, row in zip(("forward", "backward"), rows)]
