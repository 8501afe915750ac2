"""Which of the committed results are older than the code that they measure.

MEASURES names that code for each file of results, as git's path specifications; a file may also name the paths itself, as
"measures" in its context. now() compares them with the working tree, by git. What it finds is kept in bench/ages.json, so that
pages are the same where git, or a part of its history, is not there; problems() says where that file is out of date.
"""

import fnmatch
import functools
import hashlib
import json
import pathlib
import re
import subprocess

import results

FILE = results.ROOT / "bench" / "ages.json"

# An exclusion holds for all paths of a list, wherever it stands.
ALGORITHM = (":(glob)offload/algorithm/*.hpp", "offload/launch/launch.hpp", "offload/launch/pass.hpp",
             "include/flashomp/dropout.hpp", "include/flashomp/score_pair.hpp")
# Block sizes, crews, where tensors and scratch memory are, the tables that are shipped. No set measures append().
SCHEDULE = ("src/plan/", "src/dispatch/", ":(exclude)src/dispatch/run_append.cpp", "src/tuning/shipped/", "src/tuning/table.cpp")
# Blocks of packed sequences, and parts that the keys of few queries are cut into.
WITHOUT_PARTS = ":(exclude)src/plan/splits.cpp"
HOST_OF_ALL = ALGORITHM + SCHEDULE + ("src/core/host_threads.cpp", "offload/CMakeLists.txt", "offload/launch/launch_host.cpp",
                               "offload/launch/host_passes.hpp", "offload/host/host_isas.cpp") + tuple(f"offload/host/{name}.hpp" for name in (
    "finite", "host_machine", "host_tile", "lanes", "matrix_product", "merge_on_host", "nonfinite", "rows_ahead"))
HOST = HOST_OF_ALL + (WITHOUT_PARTS,)
# Of calls with fewer queries than a vector has lanes, which no other set has.
FEW_QUERIES = tuple(f"offload/host/{name}.hpp" for name in ("few_queries", "pair_products", "placed_rows", "row_products"))
PAIRS = ("offload/host/pairs.hpp", "offload/host/terms.hpp")
EVERYWHERE = ("offload/", ":(exclude)offload/resources.txt", "include/flashomp/dropout.hpp", "include/flashomp/score_pair.hpp",
              "cmake/FlashompOffload.cmake", "cmake/hopper/", "cmake/nvptx/") + SCHEDULE
WITHOUT_HOST = ":(exclude)offload/host/"
OPENMP = EVERYWHERE + (WITHOUT_HOST, ":(exclude)offload/launch/launch_host.cpp")
CUDA = ("cuda/", ":(exclude)cuda/resources.txt", ":(exclude)cuda/README.md", "cmake/FlashompCuda.cmake") + ALGORITHM + SCHEDULE + (
    "offload/plain/", "offload/launch/tensor_map.cpp", "offload/launch/tensor_map.hpp", "offload/launch/tile_config.hpp",
    "offload/launch/keys.hpp", "offload/launch/tensor_shapes.hpp") + tuple(f"offload/nvidia/{name}.hpp" for name in (
        "latent_machine", "masked_tensor_machine", "panels", "ptx", "tensor_machine", "tensor_tile", "tf32_machine", "two_stages", "warp_products", "warp_tile"))
# Of its few queries, whose parts the kernel merges.
CUDA_PARTS = ("offload/launch/parts.hpp", "offload/launch/few_queries_shapes.hpp") + tuple(
    f"offload/nvidia/{name}.hpp" for name in ("few_queries_backward", "few_queries_crew", "few_queries_forward", "few_queries_keys", "few_queries_softmax", "few_queries_tile", "lanes",
                                          "last_crew"))
SMALL_CALLS = ("src/api/", ":(exclude)src/api/append.cpp")  # checks of arguments, which take microseconds
PYTHON = ("python/flashomp/", "python/src/")

