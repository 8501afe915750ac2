#!/usr/bin/env python3
"""Records how fast this host decodes from caches: in the type of the queries and of 8 bits, from tensors and from pages.

    bench/host_cache.py --bench PROGRAM --out FILE.json [--shapes FILE] [--dtype TYPE ...] [--threads N]

Rows have copy_bandwidth, what a copy reached just after them (bytes read and bytes written, as many as the call's and at least
twice 64 MiB), and bandwidth_share, the bytes that the call has to read and write over its time, as a share of that.
"""

import argparse
import pathlib

import flashomp_bench


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", required=True, help="the flashomp program")
    parser.add_argument("--out", required=True, help="the file of results")
    parser.add_argument("--shapes", default=str(pathlib.Path(__file__).parent / "shapes" / "cache.txt"), help="a file of shapes, one a line")
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "float32"], choices=("bfloat16", "float16", "float32"), help="of the queries")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--min-time", type=float, default=0.03)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    first, rows = {}, []
    for dtype in arguments.dtype:
        context, new = flashomp_bench.measure(
            arguments.bench, "--shapes", arguments.shapes, "--direction", "forward", "--dtype", dtype, "--threads",
            str(arguments.threads), "--repetitions", str(arguments.repetitions), "--min-time", str(arguments.min_time))
        first = first or context
        rows += new
        flashomp_bench.write(arguments.out, first, rows)
        for row in new:
            print(f"{row['run_name'].removesuffix('/real_time')}: {row['real_time']:.2f} ms, "
                  f"{row['bandwidth_share']:.2f} of a copy", flush=True)


if __name__ == "__main__":
    main()
