#!/usr/bin/env python3
"""Counts the instructions of flashomp's float32 AVX2 kernels for each multiply-add, with cachegrind.

    bench/host_instructions.py --bench PROGRAM --out FILE.json [--shape NAME ...]

A count is that of a process with two calls less that of one with a single call, on one thread, so that start and inputs
cancel. multiply_adds are those that the mathematics needs, two products forward and five backward, and
carried_out those of the kernels: the same, where backward is one pass, as it is on vectors. An AVX2 instruction does eight.
"""

import argparse
import pathlib
import re
import tempfile

import pytorch_side
import flashomp_bench

SHAPES = ["b1_h1_n1024_d64", "b1_h1_n1024_d128", "b1_h1_n4096_d64"]
ISA = {"FLASHOMP_HOST_ISA": "avx2"}
NEEDED = {"forward": 2, "backward": 5}
CARRIED_OUT = {"forward": 2, "backward": 5}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", required=True, help="the flashomp program")
    parser.add_argument("--out", required=True, help="the file of results")
    parser.add_argument("--shape", nargs="+", default=SHAPES, help="without a mask, head_dim_v and key heads")
    return parser.parse_args()


def instructions_in(text):
    """The number of instructions in a file of cachegrind's."""
    events = re.search(r"^events: (.*)$", text, re.M).group(1).split()
    summary = re.search(r"^summary: (.*)$", text, re.M).group(1).split()
    return int(summary[events.index("Ir")])


def instructions(program, shape, direction, calls):
    """Those of a process that makes so many calls."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "cachegrind.out"
        flashomp_bench.output_of(
            ["valgrind", "--tool=cachegrind", "--cache-sim=no", f"--cachegrind-out-file={out}", program, "bench",
             "--shape", shape, "--direction", direction, "--device", "host", "--threads", "1",
             "--only-calls", str(calls)], ISA)
        return instructions_in(out.read_text())


def row_of(shape, direction, count):
    """A row as the other files have it."""
    size = pytorch_side.sizes(shape)
    product = size["batch"] * size["heads_q"] * size["seqlen_q"] * size["seqlen_k"] * size["head_dim"]
    return {"run_name": f"{direction}/float32/{shape}/real_time", "implementation": "flashomp",
            "label": "openmp:host-avx2 on host (1 thread)", "instructions": count,
            "multiply_adds": NEEDED[direction] * product, "carried_out": CARRIED_OUT[direction] * product}


def main():
    arguments = parse_arguments()
    context, _ = flashomp_bench.measure(arguments.bench, "--shape", "b1_h1_n64_d64", "--threads", "1", **ISA)
    rows = []
    for shape in arguments.shape:
        for direction in ("forward", "backward"):
            one, two = (instructions(arguments.bench, shape, direction, calls) for calls in (1, 2))
            row = row_of(shape, direction, two - one)
            rows.append(row)
            flashomp_bench.write(arguments.out, context | {"counted_by": "cachegrind"}, rows)
            print(f"{direction} {shape}: {row['instructions'] / row['multiply_adds']:.3f} instructions a multiply-add needed, "
                  f"{row['instructions'] / row['carried_out']:.3f} a multiply-add carried out", flush=True)


if __name__ == "__main__":
    main()