# Name of the code, its paths, the files of results that measure it: the first pattern that fits counts.
MEASURES = (
    ("a GPT trained in PyTorch on a GPU, by both backends", CUDA + EVERYWHERE + PYTHON, ("h?00-language-model-pytorch.json",)),
    ("a GPT trained in PyTorch on the host machine", HOST + PAIRS + ("offload/host/dpbf16.hpp",) + PYTHON,
     ("host-language-model-pytorch.json",)),
    ("small calls of the CUDA backend", CUDA + SMALL_CALLS, ("h?00-cuda-launch.json", "h?00-cuda-launch-prepared.json")),
    ("the CUDA backend, few queries among others", CUDA + CUDA_PARTS, tuple(f"h?00-cuda-{name}.json" for name in ("cache", "decode", "models"))),
    ("the CUDA backend", CUDA + (WITHOUT_PARTS,), ("h200-cuda*", "h100-cuda*")),
    ("small calls of the OpenMP backend on a GPU", OPENMP + SMALL_CALLS, ("h?00-openmp-launch.json", "h?00-openmp-launch-prepared.json")),
    ("the OpenMP backend on a GPU and on its host", EVERYWHERE, ("h200-grid*",)),
    ("the OpenMP backend on a GPU", OPENMP, ("h200-*", "h100-*")),
    ("attention called from Python, on the host machine on AVX-512 with pairs of bfloat16",
     HOST_OF_ALL + FEW_QUERIES + PAIRS + ("offload/host/dpbf16.hpp",) + SMALL_CALLS + PYTHON, ("host-python.json",)),
    ("the host machine for few queries", HOST_OF_ALL + FEW_QUERIES, ("host-cache*.json",)),
    ("tests of the host machine against the reference", HOST_OF_ALL + FEW_QUERIES + PAIRS + ("offload/host/amx.hpp", "offload/host/dpbf16.hpp"),
     ("host-check-*.json",)),
    ("flashomp::mpi on the host machine", HOST + PAIRS + ("offload/host/amx.hpp", "offload/host/dpbf16.hpp", "src/mpi/"),
     ("host-ring.json", "h100-host-ring.json")),
    ("the host machine on AVX2", HOST, ("host-instructions.json", "host-pytorch-avx2.json")),
    ("the host machine on AVX-512", HOST, ("host.json", "host-openmp.json", "host-reference.json", "host-traffic.json")),
    ("the host machine on AVX-512, with pairs of bfloat16", HOST + PAIRS + ("offload/host/dpbf16.hpp",),
     ("host-pytorch-zen5.json", "host-pytorch-amd.json", "host-scaling.json")),
    ("the host machine on AVX-512 and AMX", HOST + PAIRS + ("offload/host/amx.hpp", "offload/host/dpbf16.hpp"),
     ("host*",)),
)

# Builds with changes that no commit had, where it is known which files had changed.
CHANGED = {"21916f765db3-dirty": ("tools/device_bundle",)}

