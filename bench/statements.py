"""What a table says of how its rows were measured: what was compared, by which clocks who is ahead, the repetitions."""

import statistics

import results

FEWEST_REPETITIONS = 5


def is_ours(row):
    return row["implementation"].startswith("flashomp") and row["timed"]


def count_text(number, what):
    return f"{number} {what}{'' if number == 1 else 's'}"


def range_text(numbers):
    return f"{min(numbers)}" if min(numbers) == max(numbers) else f"{min(numbers)} to {max(numbers)}"


def shares_of(row):
    """Of one row: (heads, rows of each), (key heads, keys of each) that were compared."""
    parts = row["compared_parts"]
    with_keys = [part for part in parts if part.get("key_tensors")]
    sums = lambda spans: sum(count for _, count in spans)
    return ((sum(part["heads"][1] for part in parts), max(sums(part["rows"]) for part in parts)),
            (len(with_keys), max((sums(part["keys"]) for part in with_keys), default=0)))


def compared_text(rows):
    """Which results were compared with the float64 reference, and when. None where the file does not say."""
    rows = [row for row in rows if is_ours(row) and "compared" in row]
    if not rows:
        return None
    if not all("compared_parts" in row for row in rows):
        short = sum("the last 128" in row["compared"] or "last 128 of" in row["compared"] for row in rows)
        words = f"Compared with float64 before the timing only, by an older rule: in {short} of {count_text(len(rows), 'row')} "
        return words + ("o, LSE and dQ of the last 128 rows of one head, dK and dV not at all; in the others one key head with "
                        "its query heads.")
    forward = [shares_of(row)[0] for row in rows]
    words = (f"Compared with float64 in each call's results were o and LSE, backward dQ too, of {range_text([n for _, n in forward])} "
             f"rows in {range_text([heads for heads, _ in forward])} heads")
    backward = [shares_of(row)[1] for row in rows if row["direction"] == "backward"]
    if backward:
        words += (f"; dK and dV of {range_text([n for _, n in backward])} keys in {range_text([heads for heads, _ in backward])} "
                  "key heads")
    words += ". Where these are not all, they are from the beginning, the middle and the end; the file names them."
    again = sum(row.get("compared_after_timing", False) for row in rows)
    return words + (" This was done before the timing, and once more with what the timed calls left." if again == len(rows) else
                    f" This was done before the timing, and in {again} of {count_text(len(rows), 'row')} with what the timed calls "
                    "left, too.")


def ahead_text(rows, main, other):
    """In how many cells `main` is ahead of `other`, by both clocks. None where no cell has both."""
    cells = {}
    for row in rows:
        if row["timed"] and row["implementation"] in (main, other):
            cells.setdefault(row["run_name"], {})[row["implementation"]] = row
    both = [(here[main], here[other]) for here in cells.values() if len(here) == 2]
    if not both:
        return None
    ahead = lambda pairs, key: f"{sum(a[key] < b[key] for a, b in pairs)} of {len(pairs)}"
    words = f"ahead of {results.NAMES[other]} in {ahead(both, 'real_time')} cells by wall-clock"
    if not any(row.get("on_device") for row, _ in both):
        return words
    with_kernels = [(a, b) for a, b in both if a.get("kernel_time") and b.get("kernel_time")]
    return words + (f" and in {ahead(with_kernels, 'kernel_time')} by the time in kernels" if with_kernels else
                    ", the time in kernels not being recorded")


def spread_text(rows, names):
    """Of each implementation: the median and the largest (slowest - fastest)/median."""
    parts = []
    for name in names:
        spreads = [row["spread"] for row in rows if row["timed"] and row["implementation"] == name and "spread" in row]
        if spreads:
            parts.append(f"{results.NAMES[name]} {100 * statistics.median(spreads):.1f} % (at most {100 * max(spreads):.0f} %)")
    few = sum(row["timed"] and row.get("repetitions", FEWEST_REPETITIONS) < FEWEST_REPETITIONS for row in rows)
    text = f"Spread of the repetitions, (slowest - fastest)/median: {', '.join(parts)}." if parts else ""
    return text + (f" {count_text(few, 'row')} had fewer than {FEWEST_REPETITIONS} repetitions." if few else "") or None


def layouts_text(rows):
    """Which layouts of its tensors PyTorch was timed with."""
    rows = [row for row in rows if row["timed"] and "layout" in row]
    if not rows:
        return None
    theirs = sum(row["layout"] == "bhnd" for row in rows)
    return (f"PyTorch was timed on [batch, heads, rows, depth] and on flashomp's [batch, rows, heads, depth], with flashomp's "
            f"values. The better time counts: that of the first layout in {theirs} of {count_text(len(rows), 'row')}.")


def stopped_text(contexts):
    """How much of what was asked for was measured, where a run was stopped."""
    told = [f"Measured are {stopped['shapes_measured']} of the {stopped['shapes_asked_for']} shapes that were asked for: the "
            f"time was over before {stopped['before']}." for context in contexts if (stopped := context.get("stopped"))]
    return " ".join(told) or None


def lines_of(rows, main, others, contexts=()):
    """Lines of Markdown for below a table, each after an empty one."""
    ahead = [text for other in others if other.startswith("pytorch") and (text := ahead_text(rows, main, other))]
    told = [f"{results.NAMES[main]}: {'; '.join(ahead)}." if ahead else None, layouts_text(rows),
            spread_text(rows, [main, *others]), stopped_text(contexts), compared_text(rows)]
    text = " ".join(filter(None, told))
    return ["", text] if text else []
