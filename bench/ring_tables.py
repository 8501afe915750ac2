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
FIGURES = {"share": "Share of the ideal speed-up against the number of ranks, for each scheme; bars show the spread"}
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


def ranks_of(rows):
    return sorted({row["ranks"] for row in rows})


def percent(share):
    return f"{100 * share:.0f} %"


def megabytes(count):
    return f"{count / 1e6:.2f}"


def words_of(items):
    items = [str(item) for item in items]
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def cells_for_ranks(rows, ranks, cell):
    """A cell for each number of ranks: what `cell` makes of the call's rows with so many ranks; empty where there is none."""
    by_ranks = {count: [row for row in rows if row["ranks"] == count] for count in ranks}
    return [cell(found) if found else "" for found in by_ranks.values()]


def alone_text(rows):
    """t1 of a run; the row of one rank alone has its spread, too."""
    spread = f" (spread {percent(rows[0]['spread'])})" if rows[0]["ranks"] == 1 else ""
    return time_text(rows[0]["one_rank_time"]) + spread


def alone_table(rows):
    """t1 as each run measured it anew, which is what its shares of the ideal are of."""
    rows = [row for row in rows if row["timed"]]
    ranks = ranks_of(rows)
    lines = [[*call, *cells_for_ranks(of_call(rows, call), ranks, alone_text)] for call in calls_of(rows)]
    return markdown(["dtype", "pass", "shape", *(f"t₁ in the run of {count}" for count in ranks)], lines)


def fastest_text(rows):
    best = max(rows, key=lambda row: row["share_of_ideal"])
    return f"{name_of(best)}: {percent(best['share_of_ideal'])}"


def fastest_table(rows):
    """The way with the largest share of the ideal, for each call and number of ranks."""
    ranks = ranks_of(rows)
    lines = [[*call, *cells_for_ranks(of_call(rows, call), ranks, fastest_text)] for call in calls_of(rows)]
    return markdown(["dtype", "pass", "shape", *(f"{count} ranks" for count in ranks)], lines)


def overlap_text(row):
    """Of ranks that share cores it would say nothing."""
    return "" if row["overlap"] is None or row["ranks_share_cores"] else percent(row["overlap"])


def call_table(rows):
    """A line for each scheme and number of ranks."""
    lines = [[name_of(row), str(row["ranks"]), percent(row["share_of_ideal"]), time_text(row["real_time"]), percent(row["spread"]),
              time_text(row["planned_time"]), megabytes(row["bytes_sent"]), overlap_text(row)]
             for row in sorted(rows, key=lambda row: (order_of(row), row["ranks"]))]
    return markdown(["scheme", "ranks", "share of the ideal", "time", "spread", "planned time", "MB sent", "overlap"], lines)


def folded(title, lines):
    """What a page of GitHub shows when its title is clicked."""
    return ["<details>", f"<summary>{title}</summary>", "", *lines, "", "</details>"]


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
            yield (f"{words}, planned times are {min(ratios):.2f} to {max(ratios):.2f} times the measured ones, the median is "
                   f"{median(ratios):.2f} ({len(ratios)} rows).")


def place_of(context):
    """The machine that the ranks shared, in words."""
    cores = context["cores_of_host"]
    return ", ".join(filter(None, (f"{cores} core{'' if cores == 1 else 's'}", context.get("cpu"), context.get("flashomp_host_isa"))))


def section(path):
    """Lines of Markdown about one file."""
    context, rows = results.read(path)
    facts, many = results.provenance(path), shared(rows)
    failed = [row for row in rows if not row["timed"]]
    loads = [run["load_avg"][0] for run in context["runs"]]
    lines = [f"### {place_of(context)}", "",
             f"{words_of(ranks_of(rows))} ranks, one thread a rank, {context['mpi']}. Measured {facts['date'][:10]} at commit "
             f"{facts['commit']}, with a load of {min(loads):.1f} to {max(loads):.1f} when a run began: "
             f"[{path.name}](../bench/results/{path.name}), by `{facts['command']}`.", "", bytes_sentence(many),
             *plan_sentences(many)]
    if failed:
        lines += [f"{len(failed)} rows have no time: " + "; ".join(sorted({row["error_message"] for row in failed}))]
    for kind, words in FIGURES.items():
        if (results.ROOT / "docs" / "figures" / f"{path.stem}-{kind}.svg").exists():
            lines += ["", f"![{words}](figures/{path.stem}-{kind}.svg)"]
    lines += ["", "The time of one rank alone, which each run measured anew:", "", *alone_table(rows), "",
              "The scheme and layout with the largest share of the ideal, of those below:", "", *fastest_table(many), "",
              "All schemes and layouts, for each call"
              + (". No overlap is given where ranks share cores." if any(row["ranks_share_cores"] for row in many) else ":"), ""]
    for call in calls_of(many):
        lines += [*folded(" ".join(call), call_table(of_call(many, call))), ""]
    return lines


def tables():
    lines = [line for path in files() for line in section(path)]
    return "\n".join(lines).strip() + "\n"


def main():
    generated.main(__doc__.splitlines()[0], "bench/ring_tables.py", PAGE, MARKS, tables())


if __name__ == "__main__":
    main()