# Changes of code that the CUDA backend shares or has, which give it the same kernels (bench/same_kernels.py) and the same plans
# (bench/same_plans.py); what plans do not print, heads_together and who is waited for, by reading. Those of cuda/ added kernels of modified
# scores, of dbias and of few queries. Of the 365 kernels of 21916f7 351 are the same, and 14 of the forward pass have as many
# instructions of each kind in another order (--counts). Four of these (bfloat16, head_dim 64, 128 and 256) are in h200-cuda-modified.json of
# 3fdbfbe with scores as they are, at 0.96 to 1.00 of the times in h200-cuda.json, on another card; the others were not measured. After
# 137fe38 the kernels of few queries are others, and those of few rows are gone; all 244 others of sm_90 are the same. File,
# digests (digest_of()) before and after; None: there was no such file.
SAME_KERNELS = {
    ("cuda/CMakeLists.txt", "01eece2b2958", "2308b6ad224b"),
    ("cuda/CMakeLists.txt", "d117205faed6", "2308b6ad224b"),
    ("cuda/absent.cpp", "7cb6f309a361", "9051bbeefbae"),
    ("cuda/backward_hopper.cuh", "2ce0584a2d7c", "8829450acd63"),
    ("cuda/backward_hopper.cuh", "c2cde0521552", "8829450acd63"),
    ("cuda/backward_items.cuh", "019544f95d46", "5578c3ebfd6c"),
    ("cuda/backward_items.cuh", "364833c5174d", "5578c3ebfd6c"),
    ("cuda/backward_wide_key.cuh", "12fa4afadb3c", "3729d61749d3"),
    ("cuda/backward_wide_key.cuh", "60a8c2947341", "3729d61749d3"),
    ("cuda/backward_wide_key_blocks.cuh", None, "737d5ed01d89"),
    ("cuda/backward_wide_query.cuh", "8a37458994b3", "c43b7dfc7858"),
    ("cuda/bias_hopper.cuh", None, "8b2dd5729ec9"),
    ("cuda/bias_kernels.hpp", None, "72275805bac9"),
    ("cuda/bias_tiles.cuh", None, "2869a2b54caf"),
    ("cuda/few_kernels.hpp", None, "f34ddf32de7d"),
    ("cuda/forward_hopper.cuh", "2f2715bc0e24", "3aa50ab5b7bd"),
    ("cuda/forward_hopper.cuh", "51c17623228e", "3aa50ab5b7bd"),
    ("cuda/grid.cuh", "c4f4a8176b6e", "baba01bbd7b3"),
    ("cuda/hopper_items.cuh", "4e3546a308d9", "2b8962abff25"),
    ("cuda/hopper_items.cuh", "7ae735283289", "2b8962abff25"),
    ("cuda/hopper_launch.cuh", None, "c888e24c646a"),
    ("cuda/launch_bias.cu", None, "553c59da9cfe"),
    ("cuda/launch_few.cu", "87ddecf1cc91", "a51a38c58434"),
    ("cuda/launch_few.cu", None, "a51a38c58434"),
    ("cuda/launch_hopper.cu", "2da05de7921c", "d48cb3b1714d"),
    ("cuda/launch_hopper.cu", "bfc2c41054cf", "d48cb3b1714d"),
    ("cuda/launch_hopper.cu", "fecfa540817d", "d48cb3b1714d"),
    ("cuda/launch_tensor.cu", "ba3c111ecbc8", "bf3f29e6248b"),
    ("cuda/tile/block_logits.cuh", None, "34962f302fbe"),
    ("cuda/tile/bulk_copy.cuh", "946401656a13", "e13ec42ca4fa"),
    ("cuda/tile/modified_scores.cuh", "36cbb2c91b92", "2d22f6de380d"),
    ("cuda/tile/modified_scores.cuh", None, "2d22f6de380d"),
    ("offload/algorithm/backward.hpp", "b79242cc6486", "98cc9dcc2513"),
    ("offload/algorithm/mask.hpp", "4e9203ebe84b", "697d03f98f3f"),
    ("offload/algorithm/one_pass.hpp", "26ca187e2c19", "9414d2fbf2ce"),
    ("offload/algorithm/rounded_delta.hpp", None, "477d01cf606e"),
    ("offload/launch/launch.hpp", "827c83f91baf", "fae9801c3cff"),
    ("offload/launch/tensor_shapes.hpp", "bf515b613b3f", "dcbc3a16c070"),
    ("src/plan/launches.cpp", "ac740f4d10df", "a0f4f7f451c4"),
    ("src/plan/machines.cpp", "d147b6449f62", "084105aa527f"),
    ("src/plan/plan.cpp", "8213520c1b3a", "6ee24a499c5a"),
    ("src/plan/registry.cpp", "0b3ffb201612", "f4666e427062"),
}

# Changes of src/plan that alter no plan of a measured call on a GPU but those of h200-cuda-modified.json and of one query
# (bench/same_plans.py), and none on the host, by reading: they are about passes on GPUs, and about when a call is known to be tuned. And of
# offload/, which added a library and what it is built of: after bf9a673 its functions have other names and the same instructions
# (bench/same_kernels.py --ptx); what was recorded before has other instructions than offload/launch/launch_tensor.cpp has now.
# gpu_few_queries.cpp of bf9a673 plans other parts for one query on OpenMP: no committed set of f8c07b4 to bf9a673 has such calls.
SAME_PLANS = {
    ("offload/CMakeLists.txt", "5dd7f56003fd", "4ad1590ab13d"),
    ("offload/launch/few_queries_shapes.hpp", None, "f2609dfb9f71"),
    ("offload/launch/kernel_libraries.cpp", "24fe50123c0f", "b62df1193d28"),
    ("offload/launch/kernel_libraries.cpp", "a501bfbbe37f", "b62df1193d28"),
    ("offload/launch/launch.hpp", "91485693bd93", "fae9801c3cff"),
    ("offload/launch/launch.hpp", "df6aea5dd409", "fae9801c3cff"),
    ("offload/launch/launch_few.cpp", "90ad6fc6169f", "ead23bb614a7"),
    ("offload/launch/launch_few.cpp", None, "ead23bb614a7"),
    ("src/plan/CMakeLists.txt", "1464732ae3f4", "7e7f786c0dbf"),
    ("src/plan/CMakeLists.txt", "f888f5d21f6c", "7e7f786c0dbf"),
    ("src/plan/gpu_few_queries.cpp", "61bd2c0ee086", "4d5c428222e3"),
    ("src/plan/gpu_few_queries.cpp", None, "4d5c428222e3"),
    ("src/plan/gpu_few_queries.hpp", None, "98d05f3e62a6"),
    ("src/plan/machines.cpp", "ccd41bb70c26", "084105aa527f"),
    ("src/plan/machines.hpp", "da2d0ffef0e0", "ee1845dc3c37"),
    ("src/plan/plan.cpp", "75eefe137af4", "6ee24a499c5a"),
    ("src/plan/plan.hpp", "069c8971ac91", "bb6887b8d414"),
    ("src/plan/registry.cpp", "2da64d966754", "f4666e427062"),
    ("src/plan/registry.cpp", "736b456755c6", "f4666e427062"),
    ("src/plan/registry.hpp", "03c1cfb6b7c6", "a53fd128f33e"),
    ("src/plan/splits.cpp", "a9cde59cea3f", "26b685f1503a"),
}


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


