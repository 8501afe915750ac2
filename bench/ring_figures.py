#!/usr/bin/env python3
"""Draws the figures of docs/distributed.md from the files of bench/ring.py in bench/results.

    bench/ring_figures.py [FILE.json ...]

docs/figures/NAME-share.svg has the share of the ideal speed-up against the number of ranks. Needs python3-matplotlib.
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


MARKERS = {2: "s", 4: "D", 8: "^"}  # of grids, whose groups have so many ranks


def style_of(row):
    """A colour for each scheme, a marker for each size of a grid's groups; contiguous is dashed and hollow."""
    even = row["layout"] == "zigzag" or row["scheme"] == "ulysses"
    return {"color": COLORS[row["scheme"]], "linestyle": "-" if even else "--",
            "marker": MARKERS.get(row["heads_ranks"], "v") if row["scheme"] == "grid" else "o",
            "markerfacecolor": COLORS[row["scheme"]] if even else "none"}


def bar_of(row):
    """The shares of the slowest and of the fastest repetition, in percent; None where a row does not have them."""
    if "least_time" not in row or "most_time" not in row:
        return None
    return tuple(100 * row["share_of_ideal"] * row["real_time"] / row[time] for time in ("most_time", "least_time"))


def places_of(rows):
    """{(name, ranks): place on the axis}: schemes with the same number of ranks stand side by side, not on each other."""
    places = {}
    for ranks in ring_tables.ranks_of(rows):
        names = [ring_tables.name_of(row) for row in sorted(rows, key=ring_tables.order_of) if row["ranks"] == ranks]
        for number, name in enumerate(names):
            places[name, ranks] = ranks * 2 ** (0.06 * (number - (len(names) - 1) / 2))
    return places


def draw_scheme(axis, rows, places):
    """The points of one scheme. A line joins those where ranks have a core each, another one those where ranks share cores.
    Returns whether there is a line."""
    has_line = False
    for shares_cores in (False, True):
        group = [row for row in rows if row["ranks_share_cores"] is shares_cores]
        if not group:
            continue
        ranks = [places[ring_tables.name_of(row), row["ranks"]] for row in group]
        axis.plot(ranks, [100 * row["share_of_ideal"] for row in group], **style_of(group[0]))
        for x, bar in zip(ranks, map(bar_of, group)):
            if bar:
                axis.vlines(x, *bar, color=COLORS[group[0]["scheme"]], linewidth=0.7)
        has_line = has_line or len(group) > 1
    return has_line


def share(rows, where):
    """A panel for each dtype, pass and shape; schemes side by side."""
    rows, calls = ring_tables.shared(rows), ring_tables.calls_of(ring_tables.shared(rows))
    columns = min(4 if len(calls) > 4 else 2, len(calls))
    lines = -(-len(calls) // columns)
    figure, axes = plot.plt.subplots(lines, columns, squeeze=False, figsize=((3.1 if columns > 2 else 5) * columns, 3 * lines))
    names = list(dict.fromkeys(ring_tables.name_of(row) for row in sorted(rows, key=ring_tables.order_of)))
    ranks, handles = ring_tables.ranks_of(rows), {}
    for axis in axes.flat[len(calls):]:
        axis.set_visible(False)
    for axis, call in zip(axes.flat, calls):
        of_call = sorted(ring_tables.of_call(rows, call), key=lambda row: row["ranks"])
        places = places_of(of_call)
        for name in names:
            of_scheme = [row for row in of_call if ring_tables.name_of(row) == name]
            if not of_scheme:
                continue
            has_line = draw_scheme(axis, of_scheme, places)
            if has_line or name not in handles:
                style = style_of(of_scheme[0]) | ({} if has_line else {"linestyle": "none"})
                handles[name] = plot.plt.Line2D([], [], **style)
        axis.set_title(f"{call[1]}, {call[0]}\n{call[2]}", fontsize=8)
        axis.set_xscale("log", base=2)
        axis.set_xlim(ranks[0] / 2**0.5, ranks[-1] * 2**0.5)
        axis.set_xticks(ranks)
        axis.xaxis.set_major_formatter(plot.FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_minor_locator(plot.NullLocator())
        axis.set_xlabel("ranks", labelpad=1)
        highest = max([100 * row["share_of_ideal"] for row in of_call] + [bar[1] for bar in map(bar_of, of_call) if bar])
        axis.set_ylim(0, max(105, 1.03 * highest))
        axis.set_yticks(range(0, 101, 25))
        axis.axhline(100, color=plot.TEXT, linewidth=1, zorder=1)
    for line in axes:
        line[0].set_ylabel("% of the ideal")
    title = f"How near to the ideal speed-up: {where}"
    shares = sorted({row["ranks"] for row in rows if row["ranks_share_cores"]})
    if shares:
        title += f"\nranks share cores from {shares[0]} on, and the ideal is that of the cores"
    if any(bar_of(row) for row in rows):
        title += "\nbars: the slowest and the fastest repetition"
    plot.finish(figure, title, handles, {name: name for name in names})
    return figure


def draw(path, folder=FOLDER):
    """Writes the figure of one file; returns its path in a list."""
    context, rows = results.read(path)
    target = folder / f"{path.stem}-share.svg"
    where = f"{ring_tables.place_of(context)}; one thread a rank"
    target.write_text(plot.svg(share(rows, where), [f"{path.name}:{results.digest(path)}"]))
    return [target]


def main():
    for path in map(pathlib.Path, sys.argv[1:] or ring_tables.files()):
        print(*draw(path), sep="\n")


if __name__ == "__main__":
    main()
