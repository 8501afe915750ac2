#!/usr/bin/env python3
"""Records flashomp's speed on each instruction set of this CPU beside what a loop of nothing but products reaches on it.

    bench/host_isas.py --bench PROGRAM --out FILE.json [--shape NAME ...] [--threads N]

Each instruction set and element type is a process of its own, with FLASHOMP_HOST_ISA set. Its rows carry peak_flops, FLOP/s
of the loop that the process timed before them: multiply-adds in vectors of that width, or AMX tile products (a float32
product is six of them, a float16 product three and a half).
"""

import argparse

import flashomp_bench

KINDS = (("baseline", "float32"), ("avx2", "float32"), ("avx512", "float32"), ("amx", "float32"), ("amx", "float16"),
         ("amx", "bfloat16"))
SHAPES = ["b2_h16_n1024_d64", "b2_h16_n1024_d128"]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", required=True, help="the flashomp program")
    parser.add_argument("--out", required=True, help="the file of results")
    parser.add_argument("--shape", nargs="+", default=SHAPES)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--min-time", type=float, default=0.05)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    first, rows = {}, []
    for isa, dtype in KINDS:
        shapes = [word for shape in arguments.shape for word in ("--shape", shape)]
        try:
            context, new = flashomp_bench.measure(
                arguments.bench, *shapes, "--dtype", dtype, "--threads", str(arguments.threads), "--repetitions",
                str(arguments.repetitions), "--min-time", str(arguments.min_time), FLASHOMP_HOST_ISA=isa)
        except flashomp_bench.Failed as error:
            if "FLASHOMP_HOST_ISA was" not in str(error):
                raise
            print(f"{isa}: not on this CPU", flush=True)
            continue
        peaks = context.pop("peaks")
        first = first or context | {"flashomp_host_isa": ""}
        # Backward on vectors is one pass in float32; else S and dP are computed twice.
        products = {"forward": 2, "backward": 7 if isa == "amx" or dtype != "float32" else 5}
        rows += [row | {"peak_flops": peaks["flops"], "peak_source": peaks["flops_source"],
                        "products": products[row["direction"]]} for row in new]
        flashomp_bench.write(arguments.out, first, rows)
        for row in new:
            print(f"{isa} {row['run_name'].removesuffix('/real_time')}: {row['TFLOP/s']:.3f} TFLOP/s, "
                  f"{100e12 * row['TFLOP/s'] / peaks['flops']:.0f} % of the loop's", flush=True)


if __name__ == "__main__":
    main()
