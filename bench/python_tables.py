"""Tables and sentences of bench/compare_python.py's file: attention as a Python user calls it, what a call costs, a small Llama.

sections() has them for the pages and part() for docs/python.md; they are there when the file is.
"""

import statistics

import ages
import host_tables
import results
import statements

FILE = "host-python.json"
OURS, SERVED, THEIRS = "flashomp-sdpa", "flashomp-enabled", "pytorch-sdpa"


def microseconds(milliseconds):
    return f"{milliseconds * 1e3:.1f} µs"


def time_text(milliseconds):
    return microseconds(milliseconds) if milliseconds < 0.1 else host_tables.time_text(milliseconds)


def ratio_text(ratio):
    return f"{ratio:.2f}x"


def percent(share):
    return f"{100 * share:.1f} %"


def of_kind(rows, kind):
    """{(direction, dtype, shape, mask): {implementation: row}} of a kind of rows, in the file's order."""
    found = {}
    for row in rows:
        if row["kind"] == kind:
            found.setdefault((row["direction"], row["dtype"], row["shape"], row["mask"]), {})[row["implementation"]] = row
    return found


def against(row, other):
    """How many times as fast a row is as another one."""
    return other["real_time"] / row["real_time"] if row["timed"] and other["timed"] else None


def cell(row, text=lambda row: time_text(row["real_time"])):
    return text(row) if row["timed"] else row["error_message"]


def ratio_cell(row, other):
    ratio = against(row, other)
    return "" if ratio is None else ratio_text(ratio)


def error_text(row):
    """Of the result that is nearest to its bound."""
    found = [(row[f"error_{name}"], row[f"bound_{name}"]) for name in ("o", "dq", "dk", "dv", "loss", "logits")
             if f"error_{name}" in row]
    return "{:.1e} ({:.1e})".format(*max(found, key=lambda one: one[0] / one[1] if one[1] else 0.0)) if found else ""


def kernel_text(row):
    """Which kernel and layout PyTorch's time is of."""
    kernel = {"chosen": "its choice", "math": "standard attention"}.get(row.get("kernel"), "")
    return f"{kernel}, {row['layout']}" if kernel and row["timed"] else ""


def calls(files):
    """A line for each pass, dtype, shape and mask."""
    (_, rows), = files
    lines = []
    for (direction, dtype, shape, mask), here in of_kind(rows, "call").items():
        ours, served, theirs = here[OURS], here[SERVED], here[THEIRS]
        lines.append([" ".join(filter(None, (direction, dtype, shape, mask))), cell(ours), cell(served), cell(theirs),
                      kernel_text(theirs), ratio_cell(ours, theirs), ratio_cell(served, theirs), error_text(ours),
                      error_text(theirs), " / ".join(percent(row["spread"]) for row in (ours, served, theirs) if row["timed"])])
    heading = ["pass, dtype, shape, mask", "flashomp.torch.sdpa", "enabled()", "PyTorch", "by", "sdpa against it",
               "enabled() against it", "error of sdpa (bound)", "error of PyTorch (bound)", "spread of each"]
    of_calls = [row for row in rows if row["kind"] == "call"]
    told = [ahead_text(rows), wrong_text(of_calls), statements.spread_text(of_calls, (OURS, SERVED, THEIRS))]
    return host_tables.markdown(heading, lines) + ["", " ".join(filter(None, told))]


def ahead_text(rows):
    """In how many calls flashomp is faster, by pass and dtype."""
    parts = []
    for direction, dtype in dict.fromkeys((way, kind) for way, kind, _, _ in of_kind(rows, "call")):
        ratios = ratios_of(rows, SERVED, direction, dtype)
        parts.append(f"{direction} {dtype} in {sum(ratio > 1 for ratio in ratios)} of {len(ratios)}")
    return f"PyTorch's function is faster when flashomp serves it: {', '.join(parts)}." if parts else None


def wrong_text(rows):
    """How many rows miss the tolerance rule, and whose. None where none does."""
    wrong = [row["implementation"] for row in rows if row.get("is_wrong")]
    parts = [f"{wrong.count(name)} of {sum(row['implementation'] == name for row in rows)} by {results.NAMES[name]}"
             for name in results.NAMES if name in wrong]
    words = "Further from float64 than the tolerance rule allows, and therefore not timed"
    return f"{words}: {' and '.join(parts)}." if parts else None


def overhead(files):
    """A line for each pass and dtype, a column for each caller."""
    (_, rows), = files
    tables = of_kind(rows, "overhead")
    names = list(dict.fromkeys(row["implementation"] for row in rows if row["kind"] == "overhead"))
    library = any("library_time" in row for row in rows)
    lines = []
    for (direction, dtype, _, _), here in tables.items():
        own = [row["library_time"] for row in here.values() if "library_time" in row]
        lines.append([f"{direction} {dtype}", *(cell(here[name], lambda row: f"{microseconds(row['real_time'])} "
                                                     f"({percent(row['spread'])})") if name in here else "" for name in names),
                      *([microseconds(own[0]) if own else ""] if library else [])])
    return host_tables.markdown(["pass, dtype", *(results.NAMES[name] for name in names),
                                 *(["of which the library's own time"] if library else [])], lines)


