#!/usr/bin/env python3
"""tidy_once.py CLANG_TIDY BUILD FILE...: clang-tidy over every way in which BUILD compiles the files.

A way that passed leaves a mark in ~/.cache/flashomp/tidy, named by all that clang-tidy reads: it is not checked again, in
another checkout neither. A file that is compiled for several instruction sets differs in FLASHOMP_PRODUCTS only as far as
its text goes, so one of each is enough.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
PASSED = CACHE / "flashomp" / "tidy"  # beside what ccache keeps


def ways(build, files):
    """Entries of compile_commands.json, those first that take longest."""
    wanted = {str(pathlib.Path(file).resolve()) for file in files}
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        products = re.search(r"-DFLASHOMP_PRODUCTS=(\w+)", entry["command"])
        if entry["file"] in wanted:
            found.setdefault((entry["file"], products and products.group(1)), entry)
    return sorted(found.values(), key=lambda entry: "FLASHOMP_PRODUCTS" not in entry["command"])


def settings_of(file):
    """What the .clang-tidy says that counts for a file."""
    return next(path for folder in pathlib.Path(file).parents if (path := folder / ".clang-tidy").exists()).read_bytes()


def read_by_tidy(entry, version):
    """A digest of what clang-tidy reads of an entry; None where it does not compile."""
    command = shlex.split(entry["command"])
    del command[command.index("-o"):command.index("-o") + 2]
    text = subprocess.run([part for part in command if part != "-c"] + ["-E", "-C"], cwd=entry["directory"],
                          capture_output=True)
    read = (" ".join(command).encode() + text.stdout).replace(bytes(ROOT), b".")  # wherever the checkout is
    digest = hashlib.sha256(version + settings_of(entry["file"]) + read)
    return digest.hexdigest() if text.returncode == 0 else None


def check(tidy, build, number, entry, version):
    """Whether clang-tidy found nothing, and what it said."""
    digest = read_by_tidy(entry, version)
    if digest and (PASSED / digest).exists():
        return True, ""
    folder = build / "tidy" / str(number)  # with this entry alone: clang-tidy would take all of a file's
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "compile_commands.json").write_text(json.dumps([entry]))
    run = subprocess.run([tidy, "-p", folder, "--quiet", entry["file"]], capture_output=True, text=True)
    if run.returncode == 0 and digest:
        (PASSED / digest).touch()
    return run.returncode == 0, run.stdout


def main(tidy, build, *files):
    build = pathlib.Path(build).resolve()
    PASSED.mkdir(parents=True, exist_ok=True)
    version = subprocess.check_output([tidy, "--version"])
    entries = ways(build, files)
    good = True
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = [pool.submit(check, tidy, build, number, entry, version) for number, entry in enumerate(entries)]
        for run in runs:
            passed, output = run.result()
            good = good and passed
            if output:
                print(output, flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
