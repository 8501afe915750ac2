#!/usr/bin/env python3
"""Times flashomp and PyTorch's attention kernels on one GPU or CPU, shape by shape in turn, into one file.

    bench/compare_pytorch.py --bench PROGRAM --out FILE.json (--suite fa2 | --shapes FILE | --shape NAME ...) [--cpu]

PROGRAM is flashomp (a bundle's .carry/bin/flashomp, for one). It is started once for each dtype and machine and served one
shape after the other, so that the driver compiles its kernels once. For each shape every implementation has its turn within
seconds: flashomp (--machines: its OpenMP backend as it is, with the kernels that every GPU runs, or with what directives alone
give; its CUDA backend, as it is or with the kernels that every GPU runs), FlashAttention-2 (flash), cuDNN (cudnn), standard
attention (math) and, where named, the memory-efficient kernel (efficient), PyTorch's fastest for float32. Both sides are timed
as synchronous calls on tensors in device memory, by wall-clock: a repetition is as many calls as take --min-time seconds, and
the median of the repetitions counts. --kernel-time adds how long the GPU ran kernels in a call, as NVIDIA's CUPTI records it for
both, the median of as many further calls. flashomp's rows carry their error against the reference and are refused where it is too
large; PyTorch's are only timed. Peak memory is that above the inputs: counted allocations on both sides. A row without a time
says why: out of memory, no such kernel.

The file has Google Benchmark's form and is written anew after each shape, so a run that is cut short leaves all it has;
--resume adds what is missing, --seconds ends in time. Needs PyTorch, with CUDA unless --cpu is given; builds nothing.

--cpu compares on the host, both sides with --threads threads: PyTorch's flash and math kernels, and with --beside-standard
flashomp's own standard attention. Peak memory is then the most resident pages above those before the call.
"""

import argparse
import contextlib
import gc
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

SUITES = ("fa2", "repro", "decode", "varlen", "quick")
SHAPE = re.compile(r"b(\d+)_h(\d+)(?:kv(\d+))?_n(\d+)(?:x(\d+))?_d(\d+)(?:v(\d+))?(_causal|_topleft)?(_varlen)?$")
# Name of the rows, environment, options.
EVERY_GPU = {"FLASHOMP_DEVICE_ISA": "sm_80"}
MACHINES = {"auto": ("flashomp", {}, ["--backend", "openmp"]),
            "tensor": ("flashomp-tensor", EVERY_GPU, ["--backend", "openmp"]),
            "plain": ("flashomp-plain", {}, ["--backend", "openmp", "--machine", "plain"]),
            "cuda": ("flashomp-cuda", {}, ["--backend", "cuda"]),
            "cuda-tensor": ("flashomp-cuda-tensor", EVERY_GPU, ["--backend", "cuda"])}
USUAL_KERNELS = ("flash", "cudnn", "math")
KERNELS = (*USUAL_KERNELS, "efficient")
CPU_KERNELS = ("flash", "math")


