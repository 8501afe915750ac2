#!/usr/bin/env python3
"""Draws the figures of a set of committed results: SVG, readable on light and on dark.

    bench/plot.py --name NAME --out FOLDER FILE.json [FILE.json ...]

The files together hold what is drawn as one set (the same machine). Of speed, speedup, memory, roofline and ratio, those
figures are drawn for which the rows are there; FOLDER/NAME-speed.svg and so on. A figure's title says where the rows ran, and
its metadata which files it was drawn from (with their SHA-256, which a test compares). Needs python3-matplotlib.
"""

import argparse
import io
import math
import pathlib
import sys
import textwrap

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True
import results
from panels import bands_of, by_panel, dtypes_of, lengths_text

try:
    import matplotlib
except ImportError:
    sys.exit("plot.py: matplotlib is missing; install the Debian package python3-matplotlib.")

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

TEXT = "#7a828c"  # 3.9:1 on white and 4.8:1 on GitHub's dark
# Okabe and Ito's colours, lightened or darkened until they stand out on white and on #0d1117 alike.
STYLES = {
    "flashomp-cuda": {"color": "#3f8f29", "marker": "o", "linewidth": 2.6, "zorder": 5},
    "flashomp-cuda-tensor": {"color": "#3f8f29", "marker": "s", "linestyle": "--", "zorder": 4},
    "flashomp": {"color": "#e0571b", "marker": "o", "linewidth": 2.6, "zorder": 5},
    "flashomp-tensor": {"color": "#e0571b", "marker": "s", "linestyle": "--", "zorder": 4},
    "flashomp-plain": {"color": "#c9761a", "marker": "^", "linestyle": ":"},
    "flashomp-plain-global": {"color": "#8d8d8d", "marker": "v", "linestyle": ":"},
    "pytorch-flash": {"color": "#2f86d1", "marker": "D"},
    "pytorch-cudnn": {"color": "#1a9e77", "marker": "v"},
    "pytorch-efficient": {"color": "#8a6fd1", "marker": "s"},
    "pytorch-math": {"color": "#9a6fc0", "marker": "x"},
    "pytorch-cpu-flash": {"color": "#2f86d1", "marker": "D"},
    "pytorch-cpu-math": {"color": "#c9761a", "marker": "^", "linestyle": ":"},
    "standard": {"color": "#9a6fc0", "marker": "x"},
    "reference": {"color": "#8d8d8d", "marker": "+"},
}
plt.rcParams.update({
    "svg.fonttype": "path", "svg.hashsalt": "flashomp", "font.size": 9, "axes.titlesize": 9, "figure.titlesize": 10,
    "text.color": TEXT, "axes.edgecolor": TEXT, "axes.labelcolor": TEXT, "xtick.color": TEXT, "ytick.color": TEXT,
    "axes.titlecolor": TEXT, "grid.color": TEXT, "grid.alpha": 0.25, "axes.grid": True, "axes.spines.top": False,
    "axes.spines.right": False, "legend.frameon": False, "lines.markersize": 4.5, "lines.linewidth": 1.7,
})


def grid_of(panels):
    """A figure with a column for each panel, forward above backward, and rows of one dtype."""
    names = list(dict.fromkeys(name for _, name in panels))
    bands, dtypes = bands_of(names), dtypes_of(names)
    columns = max(map(len, bands))
    directions = [d for d in ("forward", "backward") if any(key[0] == d for key in panels)]
    figure, axes = plt.subplots(len(bands) * len(directions), columns, squeeze=False,
                                figsize=(max(6.4, 3.7 * columns), 2.25 * len(bands) * len(directions) + 1.1))
    places = {}
    for axis in axes.flat:
        axis.set_visible(False)
    for band, names in enumerate(bands):
        for column, name in enumerate(names):
            for line, direction in enumerate(directions):
                if (direction, name) in panels:
                    axis = axes[band * len(directions) + line][column]
                    axis.set_visible(True)
                    shown = name if len(dtypes) > 1 else name.removesuffix(f", {dtypes[0]}")
                    axis.set_title(f"{direction}: {shown}", fontsize=8)
                    places[direction, name] = axis
    return figure, places


