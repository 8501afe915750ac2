"""Which of the committed results are older than the code that they measure.

MEASURES names that code for each file of results, as git's path specifications; a file may also name the paths itself, as
"measures" in its context. now() compares them with the working tree, by git. What it finds is kept in bench/ages.json, so that
pages are the same where git, or a part of its history, is not there; problems() says where that file is out of date.
"""

import fnmatch
import functools
import json
import pathlib
import re
import subprocess

import results

FILE = results.ROOT / "bench" / "ages.json"

# An exclusion holds for all paths of a list, wherever it stands.
ALGORITHM = (":(glob)offload/*.hpp", "offload/tile/element.hpp", "offload/tile/machine.hpp", "offload/tile/math.hpp",
             "include/flashomp/dropout.hpp")
# Block sizes, crews, where tensors and scratch memory are, the tables that are shipped.
SCHEDULE = ("src/plan/", "src/dispatch/", "src/tuning/shipped/", "src/tuning/table.cpp")
HOST = ALGORITHM + SCHEDULE + (
    "src/core/host_threads.cpp",
    "offload/CMakeLists.txt", "offload/launch_host.cpp", "offload/host_isas.cpp",
    "offload/tile/finite_check.hpp", "offload/tile/host.hpp", "offload/tile/host_few.hpp", "offload/tile/host_tile.hpp",
    "offload/tile/lanes.hpp", "offload/tile/matrix_product.hpp", "offload/tile/rows_ahead.hpp",
    "offload/tile/team_memory.hpp") + tuple(
        f":(exclude)offload/{name}.hpp" for name in ("device_count", "region", "tensor_shapes"))
PAIRS = ("offload/tile/host_pairs.hpp", "offload/tile/terms.hpp")
EVERYWHERE = ("offload/", ":(exclude)offload/resources.txt", "include/flashomp/dropout.hpp", "cmake/FlashompOffload.cmake",
              "cmake/hopper/") + SCHEDULE
OPENMP = EVERYWHERE + tuple(f":(exclude)offload/{name}" for name in (
    "launch_host.cpp", "host_isas.cpp", "tile/host*", "tile/lanes.hpp", "tile/matrix_product.hpp", "tile/rows_ahead.hpp",
    "tile/terms.hpp"))
CUDA = ("cuda/", ":(exclude)cuda/resources.txt", ":(exclude)cuda/README.md", ":(exclude)offload/region.hpp",
        "cmake/FlashompCuda.cmake") + ALGORITHM + SCHEDULE + tuple(f"offload/tile/{name}.hpp" for name in (
            "finite_check", "panels", "plain", "ptx", "team_memory", "tensor", "tensor_tile", "tf32", "two_stages", "visible",
            "warp_products", "warp_tile"))
SMALL_CALLS = ("src/api/",)  # checks of arguments, which take microseconds

# Name of the code, its paths, the files of results that measure it: the first pattern that fits counts.
MEASURES = (
    ("small calls of the CUDA backend", CUDA + SMALL_CALLS, ("h200-cuda-launch.json",)),
    ("the CUDA backend", CUDA, ("h200-cuda*",)),
    ("small calls of the OpenMP backend on a GPU", OPENMP + SMALL_CALLS, ("h200-openmp-launch.json",)),
    ("the OpenMP backend on a GPU and on its host", EVERYWHERE, ("h200-grid*",)),
    ("the OpenMP backend on a GPU", OPENMP, ("h200-*",)),
    ("the host machine on AVX2", HOST, ("host-instructions.json", "host-pytorch-avx2.json")),
    ("the host machine on AVX-512", HOST, ("host.json", "host-openmp.json", "host-reference.json", "host-traffic.json")),
    ("the host machine on AVX-512, with pairs of bfloat16", HOST + PAIRS + ("offload/tile/host_dpbf16.hpp",),
     ("host-pytorch-zen5.json", "host-pytorch-amd.json", "host-scaling.json")),
    ("the host machine on AVX-512 and AMX", HOST + PAIRS + ("offload/tile/host_amx.hpp", "offload/tile/host_dpbf16.hpp"),
     ("host*",)),
)


def measured(name, context=None):
    """(name of the code, paths) of a file of results."""
    if context and "measures" in context:
        return "what the file itself names", tuple(context["measures"])
    return next((words, paths) for words, paths, patterns in MEASURES
                if any(fnmatch.fnmatch(name, pattern) for pattern in patterns))


