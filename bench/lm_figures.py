#!/usr/bin/env python3
"""Draws the figures of docs/language_model_pytorch.md from the files of bench/language_model.py in bench/results.

    bench/lm_figures.py [FILE.json ...]

docs/figures/NAME-curves.svg has perplexity against step; NAME-cost.svg tokens a second and peak memory. Needs python3-matplotlib.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True
import lm_tables
import plot
import results

STYLES = plot.STYLES | {"flashomp-enabled": {"color": "#8d8d8d", "marker": "s", "linestyle": "--"},
                        "pytorch-math": {"color": "#a8901c", "marker": "x"}}  # its own purple is next to pytorch-efficient's
FOLDER = results.ROOT / "docs" / "figures"


def dtypes_of(rows):
    return sorted({row["configuration"]["dtype"] for row in rows})


def curves(rows, where):
    """For each dtype: perplexity of the first seed without checkpoints, and below it the distance from standard attention."""
    rows = [row for row in lm_tables.first_seed(lm_tables.measured(rows)) if row["configuration"]["checkpoint"] == "none"]
    dtypes, standard, handles = dtypes_of(rows), lm_tables.standard_of(rows), {}
    figure, axes = plot.plt.subplots(2, len(dtypes), squeeze=False, figsize=(4.2 * len(dtypes), 6.2), sharex="col")
    for column, dtype in enumerate(dtypes):
        above, below = axes[:, column]
        for row in lm_tables.in_order(rows):
            if row["configuration"]["dtype"] != dtype:
                continue
            style, steps = STYLES[row["implementation"]], [one["step"] for one in row["evaluations"]]
            handles[row["implementation"]] = above.plot(steps, [one["perplexity"] for one in row["evaluations"]], **style)[0]
            other = standard(row)
            if other is not None and other is not row:
                below.plot(steps, [100 * lm_tables.difference(*pair) for pair in zip(row["evaluations"], other["evaluations"])],
                           **style)
        above.set_title(dtype, fontsize=8)
        above.set_yscale("log")
        plot.plain_log(above.yaxis)
        above.set_ylabel("validation perplexity")
        limit = 100 * lm_tables.LIMITS[dtype]
        for sign in (-1, 1):
            below.axhline(sign * limit, color=plot.TEXT, linestyle=":", linewidth=1)
        below.set_title(f"dotted: ±{limit:g} %", fontsize=8)
        below.set_ylabel("% from standard attention")
        below.set_xlabel("step")
    plot.finish(figure, f"Validation perplexity of a GPT in PyTorch by its attention, {where}", handles)
    return figure


def cost(rows, where):
    """For each dtype bars of speed and of memory: full without checkpoints, hollow with them."""
    rows = lm_tables.first_seed(lm_tables.measured(rows))
    dtypes, handles = dtypes_of(rows), {}
    figure, axes = plot.plt.subplots(2, len(dtypes), squeeze=False, figsize=(4.2 * len(dtypes), 5.2))
    for column, dtype in enumerate(dtypes):
        here = [row for row in lm_tables.in_order(rows) if row["configuration"]["dtype"] == dtype]
        names = list(dict.fromkeys(row["implementation"] for row in here))
        for axis, label, value in zip(axes[:, column], ("tokens/s", "peak memory, MiB"), (
                lambda row: row["tokens_per_second"], lambda row: row["peak_bytes"] / 2**20)):
            for row in here:
                is_plain, color = row["configuration"]["checkpoint"] == "none", STYLES[row["implementation"]]["color"]
                bar = axis.bar(names.index(row["implementation"]) + (-0.2 if is_plain else 0.2), value(row), 0.36,
                               color=color if is_plain else "none", edgecolor=color)
                if is_plain:
                    handles[row["implementation"]] = bar
            axis.set_ylabel(label)
            axis.set_xticks([])
            axis.grid(axis="x", visible=False)
        axes[0, column].set_title(dtype, fontsize=8)
    plot.finish(figure, f"A training step of a GPT in PyTorch by its attention, {where}\nfilled: without activation checkpoints; "
                "hollow: each block is computed again in its backward pass", handles)
    return figure


def draw(path, folder=FOLDER):
    """Writes the figures of one file; returns their paths."""
    context, rows = results.read(path)
    rows = [row for row in rows if "configuration" in row]
    where = (context.get("flashomp_device_0") or results.place_of(context, rows)).split(", compute")[0]
    written = []
    for kind, make in (("curves", curves), ("cost", cost)):
        target = folder / f"{path.stem}-{kind}.svg"
        target.write_text(plot.svg(make(rows, where), [f"{path.name}:{results.digest(path)}"]))
        written.append(target)
    return written


def main():
    for path in map(pathlib.Path, sys.argv[1:] or lm_tables.files()):
        print(*draw(path), sep="\n")


if __name__ == "__main__":
    main()
