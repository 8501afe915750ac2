#!/usr/bin/env python3
"""Trains GPT-2's architecture in plain PyTorch with its attention swapped, and records whether perplexity stays the same: PyTorch's
standard attention and its flash kernel, flashomp by OpenMP and by CUDA, and PyTorch's function served by flashomp (enable()).

    PYTHONPATH=build/release/python bench/language_model.py --preset cpu --out FILE.json [--resume]

A configuration is an attention, a dtype, with or without activation checkpoints, and a seed. Each runs in a process of its own, so
that no peak of memory hides another. Those of a seed start from the same weights and see the same batches. bfloat16 is autocast's.

    --preset cpu       about 1.3 million parameters, N = 512: under 20 minutes on two cores
    --preset gpu       GPT-2's 124 million parameters, N = 1024: about 8 minutes on an H100; flags change what a preset says
    --dry-run          every configuration with a tiny model for 3 steps, in one process, in seconds

The text is the Debian package fortunes' unless --data names files or folders (.gz and .xz are unpacked; a folder with
wiki.train.tokens is WikiText). Tokens are bytes, or with --bpe FOLDER GPT-2's. Perplexity is that of a
token of the validation text: of --eval-windows while the model trains, at the end of all, or of --last-windows.

FILE has Google Benchmark's form and is written anew after each configuration. --resume runs what is missing or failed, on the
same build, machine and PyTorch only; a configuration that was cut off starts again. bench/lm_figures.py makes the
figures of it, bench/lm_tables.py the tables.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys
import time

os.environ.setdefault("FLASHOMP_TUNING", "shipped")  # no table of whoever measures; before flashomp is loaded
sys.dont_write_bytecode = True
import lm_model
import torch
import flashomp

import flashomp_bench
import lm_text

DTYPES, CHECKPOINTS = ("bfloat16", "float32"), ("none", "layer")
MODEL = ("layers", "heads", "dim", "seqlen", "batch", "steps", "warmup", "learning_rate", "eval_every", "eval_windows", "last_windows")
PRESETS = {
    "cpu": {"layers": 6, "heads": 2, "dim": 128, "seqlen": 512, "batch": 2, "steps": 200, "warmup": 20, "learning_rate": 1e-3,
            "eval_every": 20, "eval_windows": 8, "last_windows": 0,
            "device": "cpu", "seeds": [1, 2, 3], "vocabulary": lm_text.BYTES},
    # GPT-2's own table of 50257 rows, also for bytes, so that its parameters and its last layer's cost are GPT-2's.
    "gpu": {"layers": 12, "heads": 12, "dim": 768, "seqlen": 1024, "batch": 8, "steps": 400, "steps_float32": 60, "warmup": 20,
            "learning_rate": 6e-4, "eval_every": 20, "eval_windows": 16, "last_windows": 0, "device": "cuda", "seeds": [1],
            "vocabulary": 50257, "seconds": 540.0},
}
DRY_RUN = {"layers": 2, "heads": 2, "dim": 32, "seqlen": 32, "batch": 2, "steps": 3, "steps_float32": 3, "warmup": 1,
           "eval_every": 2, "eval_windows": 2, "last_windows": 4, "seeds": [1], "vocabulary": lm_text.BYTES}
OF_DEVICE = {"cpu": ("pytorch-math", "pytorch-flash", "flashomp-openmp", lm_model.ENABLED),
             "cuda": ("pytorch-math", "pytorch-flash", "pytorch-efficient", "flashomp-cuda", "flashomp-openmp", lm_model.ENABLED)}
NO_FLOAT32_ON_GPUS = "pytorch-flash"
# Under which key of results.NAMES a row goes, where that is not the attention's own name.
IMPLEMENTATIONS = {("cpu", "pytorch-math"): "pytorch-cpu-math", ("cpu", "pytorch-flash"): "pytorch-cpu-flash",
                   ("cpu", "flashomp-openmp"): "flashomp", ("cuda", "flashomp-openmp"): "flashomp"}


def parse_arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, type=pathlib.Path, help="the file of results")
    parser.add_argument("--preset", choices=tuple(PRESETS), help="cpu unless there is a GPU")
    parser.add_argument("--dry-run", action="store_true", help="a tiny model, 3 steps")
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--data", nargs="+", default=[], help="files and folders of text")
    parser.add_argument("--bpe", type=pathlib.Path, help="a folder with GPT-2's vocab.json and merges.txt: tokens instead of bytes")
    parser.add_argument("--attention", nargs="+", help=f"some of {', '.join(lm_model.ATTENTIONS)}")
    parser.add_argument("--dtype", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--checkpoint", nargs="+", default=list(CHECKPOINTS), choices=CHECKPOINTS,
                        help="layer computes each block again in its backward pass")
    parser.add_argument("--seeds", type=int, nargs="+", help="those after the first run without checkpoints and enable()")
    for name in MODEL:
        parser.add_argument("--" + name.replace("_", "-"), type=float if name == "learning_rate" else int)
    parser.add_argument("--steps-float32", type=int, help="of float32, where that is to be fewer")
    parser.add_argument("--vocabulary", type=int, help="rows of the embedding, at least as many as there are tokens")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--processes", choices=("each", "one"), help="a process for each configuration, or one for all")
    parser.add_argument("--resume", action="store_true", help="keep the results that FILE has")
    parser.add_argument("--seconds", type=float, help="start no configuration after this many")
    return parser.parse_args(words)


def settled(arguments):
    """The arguments with what the preset and the dry run say where nothing was given. Raises BadInput."""
    device = arguments.device or (None if arguments.preset else "cuda" if torch.cuda.is_available() else "cpu")
    preset = PRESETS[arguments.preset or ("gpu" if device == "cuda" else "cpu")]
    said = {"processes": "each", "seconds": float("inf"), "steps_float32": None} | preset
    if arguments.dry_run:
        said |= DRY_RUN | {"processes": "one"} | ({} if torch.cuda.is_available() else {"device": "cpu"})
    for name, value in said.items():
        if getattr(arguments, name, None) is None:
            setattr(arguments, name, value)
    arguments.attention = arguments.attention or [
        name for name in OF_DEVICE[arguments.device] if name != "flashomp-cuda" or "cuda" in backends()]
    for name in arguments.attention:
        if name not in OF_DEVICE[arguments.device]:
            raise lm_text.BadInput(f"--attention was {name}; allowed on {arguments.device} are "
                                   f"{', '.join(OF_DEVICE[arguments.device])}.")
    if "flashomp-cuda" in arguments.attention and "cuda" not in backends():
        raise lm_text.BadInput("--attention was flashomp-cuda, but this build of flashomp has no CUDA backend; allowed are the others.")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise lm_text.BadInput("--device was cuda, but PyTorch finds no GPU; allowed is cpu.")
    for name in (*MODEL, "threads"):
        if getattr(arguments, name) <= 0 and name != "last_windows":
            raise lm_text.BadInput(f"--{name.replace('_', '-')} was {getattr(arguments, name)}; it must be larger than 0.")
    if arguments.dim % arguments.heads:
        raise lm_text.BadInput(f"--dim was {arguments.dim}; it must be a multiple of --heads, {arguments.heads}.")
    return arguments


def backends():
    return flashomp._core.build_info["backends"]


def configurations_of(arguments):
    """All that is asked for, what tells most first."""
    for seed in arguments.seeds:
        for checkpoint in arguments.checkpoint:
            for dtype in arguments.dtype:
                for attention in arguments.attention:
                    is_first = seed == arguments.seeds[0]
                    if not is_first and (checkpoint != "none" or attention == lm_model.ENABLED):
                        continue
                    if (arguments.device, dtype, attention) == ("cuda", "float32", NO_FLOAT32_ON_GPUS):
                        continue
                    one = {name: getattr(arguments, name) for name in (*MODEL, "vocabulary", "device")}
                    if dtype == "float32" and arguments.steps_float32:
                        one["steps"] = arguments.steps_float32
                    yield one | {"attention": attention, "dtype": dtype, "checkpoint": checkpoint, "seed": seed}


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "?"


def context_of(arguments, corpus, tokens):
    """Date, machine, build and versions under the names that `flashomp bench` has for them, and the text."""
    build = flashomp._core.build_info
    context = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "host_name": platform.node(),
        "cpu": cpu_name(), "num_cpus": len(os.sched_getaffinity(0)), "load_avg": list(os.getloadavg()),
        "flashomp_version": build["version"], "flashomp_commit": build["commit"], "flashomp_compiler": build["compiler"],
        "flashomp_flags": build["flags"], "flashomp_backends": build["backends"], "flashomp_host_isa": flashomp.host_isa(),
        "flashomp_threads": str(arguments.threads), "torch": torch.__version__, "python": platform.python_version(),
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(), "command": " ".join(sys.argv)}
    if arguments.device == "cuda":
        major, minor = torch.cuda.get_device_capability()
        context |= {"flashomp_device_0": f"{torch.cuda.get_device_name()}, compute capability {major}.{minor}",
                    "cuda": torch.version.cuda, "cudnn": str(torch.backends.cudnn.version())}
    train, validation, vocabulary = tokens
    return context | {"text": corpus.description() | {
        "tokens": "GPT-2's byte-pair encoding" if arguments.bpe else "bytes", "kinds_of_tokens": vocabulary,
        "train_tokens": len(train), "validation_tokens": len(validation)}}


def row_of(configuration, found):
    """A row in Google Benchmark's form."""
    one = configuration
    shape = f"b{one['batch']}_h{one['heads']}_n{one['seqlen']}_d{one['dim'] // one['heads']}_causal"
    run = f"training step/{one['dtype']}/{shape}/real_time"
    return {"name": f"{run}_median", "run_name": run, "run_type": "aggregate", "aggregate_name": "median",
            "implementation": IMPLEMENTATIONS.get((one["device"], one["attention"]), one["attention"]), "label": one["attention"], "direction": "training step", "shape": shape,
            "configuration": configuration, "load_average": os.getloadavg()[0]} | found