def git(*words, folder=results.ROOT):
    """git's answer, or None where it has none."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@functools.lru_cache(maxsize=None)
def why_unknown(folder=results.ROOT):
    """A sentence where git cannot tell ages, else None."""
    top = git("rev-parse", "--show-toplevel", folder=folder)
    if top is None:
        return "git or its repository is not here"
    if pathlib.Path(top).resolve() != pathlib.Path(folder).resolve():
        return "the repository that git finds here is another one"
    if git("rev-parse", "--is-shallow-repository", folder=folder) != "false":
        return "this clone has no history (git calls it shallow)"
    return None


COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*")', re.DOTALL)


def code_of(text):
    """C++ without comments, and without what white space is where."""
    return COMMENT_OR_TEXT.sub(lambda found: found[1] or " ", text).split()


def is_other_code(commit, name, folder):
    """Whether a file that changed since a commit did so in more than comments and line breaks."""
    path = pathlib.Path(folder) / name
    then = git("show", f"{commit}:{name}", folder=folder)
    if path.suffix not in (".hpp", ".cpp", ".cuh", ".cu") or then is None or not path.exists():
        return True
    return code_of(then) != code_of(path.read_text())


@functools.lru_cache(maxsize=None)
def age(commit, paths, folder=results.ROOT):
    """{"older": whether `paths` changed since `commit`, None where that cannot be known, …}."""
    if commit.endswith("-dirty"):
        return {"older": None, "why": "the program was built from changes that no commit has"}
    if git("cat-file", "-e", f"{commit}^{{commit}}", folder=folder) is None:
        return {"older": None, "why": "that commit is not in this repository"}
    changed = [name for name in git("diff", "--name-only", commit, "--", *paths, folder=folder).splitlines()
               if is_other_code(commit, name, folder)]
    if not changed:
        return {"older": False}
    return {"older": True, "commits": int(git("rev-list", "--count", f"{commit}..HEAD", "--", *paths, folder=folder)),
            "files": len(changed)}


def commit_of(path):
    """The commit that a file of results was recorded with, and its context; None where it names none."""
    if path.suffix == ".jsonl":
        with path.open() as lines:
            context = json.loads(next(lines))
        return context.get("commit"), context
    context = json.loads(path.read_text()).get("context", {})
    return context.get("flashomp_commit"), context


def recorded_files(folder=results.RESULTS):
    """{name: (commit, paths)} of all files that name a commit."""
    found = {}
    for path in sorted([*folder.glob("*.json"), *folder.glob("*.jsonl")]):
        commit, context = commit_of(path)
        if commit:
            found[path.name] = commit, measured(path.name, context)[1]
    return found


def now():
    """What FILE should hold."""
    return {"counted_at": (git("rev-parse", "--short=12", "HEAD") or "?"),
            "files": {name: {"commit": commit} | age(commit, paths) for name, (commit, paths) in recorded_files().items()}}


def recorded():
    """What FILE holds."""
    return json.loads(FILE.read_text()) if FILE.exists() else {"counted_at": "?", "files": {}}


def update():
    """Writes FILE anew where git can tell; returns why it cannot, or None."""
    why = why_unknown()
    if why is None:
        FILE.write_text(json.dumps(now(), indent=1) + "\n")
    return why


def problems():
    """Sentences about what FILE says and git does not. Empty, too, where git cannot tell."""
    if why_unknown():
        return []
    said, found = recorded(), now()["files"]
    wrong = []
    for name, is_now in found.items():
        was = said["files"].get(name)
        if was is None or was["commit"] != is_now["commit"]:
            wrong.append(f"bench/ages.json does not know {name} of commit {is_now['commit']}")
        elif was["older"] != is_now["older"]:
            words = {True: "older than the code", False: "as new as the code", None: "of an unknown age"}
            wrong.append(f"{name} is {words[is_now['older']]}, the pages call it {words[was['older']]}")
    counts = any(one["older"] for one in said["files"].values())
    if counts and git("merge-base", "--is-ancestor", said["counted_at"], "HEAD") is None:
        wrong.append(f"the pages count commits up to {said['counted_at']}, which is not in HEAD's history")
    return wrong


def of(path):
    """Age of one file as FILE has it."""
    return recorded()["files"].get(pathlib.Path(path).name, {"older": None, "why": "its commit is not in bench/ages.json"})


def is_current(paths):
    """Whether none of the files is older than the code, as far as is known."""
    return all(of(path)["older"] is False for path in paths)


def mark(path):
    """A sentence about a file that is not known to be as new as the code, else nothing."""
    one = of(path)
    if one["older"] is False:
        return ""
    if one["older"] is None:
        return f"**Perhaps older than the code**: {one['why']}."
    until = recorded()["counted_at"][:7]
    commits = {0: f"a change after {until}", 1: f"one commit up to {until}"}.get(one["commits"],
                                                                                f"{one['commits']} commits up to {until}")
    return f"**Older than the code**: what it measures has changed since {one['commit'][:7]}, in {commits}."


def explanation():
    """Lines of Markdown: what each group of files measures."""
    lines = ["| files | measure | which is, as git names paths |", "| --- | --- | --- |"]
    for words, paths, patterns in MEASURES:
        here = sorted({path.name for pattern in patterns for path in results.RESULTS.glob(pattern)
                       if path.suffix in (".json", ".jsonl") and measured(path.name)[0] == words})
        if here:
            unique = " ".join(f"`{path}`" for path in dict.fromkeys(paths))
            lines.append(f"| {', '.join(here)} | {words} | {unique} |")
    return lines
