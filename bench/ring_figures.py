#!/usr/bin/env python3
"""Draws the figures of docs/distributed.md from the files of bench/ring.py in bench/results.

    bench/ring_figures.py [FILE.json ...]

docs/figures/NAME-share.svg has the share of the ideal against the number of ranks. Needs python3-matplotlib.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True
import plot
import results
import ring_tables

FOLDER = results.ROOT / "docs" / "figures"
COLORS = {"ring": "#e0571b", "all_gather": "#2f86d1", "grid": "#8a6fd1", "ulysses": "#1a9e77"}


def style_of(row):
    """A colour for each scheme; contiguous is dashed and hollow."""
    even = row["layout"] == "zigzag" or row["scheme"] == "ulysses"
    return {"color": COLORS[row["scheme"]], "linestyle": "-" if even else "--", "marker": "s" if row["scheme"] == "grid" else "o",
            "markerfacecolor": COLORS[row["scheme"]] if even else "none"}


def share(rows, where):
    """A panel for each dtype, pass and shape, a line for each scheme."""
    rows, calls = ring_tables.shared(rows), ring_tables.calls_of(ring_tables.shared(rows))
    columns = min(4, len(calls))
    lines = -(-len(calls) // columns)
    figure, axes = plot.plt.subplots(lines, columns, squeeze=False, figsize=(3.1 * columns, 2.7 * lines))
    handles = {}
    for axis in axes.flat[len(calls):]:
        axis.set_visible(False)
    for axis, call in zip(axes.flat, calls):
        schemes = {}
        for row in sorted(ring_tables.of_call(rows, call), key=ring_tables.order_of):
            # Groups of a grid are of other sizes with other numbers of ranks; those of one size are a line.
            schemes.setdefault(ring_tables.name_of(row), []).append(row)
        for name, of_scheme in schemes.items():
            of_scheme.sort(key=lambda row: row["ranks"])
            handles[name] = axis.plot([row["ranks"] for row in of_scheme], [100 * row["share_of_ideal"] for row in of_scheme],
                                      **style_of(of_scheme[0]))[0]
        axis.set_title(f"{call[1]}, {call[0]}\n{call[2]}", fontsize=8)
        axis.set_xscale("log", base=2)
        axis.set_xticks(sorted({row["ranks"] for row in rows}))
        axis.xaxis.set_major_formatter(plot.FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_minor_locator(plot.NullLocator())
        axis.set_xlabel("ranks", labelpad=1)
        axis.set_ylim(0, 105)
        axis.axhline(100, color=plot.TEXT, linewidth=1, zorder=1)
    for line in axes:
        line[0].set_ylabel("% of the ideal")
    shares = sorted({row["ranks"] for row in rows if row["ranks_share_cores"]})
    title = f"Share of the ideal of calls that ranks share, {where}"
    if shares:
        title += f"\nranks share cores from {shares[0]} on, and the ideal is that of the cores"
    plot.finish(figure, title, handles, {name: name for name in handles})
    return figure


def draw(path, folder=FOLDER):
    """Writes the figure of one file; returns its path in a list."""
    context, rows = results.read(path)
    target = folder / f"{path.stem}-share.svg"
    target.write_text(plot.svg(share(rows, results.place_of(context, rows)), [f"{path.name}:{results.digest(path)}"]))
    return [target]


def main():
    for path in map(pathlib.Path, sys.argv[1:] or ring_tables.files()):
        print(*draw(path), sep="\n")


if __name__ == "__main__":
    main()
