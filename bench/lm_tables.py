#!/usr/bin/env python3
"""Writes the tables of docs/language_model_pytorch.md from the files of bench/language_model.py in bench/results.

    bench/lm_tables.py           rewrites what is between the page's two marks
    bench/lm_tables.py --check   exits 1 and says so when the page differs
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True
import ages
import generated
import results
from host_tables import markdown, memory_text

PAGE = results.ROOT / "docs" / "language_model_pytorch.md"
MARKS = "<!-- language-model:begin -->", "<!-- language-model:end -->"
PATTERN = "*-language-model-pytorch.json"
FIGURES = {"curves": "Perplexity against step, and how far it is from that of standard attention",
           "cost": "Tokens a second and peak memory"}
# Issue 27's limits of |perplexity / perplexity with standard attention - 1| after the same steps.
LIMITS = {"float32": 0.001, "bfloat16": 0.005}


def files(folder=results.RESULTS):
    return sorted(folder.glob(PATTERN))


def measured(rows):
    return [row for row in rows if "perplexity" in row]


def case_of(row, *names):
    return tuple(row["configuration"][name] for name in names)


def standard_of(rows):
    """A function from a row to the row of standard attention that was trained alike, or None."""
    found = {case_of(row, "dtype", "checkpoint", "seed"): row for row in measured(rows)
             if row["configuration"]["attention"] == "pytorch-math"}
    return lambda row: found.get(case_of(row, "dtype", "checkpoint", "seed"))


def difference(row, standard):
    """How far a perplexity is from the standard one, as a share of that."""
    return row["perplexity"] / standard["perplexity"] - 1


def largest_difference(row, standard):
    """The same at whichever evaluation it is largest in size."""
    pairs = zip(row["evaluations"], standard["evaluations"])
    return max(abs(difference(ours, theirs)) for ours, theirs in pairs)


def percent(share, sign=""):
    """Two digits, since differences lie between rounding and a limit."""
    return f"{100 * share:{sign}.2g} %"


def times_text(row, other, key):
    """How many times another row's value a row has."""
    return f"{row[key] / other[key]:.2f}x" if other and other[key] else ""


def name_of(row):
    return results.NAMES[row["implementation"]]


def in_order(rows):
    """bfloat16 before float32, without checkpoints before with, and implementations as in every legend."""
    places = list(results.NAMES)
    return sorted(rows, key=lambda row: (*case_of(row, "dtype"), case_of(row, "checkpoint")[0] != "none",
                                         places.index(row["implementation"]), case_of(row, "seed")))


def same_bits_text(row, rows):
    """Whether the losses and the norms of gradients of all steps are those of the run without checkpoints, to the bit."""
    if row["configuration"]["checkpoint"] == "none":
        return ""
    plain = [other for other in measured(rows) if other["configuration"] == row["configuration"] | {"checkpoint": "none"}]
    return "" if not plain else "same bits" if plain[0]["losses_digest"] == row["losses_digest"] else "other bits"


def first_seed(rows):
    seed = rows[0]["configuration"]["seed"]
    return [row for row in rows if row["configuration"]["seed"] == seed]


def cost_table(rows):
    """A line for each configuration of the first seed."""
    standard, lines = standard_of(rows), []
    for row in in_order(first_seed(rows)):
        start = [row["configuration"]["dtype"], "yes" if row["configuration"]["checkpoint"] == "layer" else "no", name_of(row)]
        if row not in measured(rows):
            lines.append([*start, row["error_message"], *[""] * 6])
            continue
        other = standard(row)
        lines.append([*start, f"{row['perplexity']:.4f}", percent(difference(row, other), "+") if other not in (None, row) else "",
                      f"{row['tokens_per_second']:.0f}",
                      times_text(row, other, "tokens_per_second"), memory_text(row["peak_bytes"]),
                      times_text(row, other, "peak_bytes"), same_bits_text(row, rows)])
    return markdown(["dtype", "checkpoints", "attention", "perplexity", "from standard attention's", "tokens/s", "times standard's",
                     "peak memory", "of standard's", "losses as without checkpoints"], lines)


def seeds_table(rows):
    """A line for each dtype and attention that has several seeds; nothing where none has."""
    standard, groups = standard_of(rows), {}
    for row in in_order(measured(rows)):
        if row["configuration"]["checkpoint"] == "none":
            groups.setdefault((row["configuration"]["dtype"], name_of(row)), []).append(row)
    lines = []
    for (dtype, name), here in groups.items():
        if len(here) < 2:
            continue
        values = [row["perplexity"] for row in here]
        mean = sum(values) / len(values)
        apart = [abs(difference(row, standard(row))) for row in here if standard(row)]
        lines.append([dtype, name, " / ".join(f"{value:.4f}" for value in values), f"{mean:.4f}",
                      percent((max(values) - min(values)) / mean), percent(max(apart)) if apart else ""])
    return markdown(["dtype", "attention", "perplexity with each seed", "mean", "spread between seeds",
                     "largest distance from standard attention with the same seed"], lines) if lines else []


