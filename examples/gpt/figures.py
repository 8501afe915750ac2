"""The figures of docs/language_model.md: each of the rows of one JSON file in examples/gpt/results, by bench/plot.py's style."""
from typing import Any


def perplexity_figure(plot: Any, rows: list[dict[str, Any]]) -> Any:
    figure, axes = plot.plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
    for panel, dtype in zip(axes, ("float32", "bfloat16")):
        for row in rows:
            if row["dtype"] == dtype:
                points = row["validations"]
                panel.plot([p["step"] for p in points], [p["perplexity"] for p in points],
                           "-" if row["attention"] == "standard" else ":", linewidth=1 if row["attention"] == "standard" else 3,
                           color=f"C{row['seed'] - 1}", label=f"{row['attention']}, seed {row['seed']}")
        panel.set_title(dtype)
        panel.set_xlabel("step")
    axes[0].set_ylabel("perplexity of validation")
    axes[1].legend(fontsize=7)
    return figure


def memory_figure(plot: Any, rows: list[dict[str, Any]]) -> Any:
    figure, panel = plot.plt.subplots(figsize=(5, 3.6), layout="constrained")
    limit = rows[0]["memory_limit"] / 1e6
    for attention, style in (("standard", plot.STYLES["standard"]), ("flash", plot.STYLES["flashomp"])):
        all_of_it = [row for row in rows if row["attention"] == attention]
        done = [row for row in all_of_it if row["status"] == 0]
        panel.plot([row["seqlen"] for row in done], [row["kept_bytes"] / 1e6 for row in done], **style, label=attention)
        failed = [row["seqlen"] for row in all_of_it if row["status"] != 0]
        if failed:
            panel.plot(failed, [limit] * len(failed), "X", markersize=10, color=style["color"], label=f"{attention}: out of memory")
    panel.axhline(limit, color="gray", linestyle="--", label="limit of the process")
    plot.along_n(panel, {row["seqlen"] for row in rows}, "kept by the layers, MB")
    panel.set_yscale("log")
    plot.plain_log(panel.yaxis)
    panel.legend()
    return figure


def loss_figure(plot: Any, rows: list[dict[str, Any]]) -> Any:
    """Losses of all steps, and how far flash is from standard attention at each of them."""
    figure, axes = plot.plt.subplots(2, 2, figsize=(9, 5.4), layout="constrained", sharex=True, sharey="row")
    at = {(row["dtype"], row["seed"], row["attention"]): row["losses"] for row in rows}
    for (above, below), dtype in zip(axes.T, ("float32", "bfloat16")):
        for seed in sorted({key[1] for key in at if key[0] == dtype}):
            standard, flash = at[dtype, seed, "standard"], at[dtype, seed, "flash"]
            above.plot(standard, "-", linewidth=1, color=f"C{seed - 1}", label=f"standard, seed {seed}")
            above.plot(flash, ":", linewidth=2, color=f"C{seed - 1}", label=f"flash, seed {seed}")
            # Steps without any difference have no place on a logarithmic axis.
            below.plot([abs(a - b) or float("nan") for a, b in zip(flash, standard)], linewidth=1, color=f"C{seed - 1}")
        above.set_title(dtype)
        below.set_yscale("log")
        below.set_xlabel("step")
    axes[0][0].set_ylabel("loss, nats a byte")
    axes[1][0].set_ylabel("difference of the losses")
    axes[0][1].legend(fontsize=7, ncols=2)
    return figure


def time_figure(plot: Any, rows: list[dict[str, Any]]) -> Any:
    figure, panel = plot.plt.subplots(figsize=(5, 3.6), layout="constrained")
    for attention, style in (("standard", plot.STYLES["standard"]), ("flash", plot.STYLES["flashomp"])):
        done = [row for row in rows if row["attention"] == attention and row["status"] == 0]
        n = [row["seqlen"] for row in done]
        panel.plot(n, [1e3 * row["seconds"] for row in done], **style, label=f"{attention}, a step")
        panel.plot(n, [1e3 * row["attention_seconds"] for row in done], **{**style, "linewidth": 1, "linestyle": ":"},
                   label=f"{attention}, its attention")
    plot.along_n(panel, {row["seqlen"] for row in rows}, "ms")
    panel.set_yscale("log")
    plot.plain_log(panel.yaxis)
    panel.legend()
    return figure


def checkpoints_figure(plot: Any, rows: list[dict[str, Any]]) -> Any:
    """Bars of the four ways: what was measured, and a line where the plan predicts it."""
    figure, axes = plot.plt.subplots(1, 2, figsize=(7, 3.2), layout="constrained")
    for i, row in enumerate(rows):
        options = row["run"]["options"]
        color = plot.STYLES["standard" if options["attention"] == "standard" else "flashomp"]["color"]
        predicted = row["run"]["predicted"][row["way"]]
        for panel, value, expected in (
                (axes[0], row["kept_bytes"] / 1e6, predicted["peak_bytes"] / 1e6),
                (axes[1], 1e3 * row["seconds"], 1e3 * rows[0]["seconds"] * (1 + predicted["extra_flops"]))):
            panel.bar(i, value, 0.7, color=color if options["checkpoint"] == "none" else "none", edgecolor=color)
            panel.plot([i - 0.45, i + 0.45], [expected] * 2, color=plot.TEXT, linewidth=2,
                       label="predicted" if i == 0 else None)
    for panel, label in zip(axes, ("kept by the layers, MB", "a step, ms")):
        panel.set_xticks(range(len(rows)), [row["way"] for row in rows])
        panel.set_ylabel(label)
        panel.grid(axis="x", visible=False)
    axes[0].bar(0, 0, color="gray", edgecolor="gray", label="no layer recomputed")
    axes[0].bar(0, 0, color="none", edgecolor="gray", label="layers recomputed")
    axes[0].legend(fontsize=7)
    return figure


DRAWN = {"parity": {"parity": perplexity_figure, "loss": loss_figure},
         "limit": {"limit": memory_figure, "time": time_figure}, "memory": {"checkpoints": checkpoints_figure}}