def of_children(groups, arguments):
    """(configuration, its results) as processes finish them; a process that dies gives its configuration an error."""
    program = [sys.executable, str(pathlib.Path(lm_model.__file__).with_name("lm_training.py"))]
    start = time.monotonic()
    for group in groups:
        if time.monotonic() - start > arguments.seconds:
            print(f"stopped: {arguments.seconds:g} s are over; --resume goes on.", flush=True)
            return
        asked = {"configurations": group, "threads": arguments.threads, "data": arguments.data,
                 "bpe": str(arguments.bpe) if arguments.bpe else None}
        with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            # A process may die before all is written; that there is no line tells.
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(json.dumps(asked))
                child.stdin.close()
            for configuration in group:
                line = child.stdout.readline()
                if not line:
                    why = f"the process ended with status {child.wait()}"
                    yield configuration, {"error_occurred": True, "error_message": why}
                    break
                yield configuration, json.loads(line)


def is_result(row):
    """Whether --resume keeps a row: what was measured, and memory that ran out."""
    return not row.get("error_occurred") or row["error_message"] == "out of memory"


def old_rows(arguments, context):
    """Rows that FILE has, and the context that both runs share. Raises BadInput."""
    if not arguments.out.exists():
        return [], context
    if not arguments.resume:
        raise lm_text.BadInput(f"--out was {arguments.out}, which is there already; allowed are another file and --resume.")
    try:
        old = json.loads(arguments.out.read_text())
        before, rows = old["context"], old["benchmarks"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise lm_text.BadInput(f"--out was {arguments.out}, which cannot be read as results ({error}); "
                               "name another file.") from error
    if why := flashomp_bench.difference(before, context, arguments.out):
        raise lm_text.BadInput(why)
    if before.get("text") != context["text"] and before["text"]["sha256"] != context["text"]["sha256"]:
        raise lm_text.BadInput(f"--resume was given with {arguments.out}, whose text is {before['text']['source']}; allowed is the "
                               "same text.")
    if context["command"] not in before["command"]:
        before["command"] += f"; {context['command']}"
    return [row for row in rows if is_result(row)], before


def expect_writable(path):
    """Raises BadInput where FILE could not be written once the first configuration has finished."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        probe = path.with_name(path.name + ".part")
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise lm_text.BadInput(f"--out was {path}, which cannot be written ({error.strerror}); it must be a file in a folder that is "
                               "writable.") from error


def report(row, number, count):
    one = row["configuration"]
    words = (f"{row['error_message']}" if "error_message" in row else
             f"perplexity {row['perplexity']:.4f}, {row['tokens_per_second']:.0f} tokens/s, {row['peak_bytes'] / 2**20:.0f} MiB")
    checkpoints = "with checkpoints" if one["checkpoint"] == "layer" else "without checkpoints"
    print(f"{number}/{count} {one['attention']}, {one['dtype']}, {checkpoints}, seed {one['seed']}: {words}", flush=True)


def run(arguments):
    arguments = settled(arguments)
    corpus = lm_text.read_corpus(arguments.data)
    tokens = lm_text.tokens_of(corpus, arguments.seqlen, arguments.bpe)
    if arguments.vocabulary < tokens[2]:
        raise lm_text.BadInput(f"--vocabulary was {arguments.vocabulary}; with these tokens it must be {tokens[2]} or more.")
    expect_writable(arguments.out)
    rows, context = old_rows(arguments, context_of(arguments, corpus, tokens))
    there = [row["configuration"] for row in rows]
    asked = list(configurations_of(arguments))
    missing = [one for one in asked if one not in there]
    groups = [[one] for one in missing] if arguments.processes == "each" else [missing] if missing else []
    for configuration, found in of_children(groups, arguments):
        rows.append(row_of(configuration, found))
        left = sum(one not in [row["configuration"] for row in rows] for one in asked)
        context["stopped"] = {"configurations_asked_for": len(asked), "configurations_left": left}
        if not left:
            del context["stopped"]
        flashomp_bench.write_rows(arguments.out, context, rows)
        report(rows[-1], len(asked) - left, len(asked))
    return rows


def main():
    arguments = parse_arguments()
    try:
        rows = run(arguments)
    except lm_text.BadInput as error:
        print(f"language_model.py: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(0 if all(map(is_result, rows)) else 1)


if __name__ == "__main__":
    main()
