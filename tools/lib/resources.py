"""What kernels need, beside what a file says they needed: so that a change which makes one spill, or grow, is seen.

A file has comments and a line for each kernel: architecture, numbers, the kernel's name.
"""

# offload::Pass, in its order: symbols have a pass as its number.
PASSES = ("forward", "backward_query", "backward_key", "backward_bias", "backward_sink",
          "backward_start", "backward_once", "backward_end")


def read(path, count):
    """({(architecture, kernel): numbers}, comments): `count` numbers each."""
    limits, comments = {}, []
    for line in path.read_text().splitlines() if path.exists() else []:
        if line.startswith("#"):
            comments.append(line)
        elif line:
            arch, *numbers, kernel = line.split(None, count + 1)
            limits[arch, kernel] = tuple(int(number) for number in numbers)
    return limits, comments


def text(found, comments=()):
    """The file's text."""
    lines = [f"{arch:8}" + "".join(f"{number:>6}" for number in numbers) + f"  {kernel}"
             for (arch, kernel), numbers in sorted(found.items())]
    return "".join(line + "\n" for line in [*comments, *lines])


def growth(found, limits, names):
    """A sentence for each number that is above its limit and each kernel that has none. `names` are the numbers'."""
    problems = []
    for (arch, kernel), numbers in sorted(found.items()):
        limit = limits.get((arch, kernel))
        if limit is None:
            problems.append(f"{arch} {kernel} is not recorded")
            continue
        problems += [f"{arch} {kernel} has {now} {name}; recorded are {most}"
                     for name, now, most in zip(names, numbers, limit) if now > most]
    return problems
