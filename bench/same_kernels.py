#!/usr/bin/env python3
"""Whether two builds have the same GPU kernels, instruction for instruction: bench/same_kernels.py OLD NEW [--counts | --ptx].

OLD and NEW are libflashomp.so of builds with the CUDA backend; with --ptx, libraries with the PTX of g++, whose functions are compared as
text but for what is a comment: where a line came from is one. Where a parameter lies among the parameters does not count. With
--counts kernels are the same that have as many of each kind of instruction: nvcc may give others a new order and other registers where
only a structure has a new member, which a measurement then has to show to be nothing. cuobjdump of
the CUDA toolkit must be on the PATH, or named in CUOBJDUMP. Prints each kernel that only one of them has, or has so; status 1: there is
one, 2: wrong use. A change of headers that both backends include, and that gives the same kernels, alters no result of the CUDA
backend: ages.SAME_KERNELS has such changes.
"""

import collections
import hashlib
import os
import pathlib
import re
import subprocess
import sys

# Where a parameter is; what a comment says, the instruction's bits among that, which have the place again.
PLACE_OR_COMMENT = re.compile(r"(?<=c\[0x0\]\[)0x[0-9a-f]+(?=\])|/\*.*?\*/")
FILE_SCOPE = re.compile(r"(\d+)(_GLOBAL__N__)")


def without_file_scope(name):
    """A mangled name without the one that nvcc makes of a file's path and contents for what only that file has."""
    found = FILE_SCOPE.search(name)
    return name[:found.start()] + name[found.start(2) + int(found[1]):] if found else name


def kind_of(instruction):
    """Its name, without predicate and operands: "@!P0 FADD R1, R1, R2" is FADD."""
    return next((word for word in instruction.split() if not word.startswith("@")), "")


def kernels(lines, counts=False):
    """{(architecture, name, digest of the instructions): how often} of cuobjdump's output."""
    found = collections.Counter()
    architecture = name = instructions = None

    def end():
        if name is not None:
            compared = sorted(map(kind_of, instructions)) if counts else instructions
            found[architecture, name, hashlib.sha256("\n".join(compared).encode()).hexdigest()[:12]] += 1

    for line in lines:
        words = line.split()
        if words[:2] == ["arch", "="]:
            end()
            architecture, name = words[2], None
        elif words[:2] == ["Function", ":"]:
            end()
            name, instructions = without_file_scope(words[2]), []
        elif name is not None and line.lstrip().startswith("/*"):
            instructions.append(PLACE_OR_COMMENT.sub("", " ".join(words)))
    end()
    return found


def ptx_functions(data):
    """{("ptx", name, digest of the text): how often} of the modules in a library, each a text that a NUL ends."""
    found = collections.Counter()
    for module in re.findall(rb"// BEGIN PREAMBLE[^\0]*", data):
        for name, body in re.findall(r"^// BEGIN (?:GLOBAL )?FUNCTION DEF: (\S+)\n(.*?)(?=^// BEGIN |\Z)", module.decode(), re.DOTALL | re.MULTILINE):
            code = [line.strip() for line in body.splitlines() if line.strip() and not line.lstrip().startswith("//")]
            found["ptx", name, hashlib.sha256("\n".join(code).encode()).hexdigest()[:12]] += 1
    return found


def kernels_of(library, counts):
    with subprocess.Popen([os.environ.get("CUOBJDUMP", "cuobjdump"), "-sass", library], stdout=subprocess.PIPE, text=True) as process:
        found = kernels(process.stdout, counts)
    if process.returncode != 0 or not found:
        sys.exit(f"same_kernels: {library} has no CUDA kernels that cuobjdump can read.")
    return found


def functions_of(library):
    found = ptx_functions(pathlib.Path(library).read_bytes())
    if not found:
        sys.exit(f"same_kernels: {library} has no PTX of g++.")
    return found


def main():
    libraries = [word for word in sys.argv[1:] if word not in ("--counts", "--ptx")]
    if len(libraries) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    if "--ptx" in sys.argv:
        old, new = map(functions_of, libraries)
    else:
        old, new = (kernels_of(library, "--counts" in sys.argv) for library in libraries)
    for which, more in (("only OLD", old - new), ("only NEW", new - old)):
        for architecture, name, digest in sorted(more):
            print(f"{which} has {architecture} {name} as {digest}")
    what = "functions" if "--ptx" in sys.argv else "kernels"
    print(f"{sum((old & new).values())} {what} are the same, of {sum(old.values())} and {sum(new.values())}")
    return 0 if old == new else 1


if __name__ == "__main__":
    sys.exit(main())
