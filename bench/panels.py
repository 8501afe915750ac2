"""Which rows of a set are drawn together, and in which order: what plot.py does before it draws."""


def lengths_text(n, _=None):
    return f"{n / 1024:g}k" if n >= 1024 else f"{n:g}"


def panel_of(row):
    """Rows of one panel differ in N (and, with it, in batch and heads) alone."""
    return (row["dtype"], row["packed"], row["heads_q"] // row["heads_kv"], row["seqlen_q"] != row["seqlen_k"], row["causal"],
            row["head_dim"], row["head_dim_v"])


def size_text(rows):
    """Batch and heads of a panel's rows, of which the product with N may be what stays the same."""
    batches, heads = {row["batch"] for row in rows}, {row["heads_q"] for row in rows}
    per_key = {row["heads_q"] // row["heads_kv"] for row in rows}
    head = (f"{min(heads)}" if len(heads) == 1 else f"{min(heads)} to {max(heads)}") + f" head{'s' if max(heads) > 1 else ''}"
    grouped = f", {per_key.pop()} a key head" if per_key != {1} else ""
    if len(batches) == 1:
        return f"{batches.pop()} × {head}{grouped}"
    tokens = {row["batch"] * row["seqlen_k"] for row in rows}
    if len(tokens) == 1:
        return f"{lengths_text(tokens.pop())}/N × {head}{grouped}"
    return f"{min(batches)} to {max(batches)} × {head}{grouped}"


def name_of(rows):
    """A panel's title: what its rows have in common, but for what all panels have."""
    row = rows[0]
    depth = f"{row['head_dim']}" + (f"/{row['head_dim_v']}" if row["head_dim_v"] != row["head_dim"] else "")
    few = f", Nq = {row['seqlen_q']}" if row["seqlen_q"] != row["seqlen_k"] else ""
    return (f"{size_text(rows)} of {depth}, {'causal' if row['causal'] else 'full'}{few}{', packed' if row['packed'] else ''}, "
            f"{row['dtype']}")


def of_one_size(rows):
    """Where a panel has an N with several numbers of heads: the rows of that which has most lengths, or else most heads."""
    sizes = {}
    for row in rows:
        sizes.setdefault(panel_of(row), {}).setdefault((row["batch"], row["heads_q"]), set()).add(row["seqlen_k"])
    chosen = {}
    for panel, lengths in sizes.items():
        if sum(len(each) for each in lengths.values()) > len(set().union(*lengths.values())):
            chosen[panel] = max(lengths, key=lambda size: (len(lengths[size]), size[0] * size[1]))
    return [row for row in rows if chosen.get(panel_of(row), (row["batch"], row["heads_q"])) == (row["batch"], row["heads_q"])]


def by_panel(rows):
    """{(direction, panel): {implementation: {N: row}}}, in a fixed order."""
    rows = of_one_size(rows)
    alike = {}
    for row in rows:
        alike.setdefault(panel_of(row), []).append(row)
    panels = {}
    for key, here in sorted(alike.items()):
        name = name_of(here)
        for direction in ("forward", "backward"):
            for row in here:
                if row["direction"] == direction:
                    panels.setdefault((direction, name), {}).setdefault(row["implementation"], {})[row["seqlen_k"]] = row
    return panels


def dtypes_of(names):
    """Those of panels, in the order of the panels."""
    return list(dict.fromkeys(name.rpartition(", ")[2] for name in names))


def bands_of(names):
    """The panels' names in rows of at most three: a row has one dtype, and of four panels two."""
    bands = []
    for dtype in dtypes_of(names):
        here = [name for name in names if name.endswith(f", {dtype}")]
        width = 2 if len(here) == 4 else 3
        bands += [here[start:start + width] for start in range(0, len(here), width)]
    return bands