def plain_log(axis):
    """Ticks of a logarithmic axis as plain numbers, also where it has less than a decade."""
    low, high = axis.get_view_interval()
    decades = math.log10(high / low)
    axis.set_major_locator(LogLocator(subs=(1,) if decades > 3 else (1, 2, 5) if decades > 0.8 else range(1, 10)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def along_n(axis, all_n, label):
    axis.set_xscale("log", base=2)
    axis.set_xticks(sorted(all_n))
    axis.xaxis.set_major_formatter(FuncFormatter(lengths_text))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel("N", labelpad=1)
    axis.set_ylabel(label)
    if len(all_n) == 1:
        axis.set_xlim(min(all_n) / 2, min(all_n) * 2)


def finish(figure, title, handles, words=results.NAMES):
    """Title above, legend below, each in as many lines as it needs. `words` has the legend's texts in their order."""
    names = [name for name in words if name in handles]
    width, height = figure.get_size_inches()
    columns = min(max(1, int(width / 2.9)), len(names))
    lines = [line for part in title.split("\n") for line in textwrap.wrap(part, int(width * 13))]
    below, above = 0.14 + 0.2 * math.ceil(len(names) / columns), 0.08 + 0.17 * len(lines)
    figure.legend([handles[name] for name in names], [words[name] for name in names], loc="lower center", ncol=columns)
    figure.tight_layout(rect=(0, below / height, 1, 1 - above / height))
    figure.suptitle("\n".join(lines), y=1 - 0.05 / height, va="top")  # tight_layout() would keep a place of its own for it


def lines_against_n(panels, title, label, value, log=False, line_at=None, without=()):
    """One figure of value(row, rows of that N) against N; None leaves a point out. None when nothing is left."""
    points = {}
    for key, implementations in panels.items():
        for name, rows in implementations.items():
            here = {n: value(row, {other: all_rows.get(n) for other, all_rows in implementations.items()})
                    for n, row in rows.items() if name not in without}
            here = {n: y for n, y in here.items() if y is not None}
            if here:
                points.setdefault(key, {})[name] = here
    if not points:
        return None
    figure, places = grid_of(points)
    handles = {}
    for key, lines in points.items():
        axis = places[key]
        for name in results.NAMES:
            if name in lines:
                n = sorted(lines[name])
                handles[name], = axis.plot(n, [lines[name][x] for x in n], **STYLES[name])
        along_n(axis, {x for line in lines.values() for x in line}, label)
        if log:
            axis.set_yscale("log")
            plain_log(axis.yaxis)
        else:
            axis.set_ylim(0, 1.08 * max([y for line in lines.values() for y in line.values()] + [line_at or 0]))
        if line_at is not None:
            axis.axhline(line_at, color=TEXT, linewidth=1, zorder=1)
    missing = {}
    for implementations in panels.values():
        for name, rows in implementations.items():
            for n, row in rows.items():
                if "out of memory" in row.get("error_message", ""):
                    missing[name] = min(n, missing.get(name, n))
    if missing:
        title += "\nout of memory: " + ", ".join(f"{results.NAMES[name]} from N = {lengths_text(n)}"
                                                 for name, n in missing.items())
    dtypes = dtypes_of([name for _, name in panels])
    first, _, more = title.partition("\n")
    finish(figure, (f"{first}, {dtypes[0]}" if len(dtypes) == 1 else first) + (f"\n{more}" if more else ""), handles)
    return figure


def speed(panels, where):
    unit = "GFLOP/s" if max((row.get("TFLOP/s", 0) for p in panels.values() for r in p.values() for row in r.values()),
                            default=0) < 3 else "TFLOP/s"
    factor = 1e3 if unit == "GFLOP/s" else 1
    return lines_against_n(panels, f"Speed, {where}", unit,
                           lambda row, _: row["TFLOP/s"] * factor if row["timed"] else None)


def speedup(panels, where):
    def value(row, others):
        standard = next((others[name] for name in results.STANDARD if others.get(name)), None)
        return standard["real_time"] / row["real_time"] if standard and standard["timed"] and row["timed"] else None
    return lines_against_n(panels, f"Times as fast as standard attention, {where}", "times", value, line_at=1,
                           without=results.STANDARD)


def output_bytes(row):
    """Bytes of what a call returns, LSE left out: no peak above the inputs can be less."""
    size = {"float32": 4, "float8_e4m3": 1}.get(row["dtype"], 2)
    queries, keys = row["batch"] * row["heads_q"] * row["seqlen_q"], row["batch"] * row["heads_kv"] * row["seqlen_k"]
    if row["direction"] == "forward":
        return size * queries * row["head_dim_v"]
    return size * (queries * row["head_dim"] + keys * (row["head_dim"] + row["head_dim_v"]))


def not_counted(panels):
    """Implementations with a peak below the size of their own results: what they took was pages that the process had freed
    before, which resident memory does not show."""
    return {name for lines in panels.values() for name, rows in lines.items() if not name.startswith("flashomp")
            for row in rows.values() if row["timed"] and row.get("peak_bytes") is not None
            and row["peak_bytes"] < output_bytes(row)}


def memory(panels, where):
    without = not_counted(panels)
    title = f"Peak memory above the inputs, measured, {where}"
    if without:
        names = " and ".join(results.NAMES[name] for name in results.NAMES if name in without)
        title += f"\nnot shown: {names}, which took pages that its process had from before, so that less was seen than it needs"
    return lines_against_n(panels, title, "MiB", lambda row, _: row["peak_bytes"] / 2**20 if row["timed"] and
                           row.get("peak_bytes") else None, log=True, without=without)


def ratio(panels, where):
    """flashomp's speed over that of the others: one line for each of them."""
    def value(row, others):
        ours = others.get(main)
        return row["real_time"] / ours["real_time"] if row["timed"] and ours and ours["timed"] else None
    present = {name for lines in panels.values() for name in lines}
    main = next(name for name in results.NAMES if name in present)
    beside = (main, "pytorch-flash", "pytorch-cudnn", "pytorch-cpu-flash")
    keep = {key: {name: rows for name, rows in lines.items() if name in beside} for key, lines in panels.items()}
    return lines_against_n(keep, f"{results.NAMES[main]}: speed as a multiple of the others', {where}", "times", value,
                           line_at=1, without=(main,))


def under_the_roof(row, source):
    """Whether the peak is that of the row's type: vectors take all types as float32, matrix units have a speed for each."""
    return " products on " not in source or f"{row['dtype']} products on " in source


def roofline(rows, peaks, where):
    """FLOP/s against FLOPs for a byte of the tensors, each once, under the two peaks."""
    if not peaks or not peaks.get("flops") or not peaks.get("bandwidth"):
        return None
    rows = [row for row in rows if row["timed"] and row.get("least_bytes") and under_the_roof(row, peaks["flops_source"])]
    if not rows:
        return None
    figure, axis = plt.subplots(figsize=(7, 4.4))
    intensity = [row["flops"] / row["least_bytes"] for row in rows]
    ridge = peaks["flops"] / peaks["bandwidth"]
    low, high = min(intensity + [ridge]) / 2, max(intensity + [ridge]) * 2
    axis.plot([low, ridge, high], [low * peaks["bandwidth"] * 1e-12, peaks["flops"] * 1e-12, peaks["flops"] * 1e-12],
              color=TEXT, linewidth=1.5)
    axis.annotate("arithmetic", (high, peaks["flops"] * 1e-12), (0, 3), textcoords="offset points", ha="right", fontsize=8)
    axis.annotate("memory", (low, low * peaks["bandwidth"] * 1e-12), (0, -4), textcoords="offset points", va="top", fontsize=8)
    handles = {}
    for row, x in zip(rows, intensity):
        name = row["implementation"]
        style = {key: value for key, value in STYLES[name].items() if key in ("color", "marker", "zorder")}
        inside = style["color"] if row["direction"] == "forward" else "none"
        fill = {} if style["marker"] in "x+" else {"markerfacecolor": inside}
        handles.setdefault(name, axis.plot([x], [row["TFLOP/s"]], linestyle="none", **style, **fill)[0])
        axis.plot([x], [row["TFLOP/s"]], linestyle="none", **style, **fill)
    axis.set_xscale("log")
    axis.set_yscale("log")
    plain_log(axis.xaxis)
    plain_log(axis.yaxis)
    axis.set_xlabel("FLOPs for a byte of the tensors, each read or written once")
    axis.set_ylabel("TFLOP/s")
    about = ("filled: forward, hollow: backward", f"roof: {peaks['flops_source']}", f"slope: {peaks['bandwidth_source']}")
    axis.set_title("\n".join(line for part in about for line in textwrap.wrap(part, 100)), fontsize=7.5)
    dtypes = sorted({row["dtype"] for row in rows})
    finish(figure, f"Roofline, {' and '.join(dtypes)}, {where}", handles)
    return figure


MODIFICATIONS = {"": ("scores as they are", "#8d8d8d"), "softcap": ("softcap", "#3f8f29"), "alibi": ("ALiBi", "#2f86d1"),
                 "bias": ("bias", "#8a6fd1"), "dropout": ("dropout", "#e0571b")}


def modified_speed(rows, where):
    """Bars of the speed in kernels: a group for each head_dim and mask, in it one for each modification. Of the first row's batch: the
    gradient of a bias, of another batch, is in the table."""
    rows = [row for row in rows if row["batch"] == rows[0]["batch"]]
    figure, axes = plt.subplots(2, 1, figsize=(7, 5))
    handles = {}
    for axis, direction in zip(axes, ("forward", "backward")):
        here = [row for row in rows if row["direction"] == direction and row["timed"]]
        groups = list(dict.fromkeys((row["head_dim"], row["causal"]) for row in here))
        for at, group in enumerate(groups):
            for row in (row for row in here if (row["head_dim"], row["causal"]) == group):
                kind = row["modified"].strip("_").rstrip("0123456789")
                label, colour = MODIFICATIONS[kind]
                place = at + (list(MODIFICATIONS).index(kind) - 2) * 0.17
                handles[label] = axis.bar(place, row["flops"] / row["kernel_time"] / 1e9, width=0.15, color=colour)
        axis.set_xticks(range(len(groups)), [f"{depth}, {'causal' if causal else 'full'}" for depth, causal in groups])
        axis.grid(axis="x", visible=False)
        axis.set_ylabel("TFLOP/s")
        axis.set_title(f"{direction}, by head_dim and mask", fontsize=8)
    finish(figure, f"Speed in kernels with modified scores, batch {rows[0]['batch']}, N = {rows[0]['seqlen_q']}, "
                   f"{rows[0]['dtype']}, {where}", handles, {label: label for label, _ in MODIFICATIONS.values()})
    return figure


def svg(figure, sources):
    """The figure as SVG that depends on the rows alone."""
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, bbox_inches="tight", pad_inches=0.06,
                   metadata={"Date": None, "Creator": "bench/plot.py", "Source": " ".join(sources)})
    plt.close(figure)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def draw(name, files, out):
    """Writes the figures of one set; returns their paths."""
    contexts, rows = results.read_set(files)
    peaks = next((context["peaks"] for context in contexts if "peaks" in context), None)
    where = results.place_of(contexts[0], rows).split(", compute")[0]
    panels = by_panel(rows)
    if any(row["modified"] for row in rows):  # of one N
        figures = {"speed": modified_speed(rows, where)} | dict.fromkeys(("speedup", "memory", "ratio", "roofline"))
    else:
        figures = {"speed": speed(panels, where), "speedup": speedup(panels, where), "memory": memory(panels, where),
                   "ratio": ratio(panels, where), "roofline": roofline(rows, peaks, where)}
    sources = [f"{pathlib.Path(file).name}:{results.digest(file)}" for file in files]
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for kind, figure in figures.items():
        path = out / f"{name}-{kind}.svg"
        if figure is None:
            path.unlink(missing_ok=True)
            continue
        path.write_text(svg(figure, sources))
        written.append(path)
    return written


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--name", required=True, help="how the figures' names begin")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder of the figures")
    arguments = parser.parse_args()
    for path in draw(arguments.name, arguments.files, arguments.out):
        print(path)


if __name__ == "__main__":
    main()
