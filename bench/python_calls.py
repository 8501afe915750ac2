"""Attention as a Python user calls it: F.scaled_dot_product_attention by PyTorch, flashomp.torch.sdpa, and PyTorch's function
served by flashomp, on the same values, in turn. compare_python.py writes the rows."""

import collections
import contextlib
import statistics
import time
import zlib

import flashomp
import flashomp.torch
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import accuracy
from pytorch_side import LAYOUTS, alternating, best_of, error_of, row_of_times, sizes

DIRECTIONS = ("forward", "forward+backward")
MASKS = ("padding", "additive")  # besides the shape's own: none, or causal
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LARGEST_SCORES = 1 << 28  # bytes of a float32 matrix of scores, up to which standard attention takes part
MUCH_SLOWER = 2.0  # a kernel of PyTorch whose call takes so many times as long as the fastest's is not timed again
LONG = 0.05  # seconds; a shorter call is made once more before its time decides about MUCH_SLOWER
OPERATOR = (None,) * 7 + (None, "none", -1, -1, 0.0, 0.0, "bhsd")  # the operator's options, all of them off

# Somebody who calls: which implementation, by which kernel of PyTorch, on which layout of memory; a context that is entered
# before the clock starts, and the call, which gives o, or o and the gradients.
Caller = collections.namedtuple("Caller", "implementation kernel layout context call")


def values(shape, name, dtype):
    """Normally distributed, the same in every run, and other values for every shape and tensor."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {shape}".encode()))
    return torch.randn(shape, generator=generator).to(dtype)


class Case:
    """One shape, mask and dtype: tensors, what the function is told, and what the results must be."""

    def __init__(self, shape, mask, dtype):
        self.shape, self.mask, self.dtype = shape, mask, dtype
        s = self.sizes = sizes(shape)
        of_q, of_k = (s["batch"], s["heads_q"], s["seqlen_q"]), (s["batch"], s["heads_kv"], s["seqlen_k"])
        extents = {"q": (*of_q, s["head_dim"]), "k": (*of_k, s["head_dim"]), "v": (*of_k, s["head_dim_v"]),
                   "do": (*of_q, s["head_dim_v"])}
        self.tensors = {name: values(extent, name, DTYPES[dtype]) for name, extent in extents.items()}
        self.words = {}
        if s["causal"]:
            self.words["is_causal"] = True
        if s["heads_q"] != s["heads_kv"]:
            self.words["enable_gqa"] = True
        if mask == "padding":  # the first sequence is whole, the last has five eighths
            lengths = torch.linspace(s["seqlen_k"], 5 * s["seqlen_k"] // 8, s["batch"]).round().long().clamp(min=1)
            self.words["attn_mask"] = (torch.arange(s["seqlen_k"]) < lengths[:, None])[:, None, None, :]
        elif mask == "additive":
            self.words["attn_mask"] = values((s["seqlen_q"], s["seqlen_k"]), "mask", DTYPES[dtype])

    def visible(self, b, rows):
        """Which scores count, broadcastable to [heads, rows, keys]; None where all do."""
        if self.sizes["causal"]:
            return torch.arange(self.sizes["seqlen_k"]) <= torch.arange(rows.start, rows.stop)[:, None]
        return self.words["attn_mask"][b, 0] if self.mask == "padding" else None

    def pairs(self):
        """Visible pairs of a row and a key, of all heads."""
        s = self.sizes
        if s["causal"]:
            keys = s["batch"] * sum(min(i + 1, s["seqlen_k"]) for i in range(s["seqlen_q"]))
        elif self.mask == "padding":
            keys = s["seqlen_q"] * int(self.words["attn_mask"].sum())
        else:
            keys = s["batch"] * s["seqlen_q"] * s["seqlen_k"]
        return keys * s["heads_q"]

    def flops(self, direction):
        """Forward is two products, backward five, as `flashomp bench` counts them."""
        depths = self.sizes["head_dim"] + self.sizes["head_dim_v"]
        return 2.0 * self.pairs() * depths * (1 if direction == "forward" else 3.5)

    def in_memory(self, layout):
        """q, k, v and do, whose memory is in the order of the layout."""
        if layout == "bhnd":
            return [self.tensors[name] for name in ("q", "k", "v", "do")]
        return [self.tensors[name].transpose(1, 2).contiguous().transpose(1, 2) for name in ("q", "k", "v", "do")]

    def expect(self):
        """Computes what judge() needs: float64, and standard attention in the dtype."""
        q, k, v, do = self.in_memory("bhnd")
        bias = self.words["attn_mask"] if self.mask == "additive" else None
        given = (torch, q, k, v, do, self.sizes["head_dim"]**-0.5, bias, self.visible)
        self.exact = accuracy.standard_attention(*given)
        self.naive = accuracy.standard_attention(*given, dtype=DTYPES[self.dtype])
        seen = torch.arange(1, self.sizes["seqlen_q"] + 1) if self.sizes["causal"] else torch.tensor(
            [self.pairs() // (self.sizes["batch"] * self.sizes["heads_q"] * self.sizes["seqlen_q"])] * self.sizes["seqlen_q"])
        self.few_keys = seen < accuracy.FEW_KEYS

    def judge(self, results):
        """The verdict's part of a row, of o or of o and the gradients."""
        return accuracy.verdict({name: accuracy.judge(name, self.dtype, actual.detach(), self.exact[name], self.naive[name],
                                                      self.few_keys)
                                 for name, actual in zip(("o", "dq", "dk", "dv"), results)})


