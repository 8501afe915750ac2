"""`flashomp bench` in a process of its own, and the file of what several of them found."""

import json
import os
import pathlib
import subprocess
import sys


class Failed(RuntimeError):
    """What the program said when it ended with an error."""


def output_of(command, environment):
    """What a command prints; its notes go where this program's go."""
    done = subprocess.run(command, capture_output=True, text=True, env={"FLASHOMP_TUNING": "shipped"} | os.environ | environment)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}: status {done.returncode}: {done.stderr.strip() or done.stdout.strip()[-500:]}")
    return done.stdout


def measure(program, *options, **environment):
    """(context, rows) of one `flashomp bench` on the host; every row was checked against the reference."""
    data = json.loads(output_of([program, "bench", *options, "--device", "host", "--json"], environment))
    return data["context"], data["benchmarks"]


def write_rows(path, context, rows):
    """Google Benchmark's form; the file is there as a whole or as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(json.dumps({"context": context, "benchmarks": rows}, indent=1) + "\n")
    temporary.replace(path)


def write(path, context, rows):
    """The form of `flashomp bench --out`, with this script's own command."""
    write_rows(pathlib.Path(path), context | {"command": " ".join(sys.argv)}, rows)


def difference(old, new, path):
    """Why --resume adds no rows: those of one file are from one build on one machine beside one PyTorch."""
    def of_these(context):
        return {key: value for key, value in context.items() if key.startswith("flashomp_device_") or key in (
            "flashomp_commit", "flashomp_compiler", "flashomp_flags", "flashomp_threads", "cpu", "num_cpus", "torch", "cuda",
            "cudnn", "torch_cpu_capability", "isa", "layouts", "inputs", "transformers", "model")}
    before, now = of_these(old), of_these(new)
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            return (f"--resume was given with {path}, whose {key} is '{before.get(key)}'; allowed is this run's, "
                    f"'{now.get(key)}'.")
    return None
