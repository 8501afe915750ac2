#!/usr/bin/env python3
"""Records how flashomp and PyTorch's flash kernel scale with the threads of this CPU.

    bench/host_scaling.py --bench PROGRAM --out FILE.json [--threads N ...] [--shapes FILE] [--dtype NAME ...]

For each number of threads, bench/compare_pytorch.py --cpu runs in a process of its own that is kept to as many CPUs, each of
another core while there are cores left. Rows carry threads and cpus. Needs PyTorch.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import flashomp_bench

HERE = pathlib.Path(__file__).resolve().parent


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", required=True, help="the flashomp program")
    parser.add_argument("--out", required=True, help="the file of results")
    parser.add_argument("--threads", type=int, nargs="+", help="default: 1, 2, 4, ... to one a core")
    parser.add_argument("--shapes", type=pathlib.Path, default=HERE / "shapes" / "host_scaling.txt")
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--kernels", nargs="*", default=["flash"], help="PyTorch's; none: flashomp alone")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--min-time", type=float, default=0.05)
    return parser.parse_args()


def cpus_by_core():
    """This process's CPUs, first one of each core, then those that share a core with one before."""
    def core(cpu):
        try:
            return pathlib.Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
        except OSError:
            return str(cpu)
    first, rest, cores = [], [], set()
    for cpu in sorted(os.sched_getaffinity(0)):
        (rest if core(cpu) in cores else first).append(cpu)
        cores.add(core(cpu))
    return first + rest, len(first)


def compare(arguments, cpus, out):
    """compare_pytorch.py on these CPUs."""
    command = ["taskset", "-c", ",".join(map(str, cpus)), sys.executable, str(HERE / "compare_pytorch.py"), "--cpu",
               "--bench", arguments.bench, "--out", str(out), "--threads", str(len(cpus)), "--shapes", str(arguments.shapes),
               "--dtype", *arguments.dtype, "--kernels", *arguments.kernels, "--repetitions", str(arguments.repetitions),
               "--min-time", str(arguments.min_time)]
    subprocess.run(command, check=True)
    return json.loads(out.read_text())


def main():
    arguments = parse_arguments()
    cpus, cores = cpus_by_core()
    counts = arguments.threads or [count for count in (2**i for i in range(10)) if count <= cores]
    context, rows = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for count in counts:
            print(f"{count} thread{'s' if count > 1 else ''}", flush=True)
            data = compare(arguments, cpus[:count], pathlib.Path(folder) / f"{count}.json")
            context = context or data["context"]
            context |= {"flashomp_threads": ", ".join(map(str, counts[:counts.index(count) + 1]))}
            rows += [row | {"threads": count, "cpus": cpus[:count]} for row in data["benchmarks"]]
            flashomp_bench.write(arguments.out, context, rows)


if __name__ == "__main__":
    main()