def parse_arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", required=True, help="the flashomp program")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="the file of results")
    parser.add_argument("--suite", choices=SUITES)
    parser.add_argument("--shapes", type=pathlib.Path, help="a file of shapes, one a line")
    parser.add_argument("--shape", action="append", default=[], help="one more shape")
    parser.add_argument("--dtype", nargs="+", default=["bfloat16"], choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--machines", nargs="+", default=["auto"], choices=MACHINES)
    parser.add_argument("--kernels", nargs="*", choices=KERNELS, help="default: flash and math, on a GPU cudnn too")
    parser.add_argument("--cpu", action="store_true", help="compare on the host")
    parser.add_argument("--beside-standard", action="store_true", help="time flashomp's standard attention too, with --cpu")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of both sides, with --cpu")
    parser.add_argument("--device", default="0", help="for flashomp: a GPU's number, or host to try this script out")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--min-time", type=float, default=0.05)
    parser.add_argument("--time-limit", type=float, default=10, help="flashomp's: fewer repetitions where they take longer")
    parser.add_argument("--kernel-time", action="store_true", help="the time in kernels too, not with --cpu")
    parser.add_argument("--resume", action="store_true", help="keep the rows that FILE has")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no shape after this many")
    arguments = parser.parse_args(words)
    if arguments.kernels is None:
        arguments.kernels = list(CPU_KERNELS if arguments.cpu else USUAL_KERNELS)
    if arguments.cpu:
        if arguments.kernel_time:
            parser.error("--kernel-time was given with --cpu; allowed is a GPU.")
        arguments.device = "host"
    shapes = suite_shapes(arguments.bench, arguments.suite) + arguments.shape
    if arguments.shapes:
        lines = (line.split("#")[0].strip() for line in arguments.shapes.read_text().splitlines())
        shapes += [line for line in lines if line]
    for shape in shapes:
        if not SHAPE.match(shape):
            parser.error(f"shape was '{shape}'; allowed is what `flashomp bench --shape` takes.")
    if not shapes:
        parser.error("no shape was given; --suite, --shapes or --shape is needed.")
    arguments.all_shapes = shapes
    return arguments


def suite_shapes(program, suite):
    """What `flashomp bench SUITE` would run."""
    if suite is None:
        return []
    return subprocess.run([program, "bench", suite, "--list"], check=True, capture_output=True, text=True).stdout.split()


def tracer_folders():
    """Where the libcupti is that PyTorch brought into this process, so that flashomp finds one."""
    maps = pathlib.Path("/proc/self/maps").read_text()
    return sorted({str(pathlib.Path(path).parent) for path in re.findall(r"(/\S+/libcupti\.so\S*)", maps)})


class Flashomp:
    """A `flashomp bench` that serves shapes from its standard input."""

    def __init__(self, arguments, dtype, machine):
        self.name, environment, options = MACHINES[machine]
        command = [arguments.bench, "bench", "--shapes", "-", "--device", arguments.device, "--dtype", dtype,
                   "--repetitions", str(arguments.repetitions), "--min-time", str(arguments.min_time),
                   "--time-limit", str(arguments.time_limit), *options]
        if arguments.cpu:
            command += ["--threads", str(arguments.threads)]
        if arguments.beside_standard:
            command.append("--beside-standard")
        folders = [str(pathlib.Path(arguments.bench).resolve().parent.parent / "lib")]  # a bundle's
        if arguments.kernel_time:
            command.append("--kernel-time")
            folders += tracer_folders()
        libraries = ":".join(folders)
        environment = environment | {"LD_LIBRARY_PATH": f"{libraries}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={"FLASHOMP_TUNING": "shipped"} | os.environ | environment)
        self.context = self.line()

    def line(self):
        text = self.process.stdout.readline()
        if not text:
            sys.exit(f"{self.name} ended with status {self.process.wait()}; its message is above.")
        return json.loads(text)

    def rows(self, shape):
        """Rows of one shape; those of a shape that it refuses say why."""
        self.process.stdin.write(shape + "\n")
        self.process.stdin.flush()
        rows = []
        while "done" not in (row := self.line()):
            if row.get("implementation", "flashomp") == "flashomp":  # or standard attention beside it
                row["implementation"] = self.name
            rows.append(row)
        if "error" in row:
            rows = [failed(shape, direction, self.name, row["error"]) for direction in ("forward", "backward")]
        return rows

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


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

    def calls(self, shape, dtype, kernel):
        """Yields (direction, call): what is to be timed, on inputs that are there."""
        torch, s = self.torch, sizes(shape)
        if s["packed"]:
            raise RuntimeError("scaled_dot_product_attention has no packed sequences")
        if s["causal"] and s["seqlen_q"] != s["seqlen_k"]:
            raise RuntimeError("is_causal is top-left")
        make = lambda heads, length, depth: torch.randn(s["batch"], heads, length, depth, device=self.device,
                                                        dtype=getattr(torch, dtype))
        q = make(s["heads_q"], s["seqlen_q"], s["head_dim"]).requires_grad_(True)
        k = make(s["heads_kv"], s["seqlen_k"], s["head_dim"]).requires_grad_(True)
        v = make(s["heads_kv"], s["seqlen_k"], s["head_dim_v"]).requires_grad_(True)
        dout = make(s["heads_q"], s["seqlen_q"], s["head_dim_v"])
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
        self.versions = {"torch": torch.__version__}

    def synchronize(self):
        pass

    def peak(self, call):
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


def failed(shape, direction, implementation, why):
    return {"implementation": implementation, "direction": direction, "shape": shape, "error_occurred": True,
            "error_message": why.strip().splitlines()[0][:200]}


def timed(call, synchronize, repetitions, min_time):
    """Wall-clock seconds of a synchronous call: the mean of each repetition."""
    def several(count):
        start = time.perf_counter()
        for _ in range(count):
            call()
            synchronize()
        return (time.perf_counter() - start) / count

    several(1)
    count = max(1, round(min_time / max(several(1), 1e-7) + 0.5))
    return [several(count) for _ in range(repetitions)]


def pytorch_rows(pytorch, shape, dtype, kernel, arguments):
    """Rows of one kernel for one shape: times, or why there is none."""
    name = f"{pytorch.prefix}-{kernel}"
    rows = []
    try:
        with contextlib.closing(pytorch.calls(shape, dtype, kernel)) as calls:
            for direction, call in calls:
                peak = pytorch.peak(call)
                times = timed(call, pytorch.synchronize, arguments.repetitions, arguments.min_time)
                median = statistics.median(times)
                rows.append({"implementation": name, "direction": direction, "shape": shape,
                             "repetitions": len(times), "real_time": median * 1e3, "least_time": min(times) * 1e3,
                             "most_time": max(times) * 1e3, "spread": (max(times) - min(times)) / median,
                             "peak_bytes": peak})
                if arguments.kernel_time:
                    rows[-1]["kernel_time"] = statistics.median(pytorch.kernel_time(call) for _ in times) * 1e3
    except RuntimeError as error:  # torch.cuda.OutOfMemoryError is one
        why = "out of memory" if pytorch.is_out_of_memory(error) else str(error)
        for rest in ("forward", "backward")[len(rows):]:
            rows.append(failed(shape, rest, name, why))
    finally:
        pytorch.release()
    return [row | {"label": f"{pytorch.label} {kernel} on {pytorch.where}", "ran_on": pytorch.where,
                   "on_device": float(pytorch.device == "cuda")} for row in rows]


def finished(row, dtype, ours):
    """A row as all files have it: PyTorch's with the FLOPs and bytes of flashomp's row of the same shape."""
    name = f"{row['direction']}/{dtype}/{row['shape']}/real_time"
    row = {"name": name + "_median", "run_name": name, "run_type": "aggregate", "aggregate_name": "median",
           "time_unit": "ms", "dtype": dtype} | row
    same = next((other for other in ours if other["direction"] == row["direction"] and "flops" in other), None)
    if same and "flops" not in row:
        row |= {key: same[key] for key in ("flops", "tile_bytes", "least_bytes")}
        if "real_time" in row:
            row["TFLOP/s"] = row["flops"] / row["real_time"] * 1e-9
    return row


def write(path, context, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(json.dumps({"context": context, "benchmarks": rows}, indent=1) + "\n")
    temporary.replace(path)


def report(rows):
    """One line for each direction: times, and how much faster the first is than the others."""
    for direction in ("forward", "backward"):
        here = [row for row in rows if row["direction"] == direction]
        ours = here[0].get("real_time")
        parts = []
        for row in here:
            if "real_time" in row:
                ratio = f" ({row['real_time'] / ours:.2f}x)" if ours and row is not here[0] else ""
                parts.append(f"{row['implementation']} {row['real_time']:.3f} ms{ratio}")
            else:
                parts.append(f"{row['implementation']}: {row['error_message']}")
        print(f"{here[0]['run_name'].removesuffix('/real_time')}: " + ", ".join(parts), flush=True)


def run(arguments, pytorch):
    rows, context = [], {}
    if arguments.resume and arguments.out.exists():
        old = json.loads(arguments.out.read_text())
        rows, context = old["benchmarks"], old["context"]
    there = {(row["run_name"].split("/")[1], row["shape"]) for row in rows}
    start = time.monotonic()
    for dtype in arguments.dtype:
        servers = [Flashomp(arguments, dtype, machine) for machine in arguments.machines]
        commands = context.get("command", "")
        context = servers[0].context | {"command": " ".join(sys.argv)} | (pytorch.versions if pytorch else {})
        if commands and context["command"] not in commands:
            context["command"] = f"{commands}; {context['command']}"
        for number, shape in enumerate(arguments.all_shapes):
            if (dtype, shape) in there:
                continue
            if time.monotonic() - start > arguments.seconds:
                print(f"stopped before {dtype} {shape}: {arguments.seconds:g} s are over; --resume goes on.", flush=True)
                break
            ours, new = [], []
            turns = [lambda server=server: server.rows(shape) for server in servers]
            if pytorch:
                turns += [lambda kernel=kernel: pytorch_rows(pytorch, shape, dtype, kernel, arguments)
                          for kernel in arguments.kernels]
            for turn in turns[number % len(turns):] + turns[:number % len(turns)]:  # nobody is always first
                new += turn()
            ours = [row for row in new if row["implementation"].startswith("flashomp")]
            order = {name: place for place, name in enumerate(
                [server.name for server in servers] + [f"{pytorch.prefix}-{kernel}" for kernel in KERNELS if pytorch] +
                ["standard"])}
            new = [finished(row, dtype, ours) for row in sorted(new, key=lambda row: order[row["implementation"]])]
            rows += new
            write(arguments.out, context, rows)
            report(new)
        for server in servers:
            server.close()
    return rows


def main():
    arguments = parse_arguments()
    pytorch = None
    if arguments.kernels:
        pytorch = PytorchOnCpu(arguments.threads) if arguments.cpu else Pytorch()
    rows = run(arguments, pytorch)
    sys.exit(1 if any(row.get("is_wrong") for row in rows) else 0)


if __name__ == "__main__":
    main()