def verdicts(rows):
    """A sentence for each dtype: how far flashomp's perplexities are from standard attention's, beside the limit."""
    standard = standard_of(rows)
    for dtype, limit in LIMITS.items():
        pairs = [(row, standard(row)) for row in measured(rows)
                 if row["configuration"]["dtype"] == dtype and row["implementation"].startswith("flashomp") and standard(row)]
        if not pairs:
            continue
        at_end = max(abs(difference(*pair)) for pair in pairs)
        anywhere = max(largest_difference(*pair) for pair in pairs)
        seeds = len({row["configuration"]["seed"] for row, _ in pairs})
        yield (f"{dtype}: after all {pairs[0][0]['configuration']['steps']} steps flashomp's perplexities are at most {percent(at_end)} "
               f"from standard attention's, {'within' if at_end <= limit else '**over**'} the limit of {percent(limit)} "
               f"({len(pairs)} pairs of runs, {seeds} seed{'s' if seeds > 1 else ''}). At no evaluation on the way are they more than "
               f"{percent(anywhere)} apart.")


def model_text(context, rows):
    one, text = rows[0]["configuration"], context["text"]
    parameters = next((f"{row['parameters']:,} parameters: " for row in measured(rows)), "")
    licence = f", under {text['licence']}" if "licence" in text else ""
    return (f"{parameters}{one['layers']} layers, {one['heads']} heads of {one['dim'] // one['heads']}, dim {one['dim']}, an embedding of "
            f"{one['vocabulary']} rows; N = {one['seqlen']}, batch {one['batch']}. Text: {text['source']}{licence}; tokens are "
            f"{text['tokens']}, {text['train_tokens']:,} for training and {text['validation_tokens']:,} for validation.")


def memory_words(rows):
    if rows[0]["configuration"]["device"] == "cpu":
        return ("Peak memory is the largest resident set of the process less what was resident before the model was made: parameters, "
                "gradients, AdamW's moments and activations.")
    return ("Peak memory is PyTorch's counter of its own allocator (max_memory_allocated); the file also has what the whole GPU had in "
            "use at the end.")


def load_words(rows):
    """The load of the machine, of which the run itself makes one a thread; more took speed from it."""
    loads = [row["load_average"] for row in rows if "load_average" in row]
    if not loads:
        return ""
    known = "" if len(loads) == len(rows) else f", known for {len(loads)} of {len(rows)} configurations"
    return f" Load while it ran: {min(loads):.1f} to {max(loads):.1f}{known}."


def section(path):
    """Lines of Markdown about one file."""
    context, rows = results.read(path)
    rows = [row for row in rows if "configuration" in row]
    facts = results.provenance(path)
    place = context.get("flashomp_device_0") or facts["machine"]
    stopped = context.get("stopped")
    lines = [f"### {place.split(', compute')[0]}", "", model_text(context, rows), "",
             f"Measured {facts['date'][:10]} at commit {facts['commit'][:12]}, PyTorch {context['torch']}, load {facts['load']}: "
             f"[{path.name}](../bench/results/{path.name}), by `{facts['command']}`. {memory_words(rows)}{load_words(rows)}", ""]
    if not ages.is_current([path]):  # without the number of commits, which changes with each of them
        lines += [f"**Older than the code**: what it measures has changed since {facts['commit'][:7]}.", ""]
    if stopped:
        lines += [f"The run is not complete: {stopped['configurations_left']} of {stopped['configurations_asked_for']} configurations "
                  "are left.", ""]
    lines += [f"- {words}" for words in verdicts(rows)]
    for kind, words in FIGURES.items():
        name = f"{path.stem}-{kind}.svg"
        if (results.ROOT / "docs" / "figures" / name).exists():
            lines += ["", f"![{words}](figures/{name})"]
    lines += ["", *cost_table(rows), ""]
    if seeds := seeds_table(rows):
        lines += [*seeds, ""]
    return lines


def tables():
    lines = [line for path in files() for line in section(path)]
    return "\n".join(lines).strip() + "\n"


def main():
    generated.main(__doc__.splitlines()[0], "bench/lm_tables.py", PAGE, MARKS, tables())


if __name__ == "__main__":
    main()
