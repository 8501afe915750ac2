#!/usr/bin/env python3
"""Times attention as a Python user calls it, on the CPU: PyTorch's F.scaled_dot_product_attention, flashomp.torch.sdpa, and
PyTorch's function served by flashomp (enabled()), in one process, in turn, into one file.

    PYTHONPATH=build/release/python bench/compare_python.py --out FILE.json [--shapes FILE | --shape "SHAPE [MASK]" ...]

Needs the package flashomp with its program built with FLASHOMP_BUILD_BENCH, PyTorch and Transformers. The parts (--parts):

    overhead   what a call at N = 1 takes, without a gradient, with its graph kept, and with backward; beside the three callers
               the operator torch.ops.flashomp.forward and flashomp.attention, and the library's own time
    model      a training step (forward, loss, backward, AdamW) and generate() of a small Llama with random weights:
               attn_implementation "flashomp", "sdpa" served by flashomp, "sdpa" and "eager"; float32, and bfloat16 by autocast
    calls      the shapes, forward without gradients, and forward and backward. A shape is what `flashomp bench --shape` takes;
               with kv it has enable_gqa, with causal is_causal, and MASK is padding (a boolean mask of keys) or additive (a
               float mask [rows, keys]). bench/shapes/python.txt is the list unless shapes are named

Nothing is timed before its error is known: all of o and, with backward, of dq, dk and dv is compared with float64, of everybody
who computes it, by the tolerance rule (bench/accuracy.py), and once more what the timed calls left. A wrong row says so and has no
time. The model's loss, logits and gradients may be 2 times (gradients 3 times) as far from float64 as with eager attention.

Calls take turns within every repetition. A repetition is as many calls as take --min-time seconds, the median of the repetitions
counts, and there are at least 5. flashomp's tensors are in memory as those of models are, [batch, rows, heads, depth]. PyTorch is
timed on these and on [batch, heads, rows, depth], with the kernel that it chooses and, where its matrix of scores has at most
256 MiB, with standard attention; the fastest counts, and the row names it. Standard attention is left out once its call takes twice
as long as that of the fastest.

The file has Google Benchmark's form and is written anew after each shape; --resume adds what is missing, from the same build,
machine and PyTorch only; --seconds ends in time.
"""

import argparse
import json
import os
import pathlib
import sys
import time

os.environ.setdefault("FLASHOMP_TUNING", "shipped")  # no table of whoever measures; before flashomp is loaded
sys.dont_write_bytecode = True
import flashomp
import torch
import transformers

import flashomp_bench
import python_calls
import python_model
from pytorch_side import FEWEST_REPETITIONS, LAYOUTS, SHAPE

PARTS = ("overhead", "model", "calls")
SHAPES = pathlib.Path(__file__).resolve().parent / "shapes" / "python.txt"


def parse_arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, type=pathlib.Path, help="the file of results")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--shapes", type=pathlib.Path, help=f"a file of shapes and masks, one a line; {SHAPES.name}")
    parser.add_argument("--shape", action="append", default=[], help="one more shape, with its mask")
    parser.add_argument("--dtype", nargs="+", default=list(python_calls.DTYPES), choices=python_calls.DTYPES)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of both sides")
    parser.add_argument("--repetitions", type=int, default=7, help="at least 5")
    parser.add_argument("--min-time", type=float, default=0.01)
    parser.add_argument("--time-limit", type=float, default=4, help="of all callers of a shape: then fewer repetitions")
    parser.add_argument("--resume", action="store_true", help="keep the rows that FILE has")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no shape after this many")
    arguments = parser.parse_args(words)
    if arguments.repetitions < FEWEST_REPETITIONS:
        parser.error(f"--repetitions was {arguments.repetitions}; allowed are {FEWEST_REPETITIONS} or more.")
    lines = list(arguments.shape)
    if arguments.shapes or not lines:
        lines += (line.split("#")[0].strip() for line in (arguments.shapes or SHAPES).read_text().splitlines())
    arguments.cases = []
    for line in filter(None, lines):
        shape, _, mask = line.partition(" ")
        found = SHAPE.match(shape)
        if not found or "_topleft" in shape or "_varlen" in shape or mask not in ("", *python_calls.MASKS) or (
                mask and "_causal" in shape):
            parser.error(f"shape was '{line}'; allowed is what `flashomp bench --shape` takes, but for top-left and packed shapes, "
                         f"and then {' or '.join(python_calls.MASKS)}, which no causal shape has.")
        arguments.cases.append((shape, mask))
    return arguments


