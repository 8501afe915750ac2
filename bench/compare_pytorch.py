#!/usr/bin/env python3
"""Times flashomp and PyTorch's attention kernels on one GPU or CPU, shape by shape in turn, into one file.

    bench/compare_pytorch.py --bench PROGRAM --out FILE.json (--suite fa2 | --shapes FILE | --shape NAME ...) [--cpu]

PROGRAM is flashomp (a bundle's .carry/bin/flashomp, for one). It is started once for each dtype and machine and served one
shape after the other, so that the driver compiles its kernels once. For each shape every implementation has its turn within
seconds: flashomp (--machines: its OpenMP backend as it is, with the kernels that every GPU runs, or with what directives alone
give; its CUDA backend, as it is or with the kernels that every GPU runs), FlashAttention-2 (flash), cuDNN (cudnn), standard
attention (math) and, where named, the memory-efficient kernel (efficient), PyTorch's fastest for float32.

Both sides have the same values: flashomp writes its inputs to a file that PyTorch reads. Both sides are timed as synchronous
calls on tensors in device memory, by wall-clock: a repetition is as many calls as take --min-time seconds, and the median of
the repetitions counts, of which there are at least 5. --kernel-time adds how long the GPU ran kernels in a call, as NVIDIA's
CUPTI records it for both, the median of as many further calls. PyTorch is timed on tensors whose memory is [batch, heads, rows,
depth] and on flashomp's [batch, rows, heads, depth]: `layouts` has both, and by each clock the better one is its time.
flashomp's rows carry their error against the reference and are refused where it is too large; PyTorch's are only timed. Peak
memory is that above the inputs: counted allocations on both sides. A row without a time says why: out of memory, no such kernel.

The file has Google Benchmark's form and is written anew after each shape, so a run that is cut short leaves all it has;
--resume adds what is missing, from the same build, device, threads and PyTorch only; --seconds ends in time. Needs PyTorch, with
CUDA unless --cpu is given; builds nothing.

--cpu compares on the host, both sides with --threads threads: PyTorch's flash and math kernels, and with --beside-standard
flashomp's own standard attention. Peak memory is then the most resident pages above those before the call. --isa avx2 keeps both
sides to AVX2. Rows have peak_flops: what a loop of nothing but multiply-adds reached in flashomp's process.
"""

import argparse
import json
import mmap
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from flashomp_bench import difference, write_rows
from pytorch_side import FEWEST_REPETITIONS, LAYOUTS, SHAPE, Pytorch, PytorchOnCpu, failed, pytorch_rows

SUITES = ("fa2", "repro", "decode", "varlen", "quick")
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
# What keeps each library to an instruction set: flashomp, PyTorch's own kernels, and those of oneDNN and MKL.
ISAS = {"avx2": {"FLASHOMP_HOST_ISA": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2",
                 "MKL_ENABLE_INSTRUCTIONS": "AVX2"}}


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
    parser.add_argument("--isa", choices=ISAS, help="keep both sides to this instruction set, with --cpu")
    parser.add_argument("--repetitions", type=int, default=FEWEST_REPETITIONS, help="at least 5")
    parser.add_argument("--min-time", type=float, default=0.05)
    parser.add_argument("--time-limit", type=float, default=60, help="flashomp's: fewer repetitions where they take longer")
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
    elif arguments.isa:
        parser.error("--isa was given without --cpu; allowed is the host.")
    if arguments.repetitions < FEWEST_REPETITIONS:
        parser.error(f"--repetitions was {arguments.repetitions}; allowed are {FEWEST_REPETITIONS} or more.")
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


def environment_of(arguments, folders=()):
    """What flashomp runs with: a bundle's libraries, and no table of whoever measures."""
    libraries = ":".join([str(pathlib.Path(arguments.bench).resolve().parent.parent / "lib"), *folders])
    return {"FLASHOMP_TUNING": "shipped"} | os.environ | {
        "LD_LIBRARY_PATH": f"{libraries}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")}


