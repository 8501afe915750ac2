#!/usr/bin/env python3
"""Records how flashomp's resident memory grows with N on the host, for one head, forward and backward.

    bench/host_memory.py --bench PROGRAM --out FILE.json [--lengths N ...] [--dtype NAME ...] [--threads N]

Each call is the first of its kind in a process of its own. Its peak_bytes is that process's largest resident set (VmHWM) less
what was resident before the call, so outputs, statistics and every thread's tiles count, inputs do not; standard_bytes
is what standard attention stores in matrices of N x N. Times in the file are of one repetition beside whatever else ran.
"""

import argparse

import flashomp_bench


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", required=True, help="the flashomp program")
    parser.add_argument("--out", required=True, help="the file of results")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024 << i for i in range(7)])
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    context, rows = {}, []
    for dtype in arguments.dtype:
        for length in arguments.lengths:
            for direction in ("forward", "backward"):
                context, (row,) = flashomp_bench.measure(
                    arguments.bench, "--shape", f"b1_h1_n{length}_d{arguments.head_dim}", "--direction", direction,
                    "--dtype", dtype, "--threads", str(arguments.threads), "--warmup", "0", "--repetitions", "1",
                    "--min-time", "0")
                rows.append(row)
                flashomp_bench.write(arguments.out, context, rows)
                print(f"{row['run_name'].removesuffix('/real_time')}: {row['peak_bytes'] / 2**20:.1f} MiB, standard attention "
                      f"{row['standard_bytes'] / 2**20:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