def context_of(arguments):
    """Date, machine, build and versions, as `flashomp bench` and compare_pytorch.py have them."""
    program = flashomp.program()
    context, _ = flashomp_bench.measure(program, "--shape", "b1_h1_n1_d64", "--threads", str(arguments.threads), "--min-time", "0")
    built = flashomp._core.build_info["commit"]
    if context["flashomp_commit"] != built:
        sys.exit(f"{program} is of commit {context['flashomp_commit']}, but the package flashomp of commit {built}; build both.")
    context |= {"command": " ".join(sys.argv), "torch": torch.__version__, "transformers": transformers.__version__,
                "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(), "layouts": list(LAYOUTS)}
    if "model" in arguments.parts:
        context["model"] = python_model.description()
    return context


def tasks_of(arguments):
    """(key of its rows, function that makes them), what is short first."""
    for dtype in arguments.dtype:
        if "overhead" in arguments.parts:
            yield ("overhead", dtype, python_calls.OVERHEAD_SHAPE, ""), lambda dtype=dtype: python_calls.rows_of_overhead(
                dtype, arguments)
    for dtype in arguments.dtype:
        if "model" in arguments.parts:
            yield ("model", dtype, "", ""), lambda dtype=dtype: python_model.rows_of_model(dtype, arguments)
    if "calls" in arguments.parts:
        for shape, mask in arguments.cases:
            for dtype in arguments.dtype:
                yield ("call", dtype, shape, mask), lambda shape=shape, mask=mask, dtype=dtype: python_calls.rows_of_case(
                    shape, mask, dtype, arguments)


def key_of(row):
    return row["kind"], row["dtype"], "" if row["kind"] == "model" else row["shape"], row["mask"]


def report(rows):
    """One line for each direction: times, and how many times as long as the first takes the others take."""
    for direction in dict.fromkeys(row["direction"] for row in rows):
        here = [row for row in rows if row["direction"] == direction]
        ours, parts = here[0].get("real_time"), []
        for row in here:
            if "real_time" in row:
                ratio = f" ({row['real_time'] / ours:.2f}x)" if ours and row is not here[0] else ""
                parts.append(f"{row['implementation']} {row['real_time']:.4f} ms{ratio}")
            else:
                parts.append(f"{row['implementation']}: {row['error_message']}")
        print(f"{here[0]['run_name'].removesuffix('/real_time')} {here[0]['mask']}: ".replace(" :", ":") + ", ".join(parts),
              flush=True)


def run(arguments):
    torch.set_num_threads(arguments.threads)
    rows, context = [], context_of(arguments)
    if arguments.resume and arguments.out.exists():
        old = json.loads(arguments.out.read_text())
        rows = old["benchmarks"]
        both = [one | {"model": context.get("model", old["context"].get("model"))} if "model" not in one else one
                for one in (old["context"], context)]  # a run without the part model says nothing of it
        if why := flashomp_bench.difference(*both, arguments.out):
            sys.exit(why)
        context = both[1]
        if context["command"] not in old["context"]["command"]:
            context["command"] = f"{old['context']['command']}; {context['command']}"
    there, start = {key_of(row) for row in rows}, time.monotonic()
    tasks = [(key, make) for key, make in tasks_of(arguments) if key not in there]
    for number, (key, make) in enumerate(tasks):
        if time.monotonic() - start > arguments.seconds:
            print(f"stopped before {' '.join(filter(None, key))}: {arguments.seconds:g} s are over; --resume goes on.", flush=True)
            break
        new = make()
        rows += new
        if number + 1 < len(tasks):
            context["stopped"] = {"before": " ".join(filter(None, tasks[number + 1][0])), "seconds": arguments.seconds,
                                  "shapes_asked_for": len(tasks) + len(there), "shapes_measured": len(there) + number + 1}
        else:
            context.pop("stopped", None)
        flashomp_bench.write_rows(arguments.out, context, rows)
        report(new)
    return rows


def main():
    rows = run(parse_arguments())
    sys.exit(1 if any(row.get("is_wrong") and row["implementation"].startswith("flashomp") for row in rows) else 0)


if __name__ == "__main__":
    main()