@functools.lru_cache(maxsize=None)
def moved(commit, folder):
    """{name now: name then} of the files that moved since a commit."""
    lines = (git("diff", "-M", "--diff-filter=R", "--name-status", commit, folder=folder) or "").splitlines()
    return {new: old for _, old, new in (line.split("\t") for line in lines)}


COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|^#include "[^\n]*|("(?:\\.|[^"\\\n])*")', re.DOTALL | re.MULTILINE)


def code_of(text):
    """C++ without comments, without what white space is where, and without the names of the headers, which count themselves."""
    return COMMENT_OR_TEXT.sub(lambda found: found[1] or " ", text).split()


def digest_of(text):
    """Of code_of()."""
    return hashlib.sha256(" ".join(code_of(text)).encode()).hexdigest()[:12]


def rules_of(text, names=(), of_host=True):
    """CMake without lines that are comments, with new names (pairs of old and new) for the files that it lists. of_host: with the lines
    that name an instruction set of the host machine and its options."""
    for old, new in names:
        text = re.sub(rf"(?<![\w./]){re.escape(old)}(?![\w.])", new, text)
    left_out = r"^\s*#.*" if of_host else r"^\s*(#|flashomp_host_isa\().*"
    return re.sub(left_out, "", text, flags=re.MULTILINE).split()


def known_of(paths):
    """Changes that are known to alter no result of code at these paths."""
    return SAME_KERNELS | SAME_PLANS if "cuda/" in paths and "offload/" not in paths else SAME_PLANS


def is_other_code(commit, name, folder, of_host=True, known=frozenset()):
    """Whether a file that changed since a commit did so in more than comments, line breaks and where files are, and not as `known` has
    it. of_host: as for rules_of()."""
    path, names = pathlib.Path(folder) / name, moved(commit, folder)
    then = git("show", f"{commit}:{names.get(name, name)}", folder=folder)
    if not path.exists():
        return True
    text = path.read_text()
    if then is None:
        return (name, None, digest_of(text)) not in known
    if path.name == "CMakeLists.txt":
        here = name.removesuffix(path.name)
        renamed = [(old.removeprefix(here), new.removeprefix(here)) for new, old in names.items() if old.startswith(here)]
        is_same = (name, digest_of(then), digest_of(text)) in known
        return rules_of(text, (), of_host) != rules_of(then, renamed, of_host) and not is_same
    if path.suffix not in (".hpp", ".cpp", ".cuh", ".cu"):
        return True
    return code_of(then) != code_of(text) and (name, digest_of(then), digest_of(text)) not in known


@functools.lru_cache(maxsize=None)
def age(commit, paths, folder=results.ROOT):
    """{"older": whether `paths` changed since `commit`, None where that cannot be known, …}."""
    if commit.endswith("-dirty"):
        measures = (git("ls-files", "--", *paths, folder=folder) or "").splitlines()
        if commit not in CHANGED or not set(CHANGED[commit]).isdisjoint(measures):
            return {"older": None, "why": "the program was built from changes that no commit has"}
        commit = commit.removesuffix("-dirty")
    if git("cat-file", "-e", f"{commit}^{{commit}}", folder=folder) is None:
        return {"older": None, "why": "that commit is not in this repository"}
    names = moved(commit, folder)
    changed = [name for name in git("diff", "--name-only", commit, "--", *paths, folder=folder).splitlines()
               if name not in names.values() and is_other_code(commit, name, folder, WITHOUT_HOST not in paths, known_of(paths))]
    if not changed:
        return {"older": False}
    return {"older": True, "commits": int(git("rev-list", "--count", f"{commit}..HEAD", "--", *paths,
                                               *(names[name] for name in changed if name in names), folder=folder)),
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