def call_of(direction, function, tensors, words):
    """A call of attention as training or inference makes it. `function` is looked up when it is called."""
    q, k, v, do = tensors
    if direction == "forward":
        return lambda: (function()(q, k, v, **words),)
    wanted = tuple(x.detach().requires_grad_() for x in (q, k, v))

    def both():
        o = function()(*wanted, **words)
        return (o, *torch.autograd.grad(o, wanted, do))
    return both


def users_function():
    return F.scaled_dot_product_attention  # PyTorch's, or flashomp's in enabled()


def callers_of(case, direction):
    """Everybody who computes the case. flashomp has the layout that models have, PyTorch both and its standard attention."""
    def of(implementation, kernel, layout, context, function):
        call = call_of(direction, function, memory[layout], case.words)

        @contextlib.contextmanager
        def around():
            with torch.set_grad_enabled(direction != "forward"), context():
                yield
        return Caller(implementation, kernel, layout, around, call)

    memory = {layout: case.in_memory(layout) for layout in LAYOUTS}
    found = [of("flashomp-sdpa", None, "bnhd", contextlib.nullcontext, lambda: flashomp.torch.sdpa),
             of("flashomp-enabled", None, "bnhd", flashomp.torch.enabled, users_function)]
    found += [of("pytorch-sdpa", "chosen", layout, contextlib.nullcontext, users_function) for layout in LAYOUTS]
    s = case.sizes
    if 4 * s["batch"] * s["heads_q"] * s["seqlen_q"] * s["seqlen_k"] <= LARGEST_SCORES:
        found += [of("pytorch-sdpa", "math", layout, lambda: sdpa_kernel(SDPBackend.MATH), users_function) for layout in LAYOUTS]
    return found


def who_ran(caller):
    """(results, seconds, why not) of one call; flashomp's callers must have run flashomp's kernels, PyTorch's must not."""
    flashomp.torch.counts(reset=True)
    with caller.context():
        start = time.perf_counter()
        results = caller.call()
        seconds = time.perf_counter() - start
    counts = flashomp.torch.counts()
    if caller.implementation == "flashomp-attention":  # the plain function, which is not counted
        return results, seconds, None
    is_ours = caller.implementation.startswith("flashomp")
    if counts["forward"] != is_ours or (len(results) > 1 and counts["backward"] != is_ours):
        reasons = ", ".join(counts["pytorch"]) or "for no reason that was told"
        return results, seconds, f"ran on the other library's kernel: {reasons}"
    return results, seconds, None


def rows_of_callers(case, callers, arguments):
    """A row for each caller: compared with float64, timed in turn with the others, and compared once more."""
    rows, first, kept, later = [], [], {}, {}
    for number, caller in enumerate(callers):
        try:
            results, seconds, why = who_ran(caller)
            row = error_of(why) if why else case.judge(results) | {
                "compared": "all of o" + ("" if len(results) == 1 else ", dq, dk and dv")}
            if "error_message" not in row:
                first.append((seconds if seconds > LONG else who_ran(caller)[1], number))
        except (RuntimeError, ValueError) as error:  # flashomp.Error is a ValueError
            row = error_of(str(error))
        rows.append(row)
    fastest = min((seconds for seconds, number in first if callers[number].kernel), default=0.0)
    for seconds, number in first:
        caller = callers[number]
        if caller.kernel == "math" and seconds > MUCH_SLOWER * fastest:
            rows[number] |= error_of(f"a call took {seconds / fastest:.1f} times as long as by the fastest kernel")
        else:
            def call(number=number):
                later[number] = callers[number].call()
            kept[number] = (call, caller.context)
    times = alternating(kept, lambda: None, arguments.repetitions, arguments.min_time, arguments.time_limit)
    for number, of_caller in times.items():
        again = case.judge(later[number])
        rows[number] |= {"compared_after_timing": True} | (again if "is_wrong" in again else row_of_times(of_caller))
    return rows


