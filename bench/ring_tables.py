#!/usr/bin/env python3
"""Writes the tables of docs/distributed.md from the files of bench/ring.py in bench/results.

    bench/ring_tables.py           rewrites what is between the page's two marks
    bench/ring_tables.py --check   exits 1 and says so when the page differs
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True
import generated
import results
from host_tables import markdown, time_text

PAGE = results.ROOT / "docs" / "distributed.md"
MARKS = "<!-- ring:begin -->", "<!-- ring:end -->"
PATTERN = "*-ring.json"
FIGURES = {"share": "Share of the ideal against the number of ranks, for each scheme"}
SCHEMES = ("ring", "all_gather", "grid", "ulysses")


def files(folder=results.RESULTS):
    return sorted(folder.glob(PATTERN))


def shared(rows):
    """Timed rows of more than one rank."""
    return [row for row in rows if row["timed"] and row["ranks"] > 1]


def name_of(row):
    """Ulysses has all rows, whatever the layout."""
    if row["scheme"] == "ulysses":
        return "Ulysses"
    scheme = {"all_gather": "all-gather", "grid": f"grid of {row['heads_ranks']}"}.get(row["scheme"], row["scheme"])
    return f"{scheme}, {row['layout']}"


def order_of(row):
    return SCHEMES.index(row["scheme"]), row["heads_ranks"] if row["scheme"] == "grid" else 0, row["layout"]


def calls_of(rows):
    """What was shared: dtype, pass and shape, in a fixed order."""
    return sorted({(row["dtype"], row["direction"], row["shape"]) for row in rows}, key=lambda call: (call[0], call[1] != "forward", call[2]))


def of_call(rows, call):
    return [row for row in rows if (row["dtype"], row["direction"], row["shape"]) == call]


def table(rows, heading, cell):
    """A line for each call and scheme, a column for each number of ranks."""
    ranks = sorted({row["ranks"] for row in rows})
    lines = []
    for call in calls_of(rows):
        schemes = {}
        for row in sorted(of_call(rows, call), key=order_of):
            schemes.setdefault(name_of(row), {})[row["ranks"]] = row
        lines += [[*call, name, *(cell(by_ranks[count]) if count in by_ranks else "" for count in ranks)]
                  for name, by_ranks in schemes.items()]
    return markdown(["dtype", "pass", "shape", "scheme", *(heading(count) for count in ranks)], lines)


def percent(share):
    return f"{100 * share:.0f} %"


def megabytes(count):
    return f"{count / 1e6:.2f}"


def share_table(rows):
    return table(rows, lambda count: f"{count} ranks",
                 lambda row: percent(row["share_of_ideal"]) + ("" if row["overlap"] is None else f" ({percent(row['overlap'])})"))


def model_table(rows):
    return table(rows, lambda count: f"{count} ranks: MB sent, time, planned",
                 lambda row: f"{megabytes(row['bytes_sent'])}, {time_text(row['real_time'])}, {time_text(row['planned_time'])}")


def alone_table(rows):
    lines = [[row["dtype"], row["direction"], row["shape"], time_text(row["real_time"]), percent(row["spread"])]
             for row in sorted(rows, key=lambda row: (row["dtype"], row["direction"] != "forward", row["shape"]))
             if row["timed"] and row["ranks"] == 1]
    return markdown(["dtype", "pass", "shape", "one rank", "spread"], lines)


def median(values):
    values = sorted(values)
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2


def bytes_sentence(rows):
    other = [row for row in rows if row["bytes_sent"] != row["planned_bytes"]]
    if not other:
        return f"In all {len(rows)} rows the bytes sent are those planned."
    return (f"In {len(other)} of {len(rows)} rows **other bytes are sent than planned**: "
            + "; ".join(f"{row['ranks']} ranks, {' '.join(calls_of([row])[0])}, {name_of(row)}" for row in other) + ".")


def plan_sentences(rows):
    """How the model's times stand to the measured ones: where each rank has its cores, and where ranks share them."""
    for is_shared, words in ((False, "Where each rank has a core"), (True, "Where ranks share cores")):
        ratios = [row["planned_time"] / row["real_time"] for row in rows if row["ranks_share_cores"] is is_shared]
        if ratios:
            yield (f"{words}, planned times are {min(ratios):.2f} to {max(ratios):.2f} times the measured ones, {median(ratios):.2f} in "
                   f"the middle ({len(ratios)} rows).")


def section(path):
    """Lines of Markdown about one file."""
    context, rows = results.read(path)
    facts, many = results.provenance(path), shared(rows)
    failed = [row for row in rows if not row["timed"]]
    loads = [run["load_avg"][0] for run in context["runs"]]
    lines = [f"### {facts['machine']}", "",
             f"{context['cores_of_host']} cores, one thread a rank, {context['mpi']}; measured {facts['date'][:10]} at commit "
             f"{facts['commit'][:12]}, load at the start of a run {min(loads):.1f} to {max(loads):.1f}: "
             f"[{path.name}](../bench/results/{path.name}), by `{facts['command']}`.", "", bytes_sentence(many),
             *plan_sentences(many)]
    if failed:
        lines += [f"{len(failed)} rows have no time: " + "; ".join(sorted({row["error_message"] for row in failed}))]
    for kind, words in FIGURES.items():
        if (results.ROOT / "docs" / "figures" / f"{path.stem}-{kind}.svg").exists():
            lines += ["", f"![{words}](figures/{path.stem}-{kind}.svg)"]
    return [*lines, "", *alone_table(rows), "", "Share of the ideal, and in parentheses the overlap:", "", *share_table(many), "",
            "Bytes that all ranks sent, measured and planned time:", "", *model_table(many), ""]


def tables():
    lines = [line for path in files() for line in section(path)]
    return "\n".join(lines).strip() + "\n"


def main():
    generated.main(__doc__.splitlines()[0], "bench/ring_tables.py", PAGE, MARKS, tables())


if __name__ == "__main__":
    main()