def inputs_of(arguments, shape, dtype):
    """{name: (type, extents, bytes)}: q, k, v and do as flashomp times them, [batch, rows, heads, depth]. None where
    flashomp refuses the shape."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "inputs.safetensors"
        command = [arguments.bench, "bench", "--shape", shape, "--dtype", dtype, "--inputs", path]
        if subprocess.run(command, env=environment_of(arguments), capture_output=True).returncode != 0:
            return None  # its row says why
        with path.open("rb") as file:
            memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    start = 8 + int.from_bytes(memory[:8], "little")
    tensors = {}
    for name, tensor in json.loads(bytes(memory[8:start])).items():
        if name != "__metadata__":
            first, last = tensor["data_offsets"]
            tensors[name] = tensor["dtype"], tensor["shape"], memory[start + first:start + last]
    return tensors


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
        folders = []
        if arguments.kernel_time:
            command.append("--kernel-time")
            folders = tracer_folders()
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=environment_of(arguments, folders) | environment)
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
    asked = {(dtype, shape) for dtype in arguments.dtype for shape in arguments.all_shapes}

    def measured():
        return {(row["run_name"].split("/")[1], row["shape"]) for row in rows}

    def stopped_before(dtype, shape):
        return {"before": f"{dtype} {shape}", "seconds": arguments.seconds, "shapes_asked_for": len(asked),
                "shapes_measured": len(asked & measured())}

    there = measured()
    start = time.monotonic()
    for dtype in arguments.dtype:
        servers = [Flashomp(arguments, dtype, machine) for machine in arguments.machines]
        commands = context.get("command", "")
        old, context = context, servers[0].context | {"command": " ".join(sys.argv)}
        if pytorch:
            context |= pytorch.versions | {"layouts": list(LAYOUTS), "inputs": "flashomp's, by file"}
        if arguments.isa:
            context |= {"isa": arguments.isa, "environment": ISAS[arguments.isa]}
        if old and (why := difference(old, context, arguments.out)):
            for server in servers:
                server.close()
            sys.exit(why)
        if commands and context["command"] not in commands:
            context["command"] = f"{commands}; {context['command']}"
        peaks = context["peaks"]
        for number, shape in enumerate(arguments.all_shapes):
            if (dtype, shape) in there:
                continue
            if time.monotonic() - start > arguments.seconds:
                print(f"stopped before {dtype} {shape}: {arguments.seconds:g} s are over; --resume goes on.", flush=True)
                context["stopped"] = stopped_before(dtype, shape)
                for server in servers:
                    server.close()
                write_rows(arguments.out, context, rows)
                return rows
            ours, new = [], []
            turns = [lambda server=server: server.rows(shape) for server in servers]
            if pytorch:
                is_needed = arguments.kernels and not pytorch.refusal(shape)
                inputs = inputs_of(arguments, shape, dtype) if is_needed else None
                turns += [lambda kernel=kernel: pytorch_rows(pytorch, shape, inputs, kernel, arguments)
                          for kernel in arguments.kernels]
            for turn in turns[number % len(turns):] + turns[:number % len(turns)]:  # nobody is always first
                new += turn()
            ours = [row for row in new if row["implementation"].startswith("flashomp")]
            order = {name: place for place, name in enumerate(
                [server.name for server in servers] + [f"{pytorch.prefix}-{kernel}" for kernel in KERNELS if pytorch] +
                ["standard"])}
            new = [finished(row, dtype, ours) for row in sorted(new, key=lambda row: order[row["implementation"]])]
            if arguments.cpu:
                new = [row | {"peak_flops": peaks["flops"], "peak_source": peaks["flops_source"]} for row in new]
            rows += new
            if left := [one for one in arguments.all_shapes if (dtype, one) not in measured()]:
                context["stopped"] = stopped_before(dtype, left[0])  # for who kills the run
            write_rows(arguments.out, context, rows)
            report(new)
        for server in servers:
            server.close()
    context.pop("stopped", None)
    if rows:
        write_rows(arguments.out, context, rows)  # no longer with where an earlier run was stopped
    return rows


def main():
    arguments = parse_arguments()
    if arguments.isa:
        os.environ.update(ISAS[arguments.isa])  # before PyTorch's libraries are loaded
    pytorch = None
    if arguments.kernels:
        pytorch = PytorchOnCpu(arguments.threads) if arguments.cpu else Pytorch()
    rows = run(arguments, pytorch)
    sys.exit(1 if any(row.get("is_wrong") for row in rows) else 0)


if __name__ == "__main__":
    main()