def one_row(callers, rows, implementation):
    """Of an implementation's kernels and layouts the fastest; all of them are in `kernels` and `layouts`."""
    here = [(caller, row) for caller, row in zip(callers, rows) if caller.implementation == implementation]
    if wrong := next((row for caller, row in here if "is_wrong" in row and caller.kernel != "math"), None):
        return wrong  # what users get by themselves is told; standard attention that is wrong is only no candidate
    if implementation.startswith("flashomp"):
        (caller, row), = here
        return row | {"layout": caller.layout}
    kernels = {}
    for caller, row in here:
        kernels.setdefault(caller.kernel, {})[caller.layout] = row
    best = {kernel: best_of(layouts) for kernel, layouts in kernels.items()}
    timed = {kernel: row for kernel, row in best.items() if "real_time" in row}
    kernel = min(timed, key=lambda one: timed[one]["real_time"]) if timed else next(iter(best))
    return best[kernel] | {"kernel": kernel, "kernels": {
        one: {key: value for key, value in row.items() if key != "layouts"} for one, row in best.items() if one != kernel}}


def described(row, kind, direction, dtype, shape, implementation, arguments):
    """A row as all files of results have it."""
    name = f"{direction}/{dtype}/{shape}/real_time"
    where = f"host ({arguments.threads} thread{'s' if arguments.threads > 1 else ''})"
    return {"name": name + "_median", "run_name": name, "run_type": "aggregate", "aggregate_name": "median", "time_unit": "ms",
            "dtype": dtype, "kind": kind, "implementation": implementation, "direction": direction, "shape": shape,
            "label": f"{implementation} on {where}", "ran_on": where, "on_device": 0.0} | row


def rows_of_case(shape, mask, dtype, arguments):
    """Rows of one shape and mask, forward, and forward and backward."""
    case, rows = Case(shape, mask, dtype), []
    case.expect()
    for direction in DIRECTIONS:
        callers = callers_of(case, direction)
        of_callers = rows_of_callers(case, callers, arguments)
        for implementation in ("flashomp-sdpa", "flashomp-enabled", "pytorch-sdpa"):
            row = one_row(callers, of_callers, implementation) | {"mask": mask, "flops": case.flops(direction)}
            if "real_time" in row:
                row["TFLOP/s"] = row["flops"] / row["real_time"] * 1e-9
            rows.append(described(row, "call", direction, dtype, shape, implementation, arguments))
    return rows


OVERHEAD_SHAPE = "b1_h1_n1_d64"
OVERHEAD_DIRECTIONS = ("forward", "forward, graph kept", "forward+backward")


def overhead_callers(case, direction):
    """The three callers, the operator alone and, without a gradient, flashomp.attention."""
    tensors = case.in_memory("bhnd")
    q, k, v, do = tensors
    wanted = tuple(x.detach().requires_grad_() for x in (q, k, v))
    functions = {"flashomp-sdpa": lambda: flashomp.torch.sdpa, "flashomp-enabled": users_function,
                 "pytorch-sdpa": users_function,
                 "flashomp-operator": lambda: lambda *x: torch.ops.flashomp.forward(*x, *OPERATOR)[0]}
    if direction == "forward":
        functions["flashomp-attention"] = lambda: lambda *x: flashomp.attention(*x, layout="bhsd",
                                                                               threads=torch.get_num_threads())
    callers = []
    for implementation, function in functions.items():
        if direction == "forward, graph kept":
            def call(function=function):
                return (function()(*wanted),)
        else:
            call = call_of(direction, function, tensors, case.words)

        @contextlib.contextmanager
        def around(context=flashomp.torch.enabled if implementation == "flashomp-enabled" else contextlib.nullcontext):
            with torch.set_grad_enabled(direction != "forward"), context():
                yield
        callers.append(Caller(implementation, None, "bhnd", around, call))
    return callers


def rows_of_overhead(dtype, arguments):
    """What a call at N = 1 takes, and how much of it is the library's own time."""
    case, rows = Case(OVERHEAD_SHAPE, "", dtype), []
    case.expect()
    q, k, v, _ = case.in_memory("bhnd")
    library = statistics.median(flashomp.attention(q, k, v, layout="bhsd", threads=arguments.threads, return_report=True)[-1][
        "seconds"] for _ in range(2000)) * 1e3
    for direction in OVERHEAD_DIRECTIONS:
        callers = overhead_callers(case, direction)
        for caller, row in zip(callers, rows_of_callers(case, callers, arguments)):
            if direction == "forward" and caller.implementation.startswith("flashomp"):
                row["library_time"] = library
            rows.append(described(row | {"mask": ""}, "overhead", direction, dtype, OVERHEAD_SHAPE, caller.implementation,
                                  arguments))
    return rows