def model(files):
    """A line for each pass and dtype: times of each attention and how many times as fast flashomp's are as PyTorch's."""
    (_, rows), = files
    lines = []
    for (direction, dtype, shape, _), here in of_kind(rows, "model").items():
        theirs = here[THEIRS]
        for name, row in here.items():
            extra = f"{row['tokens_per_second']:.1f} tokens/s" if row["timed"] and "tokens_per_second" in row else ""
            lines.append([f"{direction} {dtype} {shape}", results.NAMES[name], cell(row), extra,
                          "" if name == THEIRS else ratio_cell(row, theirs), error_text(row),
                          percent(row["spread"]) if row["timed"] else ""])
    return host_tables.markdown(["what, dtype, attention in each layer", "attention by", "time", "speed", "against sdpa by PyTorch",
                                 "error (bound) of loss or logits", "spread"], lines)


TABLES = (
    (FILE, "Attention as a Python user calls it, on a CPU", calls,
     "PyTorch's F.scaled_dot_product_attention, flashomp.torch.sdpa, and PyTorch's function in flashomp.torch.enabled(), in one "
     "process, in turn in each repetition. *Against* is PyTorch's time over flashomp's: below 1 flashomp is slower. "
     "forward+backward is the call and torch.autograd.grad of its result. With kv the call has enable_gqa, with causal is_causal; "
     "padding is a boolean mask of keys, additive a float mask of rows and keys. PyTorch's time is the best of the kernel that it "
     "chooses and standard attention, each on [batch, heads, rows, depth] (bhnd) and on flashomp's [batch, rows, heads, depth] "
     "(bnhd). All of o, dQ, dK and dV of everybody was compared with float64, before the timing and after it; the error is that of "
     "the result nearest to its bound."),
    (FILE, "What a call from Python takes at N = 1", overhead,
     "One head of 64, one row, one key: hardly any work, so that the time is the overhead; in brackets the spread. In the graph "
     "that is kept q, k and v require gradients. The library's own time is what a report says, the median of 2000 calls."),
    (FILE, "A small Llama with each attention", model,
     "A training step is forward, loss, backward and AdamW; generate() is greedy, with a prompt. In bfloat16 both run under "
     "autocast. Loss, logits and all gradients were compared with float64 first: they may be 2 times as far from it as with eager "
     "attention of Transformers in the same type, gradients 3 times, and half a unit in the last place."),
)


def sections(folder=results.RESULTS):
    """Those of the parts that were measured."""
    return [section for section in host_tables.sections(folder, TABLES) if sum(line.startswith("|") for line in section.lines) > 2]


def ratios_of(rows, implementation, direction, dtype):
    """How many times as fast an implementation is as PyTorch, of all calls with times."""
    found = (against(here[implementation], here[THEIRS]) for (way, kind, _, _), here in of_kind(rows, "call").items()
             if (way, kind) == (direction, dtype))
    return [ratio for ratio in found if ratio is not None]


def sentences(rows):
    """Items of docs/python.md's list."""
    lines = []
    for direction, words in (("forward", "forward"), ("forward+backward", "forward and backward")):
        for dtype in ("float32", "bfloat16"):
            ratios = ratios_of(rows, SERVED, direction, dtype)
            if ratios:
                least, middle, most = map(ratio_text, (min(ratios), statistics.median(ratios), max(ratios)))
                lines.append(f"- PyTorch's function served by flashomp, {words}, {dtype}: {middle} as fast as by PyTorch, the "
                             f"median of {len(ratios)} shapes and masks (from {least} to {most}), and faster in "
                             f"{sum(ratio > 1 for ratio in ratios)}.")
    if wrong := wrong_text([row for row in rows if row["kind"] == "call"]):
        lines.append(f"- {wrong}")
    for (direction, dtype, _, _), here in of_kind(rows, "overhead").items():
        if dtype == "float32" and all(here[name]["timed"] for name in (OURS, SERVED, THEIRS)):
            ours, served, theirs = (microseconds(here[name]["real_time"]) for name in (OURS, SERVED, THEIRS))
            own = [f"; the library itself takes {microseconds(row['library_time'])}" for row in here.values()
                   if "library_time" in row]
            lines.append(f"- A call at N = 1, {direction}, float32: sdpa {ours}, PyTorch's function served by flashomp {served}, "
                         f"by PyTorch {theirs}{''.join(own[:1])}.")
    for (direction, dtype, _, _), here in of_kind(rows, "model").items():
        name = "flashomp-transformers"
        if name in here and against(here[name], here[THEIRS]):
            words = "A training step" if direction == "training step" else "generate()"
            lines.append(f"- {words} of a small Llama, {dtype}: {ratio_text(against(here[name], here[THEIRS]))} as fast with "
                         f"{results.NAMES[name]} as with sdpa by PyTorch.")
    return lines


def part(anchor, path=results.RESULTS / FILE):
    """What stands between the markers of docs/python.md. Numbers that are older than the code are not shown. anchor: GitHub's
    name for a heading."""
    link = f"[results.md](results.md#{anchor(TABLES[0][1])})"
    if not path.exists():
        return "Not measured yet: `bench/host_record.sh PROGRAM FOLDER python` does so."
    facts = results.provenance(path)
    if not ages.is_current([path]):
        return (f"The code has changed since this was last measured, at commit {facts['commit'][:7]} ({facts['date'][:10]}), so no "
                f"numbers are shown. {link} has those of that commit.")
    context, rows = results.read(path)
    return "\n".join([*sentences(rows), "", f"{facts['machine']}; commit {facts['commit'][:7]}, {facts['date'][:10]}; PyTorch "
                      f"{facts['PyTorch']}, Transformers {context['transformers']}. All rows, errors and spreads: {link}."])
