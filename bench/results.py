"""Reads the files of bench/results: what plots, tables and the report share.

Both forms are read: one file for all implementations (`flashomp bench`, compare_pytorch.py), whose rows say what they are, and
the older one file for each implementation, where the label does.
"""

import hashlib
import json
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"

SHAPE = re.compile(r"b(\d+)_h(\d+)(?:kv(\d+))?_n(\d+)(?:x(\d+))?_d(\d+)(?:v(\d+))?(?:_latent)?(_causal|_topleft)?(?:_window\d*(?:x\d+)?)?"
                   r"((?:_softcap\d+|_alibi|_d?bias|_dropout\d+)*)(_varlen)?"
                   r"(?:_page\d+)?(?:_int8|_float8)?$")
# In this order in every legend and table, the first that is there being what the others are compared with; the name that
# readers know.
NAMES = {
    "flashomp-cuda": "flashomp, CUDA",
    "flashomp": "flashomp",
    "flashomp-mpi": "flashomp::mpi",
    "flashomp-tensor": "flashomp, kernels for every GPU",
    "flashomp-plain": "flashomp, directives alone",
    "flashomp-plain-global": "the same with tiles in ordinary memory",
    "flashomp-cuda-tensor": "flashomp, CUDA, kernels for every GPU",
    "pytorch-flash": "FlashAttention-2 (PyTorch)",
    "pytorch-cudnn": "cuDNN (PyTorch)",
    "pytorch-efficient": "memory-efficient attention (PyTorch)",
    "pytorch-math": "standard attention (PyTorch)",
    "pytorch-cpu-flash": "PyTorch's flash kernel",
    "pytorch-cpu-math": "standard attention (PyTorch)",
    "standard": "standard attention (Eigen, baseline vectors)",
    "flashomp-sdpa": "flashomp.torch.sdpa",
    "flashomp-enabled": "PyTorch's function, served by flashomp",
    "flashomp-transformers": 'attn_implementation="flashomp"',
    "flashomp-operator": "torch.ops.flashomp.forward",
    "flashomp-attention": "flashomp.attention",
    "pytorch-sdpa": "PyTorch's function",
    "pytorch-eager": "eager attention (Transformers)",
    "reference": "float64 reference",
}
STANDARD = ("pytorch-math", "pytorch-cpu-math", "standard")

# What is shown together: a name, a title, and the files, which are about one machine. Which are README's is in
# tools/results_table. A set is there when its first file is.
SETS = (
    ("h100-openmp", "FlashAttention's grid on an H100", ("h100-openmp.json",)),
    ("h200-openmp", "FlashAttention's grid on an H200", ("h200-openmp.json",)),
    ("h200-openmp-float16", "The same in float16", ("h200-openmp-float16.json",)),
    ("h200-openmp-gradients", "dQ, dK and dV at N = 16384 on an H200, compared with float64",
     ("h200-openmp-gradients-bfloat16.json", "h200-openmp-gradients-float16.json", "h200-openmp-gradients-float32.json")),
    ("h200-openmp-192", "Head dims of 192 on an H200", ("h200-openmp-192.json",)),
    ("h200-openmp-float32", "float32 on an H200", ("h200-openmp-float32.json",)),
    ("h200-openmp-launch", "Small calls on an H200", ("h200-openmp-launch.json",)),
    ("h100-cuda", "The CUDA backend on FlashAttention's grid on an H100", ("h100-cuda.json",)),
    ("h200-cuda", "The CUDA backend on FlashAttention's grid on an H200", ("h200-cuda.json",)),
    ("h200-cuda-float32", "The CUDA backend on an H200, float32", ("h200-cuda-float32.json",)),
    ("h200-cuda-float8", "The CUDA backend on an H200, float8_e4m3, forward", ("h200-cuda-float8.json",)),
    ("h200-cuda-modified", "Modified scores on an H200, CUDA", ("h200-cuda-modified.json",)),
    ("h200-cuda-launch", "Small calls of the CUDA backend on an H200", ("h200-cuda-launch.json",)),
    ("h200-openmp-items", "FlashAttention's grid on an H200, before requests that cost half", ("h200-openmp-items.json",)),
    ("h200-fa2", "FlashAttention's grid on an H200: each machine, before depth 256 and the loop over items", ("h200-fa2.json",)),
    ("h200", "The tensor-core machines on an H200", ("h200-hopper.json", "h200-tensor.json", "h200-pytorch-flash.json")),
    ("h200-repro", "Batch 4, 16 heads of 64, MHA and MQA, on an H200", ("h200-repro.json",)),
    ("h100-decode", "One query against many keys on an H100", ("h100-decode.json",)),
    ("h100-cuda-decode", "One query against many keys on an H100, CUDA", ("h100-cuda-decode.json",)),
    ("h200-decode", "One query against many keys on an H200", ("h200-decode.json",)),
    ("h200-cuda-decode", "One query against many keys on an H200, CUDA", ("h200-cuda-decode.json",)),
    ("h200-varlen", "Packed sequences on an H200", ("h200-varlen.json",)),
    ("host-pytorch", "A CPU with AMX beside PyTorch", ("host-pytorch.json",)),
    ("host-pytorch-16", "A CPU with AMX beside PyTorch, 16 threads", ("host-pytorch-16.json",)),
    ("host-pytorch-2-of-16", "A CPU with AMX beside PyTorch, 2 of its 16 cores", ("host-pytorch-2-of-16.json",)),
    ("host-pytorch-amd", "A CPU without AMX (Zen 4) beside PyTorch", ("host-pytorch-amd.json",)),
    ("host-pytorch-zen5", "A CPU without AMX (Zen 5) beside PyTorch", ("host-pytorch-zen5.json",)),
    ("host-pytorch-avx2", "A CPU with both sides kept to AVX2, beside PyTorch", ("host-pytorch-avx2.json",)),
    ("host", "The CPU's vector machine alone, before its matrix instructions", ("host.json",)),
    ("host-reference", "The host machine against the float64 reference", ("host-openmp.json", "host-reference.json")),
    ("h200-first", "The first tensor-core machine", ("h200-tensor-first.json", "h200-pytorch-flash-first.json")),
    ("h200-plain", "Directives alone, tiles in shared and in ordinary memory",
     ("h200-plain.json", "h200-plain-global-memory.json")),
)


