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


def write(path, context, rows):
    """The form of `flashomp bench --out`, with this script's own command."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    data = {"context": context | {"command": " ".join(sys.argv)}, "benchmarks": rows}
    temporary.write_text(json.dumps(data, indent=1) + "\n")
    temporary.replace(path)
