#!/usr/bin/env python3
"""Times flashomp and PyTorch's fused attention kernels on one GPU, shape by shape in turn, and compares the results.

Usage: bench/compare_pytorch.py --bench PROGRAM --shapes FILE --out DIR [--dtype bfloat16] [--kernel flash|cudnn]

Both sides are timed as synchronous calls on tensors in device memory, by wall-clock: median of --repetitions. flashomp's
rows carry their error against the reference; PyTorch's are only timed. flashomp is timed twice, as it is and with the
kernels that every GPU runs. Writes three files in Google Benchmark's form, whose rows have the same names:
h200-hopper.json, h200-tensor.json and h200-pytorch-KERNEL.json. Prints the ratios. Needs PyTorch with CUDA and a device of
compute capability 9.0; builds nothing.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", required=True, help="flashomp_bench")
    parser.add_argument("--shapes", required=True, help="as for flashomp_bench; equal lengths, as many heads for keys")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder of the results")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16"))
    parser.add_argument("--kernel", default="flash", choices=("flash", "cudnn"))
    parser.add_argument("--repetitions", type=int, default=5)
    return parser.parse_args()


# File names and the environments of flashomp's runs.
RUNS = {"h200-hopper": {}, "h200-tensor": {"FLASHOMP_DEVICE_ISA": "sm_80"}}


def flashomp(arguments, shape, environment):
    """(context, rows) of one shape; rows by name, the median."""
    with tempfile.TemporaryDirectory() as folder:
        shapes = pathlib.Path(folder) / "shape.txt"
        shapes.write_text(shape + "\n")
        out = pathlib.Path(folder) / "out.json"
        command = [arguments.bench, "--device", "gpu", "--shapes", str(shapes), "--dtype", arguments.dtype,
                   f"--benchmark_repetitions={arguments.repetitions}", "--benchmark_min_time=0.02",
                   "--benchmark_report_aggregates_only", f"--benchmark_out={out}", "--benchmark_out_format=json"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                       env=os.environ | environment)
        data = json.loads(out.read_text())
    return data["context"], [row for row in data["benchmarks"] if row.get("aggregate_name", "median") == "median"]


def seconds(call, repetitions):
    import torch

    call()
    call()
    times = []
    for _ in range(repetitions):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def pytorch(arguments, shape):
    """{direction: seconds} of PyTorch's kernel for one shape."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention as attention

    batch, heads, heads_kv, length, length_k, depth, depth_v = (int(word) for word in shape.split()[:7])
    if heads != heads_kv or length != length_k or depth != depth_v:
        sys.exit(f"shape was '{shape}'; equal lengths, heads and head dims are allowed.")
    causal = shape.split()[7] != "none"
    kernel = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[arguments.kernel]
    q, k, v, dout = (torch.randn(batch, heads, length, depth, device="cuda", dtype=getattr(torch, arguments.dtype))
                     for _ in range(4))
    for tensor in (q, k, v):
        tensor.requires_grad_(True)
    with sdpa_kernel(kernel):
        with torch.no_grad():
            forward = seconds(lambda: attention(q, k, v, is_causal=causal), arguments.repetitions)
        out = attention(q, k, v, is_causal=causal)
        backward = seconds(lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True), arguments.repetitions)
    return {"forward": forward, "backward": backward}


def main():
    arguments = parse_arguments()
    import torch

    shapes = [line for line in pathlib.Path(arguments.shapes).read_text().splitlines() if line and line[0] != "#"]
    results = {name: [] for name in RUNS}
    theirs, context = [], {}
    for shape in shapes:
        other = pytorch(arguments, shape)
        for name, environment in RUNS.items():
            context, rows = flashomp(arguments, shape, environment)
            results[name] += rows
            for row in rows:
                taken = other[row["run_name"].split("/")[0]] * 1e3
                print(f"{row['run_name']}: {name} {row['real_time']:.3f} ms, PyTorch {taken:.3f} ms, "
                      f"ratio {taken / row['real_time']:.2f}", flush=True)
        for row in rows:
            taken = other[row["run_name"].split("/")[0]]
            theirs.append({**{key: row[key] for key in ("name", "run_name", "aggregate_name", "time_unit")},
                           "run_type": "aggregate", "real_time": taken * 1e3, "cpu_time": taken * 1e3, "on_device": 1.0,
                           "TFLOP/s": row["TFLOP/s"] * row["real_time"] / (taken * 1e3),
                           "label": f"PyTorch {torch.__version__} {arguments.kernel} on {torch.cuda.get_device_name()}"})
        context["command"] = " ".join(sys.argv)
        for name, part in (results | {f"h200-pytorch-{arguments.kernel}": theirs}).items():
            text = json.dumps({"context": context, "benchmarks": part}, indent=1)
            (arguments.out / f"{name}.json").write_text(text + "\n")  # after each shape: a run may be cut short


if __name__ == "__main__":
    main()