def implementation_of(row):
    """A key of NAMES."""
    if "implementation" in row:
        if row["implementation"] == "flashomp" and row.get("backend") == "reference":
            return "reference"
        return row["implementation"]
    label = row["label"].split(" on ")[0]
    if label.startswith("PyTorch"):
        return "pytorch-" + label.split()[-1]
    machine = label.partition(":")[2]
    return {"eigen": "reference", "plain": "flashomp-plain", "tensor": "flashomp-tensor"}.get(machine, "flashomp")


def read(path):
    """(context, rows): rows with a time or a reason for none, each with implementation, direction, dtype, shape, sizes."""
    data = json.loads(pathlib.Path(path).read_text())
    rows = []
    for row in data["benchmarks"]:
        if row.get("aggregate_name", "median") != "median":
            continue
        direction, dtype, shape = row["run_name"].removesuffix("/real_time").split("/")
        words = SHAPE.match(shape).groups()
        batch, heads, heads_kv, length, length_k, depth, depth_v = (int(word) if word else None for word in words[:7])
        row = row | {"implementation": implementation_of(row), "direction": direction, "dtype": dtype, "shape": shape,
                     "batch": batch, "heads_q": heads, "heads_kv": heads_kv or heads, "seqlen_q": length,
                     "seqlen_k": length_k or length, "head_dim": depth, "head_dim_v": depth_v or depth,
                     "causal": words[7] is not None, "modified": words[8], "packed": words[9] is not None, "timed": "real_time" in row}
        rows.append(row)
    add_plain_shares(rows)
    return data["context"], rows


def add_plain_shares(rows):
    """To rows with modified scores: the time in kernels of the same call without, over theirs."""
    def call(row):
        return row["implementation"], row["direction"], row["dtype"], row["shape"].replace(row["modified"], "")
    plain = {call(row): row["kernel_time"] for row in rows if not row["modified"] and "kernel_time" in row}
    for row in rows:
        if row["modified"] and "kernel_time" in row and call(row) in plain:
            row["plain_share"] = plain[call(row)] / row["kernel_time"]


def present_sets(folder=RESULTS):
    """(name, title, paths) of the sets that are there."""
    return [(name, title, [folder / file for file in files if (folder / file).exists()])
            for name, title, files in SETS if (folder / files[0]).exists()]


def read_set(paths):
    """(contexts, rows) of all files of a set."""
    contexts, rows = [], []
    for path in paths:
        context, more = read(path)
        if "global-memory" in path.name:
            more = [row | {"implementation": "flashomp-plain-global"} for row in more]
        contexts.append(context)
        rows += more
    return contexts, rows


def digest(path):
    """What a figure remembers of the file it was drawn from."""
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()[:16]


def place_of(context, rows):
    """Where a file's rows ran, in words."""
    on_device = any(row.get("on_device") for row in rows if row["timed"])
    if on_device and "flashomp_device_0" in context:
        # Older files call the CUDA version that the driver is for the driver's.
        return context["flashomp_device_0"].replace(", driver 1", ", driver of CUDA 1")
    cpu, threads = context.get("cpu", "host"), context.get("flashomp_threads", "?")
    return f"{cpu}, {threads} thread{'' if str(threads) == '1' else 's'}, {context.get('flashomp_host_isa', '')}".strip(", ")


def provenance(path):
    """{key: text} of a file: machine, commit, compiler, flags, date, command."""
    context, rows = read(path)
    facts = {
        "results": pathlib.Path(path).name,
        "machine": place_of(context, rows),
        "host": f"{context.get('host_name', '?')}, {context.get('num_cpus', '?')} CPUs",
        "date": context.get("date", "?"),
        "commit": context.get("flashomp_commit", "?"),
        "compiler": context.get("flashomp_compiler", "?"),
        "flags": context.get("flashomp_flags", "?"),
        "command": context.get("command") or context.get("executable", "?"),
    }
    if "load_avg" in context:
        facts["load"] = ", ".join(f"{load:.1f}" for load in context["load_avg"]) + " (1, 5, 15 minutes, at the start)"
    if "torch" in context:
        facts["PyTorch"] = context["torch"]
        if "cuda" in context:
            facts["PyTorch"] += f", CUDA {context['cuda']}, cuDNN {context['cudnn']}"
    return facts
