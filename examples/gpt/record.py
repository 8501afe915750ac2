#!/usr/bin/env python3
"""Runs examples/gpt for what docs/language_model.md shows, and writes the page's tables and figures from that.

  examples/gpt/record.py run --gpt build/release/bin/gpt [--data PATH] [PART ...]   JSON in examples/gpt/results
  examples/gpt/record.py page [--check]                                            tables and figures, from that JSON

Parts: parity (flash and standard, three seeds, two types), memory (the four combinations beside the plan's prediction),
limit (N where memory ends), default (three seeds of the default run, beside its 5-gram model, and one without its tables of
n-grams). --check writes nothing and fails where a table is not that of the JSON.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Optional

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
ROOT = HERE.parent.parent
PAGE = ROOT / "docs" / "language_model.md"
FIGURES = ROOT / "docs" / "figures" / "gpt"
NO_TABLES = ["--hashed-ngrams", "0"]  # the model whose memory the plan predicts
SMALL = NO_TABLES + ["--layers", "2", "--heads", "4", "--dim", "64", "--batch", "4", "--seqlen", "256", "--steps", "300",
                     "--learning-rate", "0.002", "--eval-every", "50", "--ngram", "0", "--alibi", "true"]
MEMORY = NO_TABLES + ["--layers", "6", "--heads", "4", "--dim", "128", "--batch", "2", "--seqlen", "512", "--dtype",
                      "bfloat16", "--dropout", "0.1", "--steps", "12", "--eval-every", "0", "--ngram", "0", "--limit",
                      "200000"]
WAYS = {"none": ("standard", "none"), "flash": ("flash", "none"), "checkpoint": ("standard", "layer"),
        "both": ("flash", "layer")}
LIMIT = 2_000_000_000
Lines = list[dict[str, Any]]


def cpu() -> str:
    """The CPU's name."""
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return found.group(1) if found else "unknown"


class Program:
    """The program, with the text that is asked for."""

    def __init__(self, path: str, data: Optional[str]):
        self.command = [path] + (["--data", data] if data else [])

    def run(self, options: list[str]) -> tuple[int, Lines, str]:
        """Status, the lines of JSON and what was printed."""
        with tempfile.TemporaryDirectory() as folder:
            record = Path(folder) / "run.jsonl"
            done = subprocess.run(self.command + options + ["--json", str(record)], text=True, capture_output=True,
                                  env={**os.environ, "FLASHOMP_TUNING": "off"})
            text = record.read_text() if record.exists() else ""
        return done.returncode, [json.loads(line) for line in text.splitlines()], done.stdout + done.stderr

    def expect(self, options: list[str]) -> tuple[Lines, str]:
        """The same of a run that must succeed."""
        status, lines, text = self.run(options)
        if status != 0:
            sys.exit(f"record.py: {' '.join(options)} ended with status {status}: {text}")
        return lines, text


def of_type(lines: Lines, kind: str) -> Lines:
    return [line for line in lines if line["type"] == kind]


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def summary(options: list[str], lines: Lines) -> dict[str, Any]:
    """What the tables and figures need of a run."""
    steps = of_type(lines, "step")
    later = steps[2:] or steps  # the first ones ask the system for memory
    result, end = of_type(lines, "result"), of_type(lines, "end")
    if result and (ngram := of_type(lines, "ngram")):
        result[0]["ngram"] = ngram[0]
    return {"options": options, "run": lines[0], "ran": end[0]["attention"] if end else "", "losses": [step["loss"] for step in steps],
            "validations": of_type(lines, "validation"), "result": result[0] if result else None,
            "seconds": median([step["seconds"] for step in later]),
            "attention_seconds": median([step["attention_seconds"] for step in later]),
            "kept_bytes": max(step["kept_bytes"] for step in steps),
            "peak_resident_bytes": max(step["peak_resident_bytes"] for step in steps)}


def parity(program: Program) -> list[dict[str, Any]]:
    rows = []
    for dtype in ("float32", "bfloat16"):
        for seed in ("1", "2", "3"):
            for attention in ("standard", "flash"):
                options = SMALL + ["--dtype", dtype, "--seed", seed, "--attention", attention]
                lines, _ = program.expect(options)
                rows.append({"dtype": dtype, "seed": int(seed), "attention": attention, **summary(options, lines)})
    return rows


def memory(program: Program) -> list[dict[str, Any]]:
    rows = []
    for way, (attention, checkpoint) in WAYS.items():
        options = MEMORY + ["--attention", attention, "--checkpoint", checkpoint]
        lines, _ = program.expect(options)
        rows.append({"way": way, **summary(options, lines)})
    return rows


def limit(program: Program) -> list[dict[str, Any]]:
    rows = []
    for attention in ("standard", "flash"):
        for seqlen in (512, 1024, 2048, 4096, 8192):
            options = NO_TABLES + ["--layers", "4", "--heads", "4", "--dim", "64", "--batch", "1", "--steps", "7", "--ngram", "0",
                       "--eval-every", "0", "--limit", "100000", "--memory-limit", str(LIMIT), "--seqlen", str(seqlen),
                       "--attention", attention]
            status, lines, text = program.run(options)
            row: dict[str, Any] = {"attention": attention, "seqlen": seqlen, "status": status, "memory_limit": LIMIT}
            if status == 0:
                row.update(summary(options, lines))
            else:
                row["said"] = text.strip().splitlines()[-1]
            rows.append(row)
    return rows


def default(program: Program) -> list[dict[str, Any]]:
    rows = []
    for options in (["--sample", "400"], ["--seed", "2"], ["--seed", "3"], NO_TABLES + ["--ngram", "0"]):
        lines, text = program.expect(options)
        rows.append({**summary(options, lines), "printed": text})
    return rows


PARTS = {"parity": parity, "memory": memory, "limit": limit, "default": default}


def percent(a: float, b: float) -> str:
    return f"{100 * (a / b - 1):+.3f} %"


LIMITS = {"float32": 0.001, "bfloat16": 0.005}  # of the difference between the perplexities of flash and standard


def parity_table(rows: list[dict[str, Any]]) -> list[str]:
    table = header(["dtype", "seed", "standard", "flash", "difference", "a step, standard", "a step, flash"])
    at = {(row["dtype"], row["seed"], row["attention"]): row for row in rows}
    largest: dict[str, float] = {}
    for dtype, seed in dict.fromkeys((row["dtype"], row["seed"]) for row in rows):
        pair = [at[dtype, seed, attention] for attention in ("standard", "flash")]
        standard, flash = (row["result"]["validation"]["perplexity"] for row in pair)
        difference = flash / standard - 1
        largest[dtype] = max(largest.get(dtype, 0.0), abs(difference))
        table.append(line([dtype, str(seed), f"{standard:.5f}", f"{flash:.5f}", f"{100 * difference:+.1e} %",
                           *(f"{1e3 * row['seconds']:.0f} ms" for row in pair)]))
    table.append("")
    for dtype, most in largest.items():
        spreads = {}
        for attention in ("standard", "flash"):
            values = [row["result"]["validation"]["perplexity"] for key, row in at.items() if (key[0], key[2]) == (dtype, attention)]
            spreads[attention] = (max(values) - min(values)) / (sum(values) / len(values))
        verdict = "below" if most < LIMITS[dtype] else "NOT BELOW"
        table.append(f"{dtype}: the largest difference is {100 * most:.1e} %, {verdict} the {100 * LIMITS[dtype]:.1f} % that are allowed. From "
                     f"seed to seed, (largest - smallest) / mean, standard differs by {100 * spreads['standard']:.2f} % and flash by "
                     f"{100 * spreads['flash']:.2f} %.")
    return table


def peak_column(rows: list[dict[str, Any]]) -> bool:
    """Whether all records have the resident peak of their steps. That of older ones is of what came before."""
    return all(row["run"].get("peak_resident_is_of_steps", False) for row in rows if "run" in row)


def header(columns: list[str], texts: int = 1) -> list[str]:
    """The first two lines of a table: so many columns of text, and numbers to the right of them."""
    return ["| " + " | ".join(columns) + " |", "|" + " --- |" * texts + " ---: |" * (len(columns) - texts)]


def line(cells: list[str]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def memory_table(rows: list[dict[str, Any]]) -> list[str]:
    peaks = peak_column(rows)
    table = header(["way", "kept, predicted", "kept", "difference"] + ["resident peak"] * peaks +
                   ["step", "attention", "rest", "step, of none's", "FLOPs of layers, predicted of none's"])
    farthest, none = 0.0, rows[0]
    for row in rows:
        predicted, ratio = row["run"]["predicted"][row["way"]], row["seconds"] / none["seconds"]
        farthest = max(farthest, abs(row["kept_bytes"] / predicted["peak_bytes"] - 1))
        table.append(line([row["way"], f"{predicted['peak_bytes'] / 1e6:.2f} MB", f"{row['kept_bytes'] / 1e6:.2f} MB",
                           percent(row["kept_bytes"], predicted["peak_bytes"])] +
                          [f"{row['peak_resident_bytes'] / 1e6:.0f} MB"] * peaks +
                          [f"{1e3 * seconds:.0f} ms" for seconds in
                           (row["seconds"], row["attention_seconds"], row["seconds"] - row["attention_seconds"])] +
                          [f"{ratio:.3f}", f"{1 + predicted['extra_flops']:.3f}"]))
    same = all(row["losses"] == rows[i % 2]["losses"] for i, row in enumerate(rows))
    words = [f"What is kept differs from the prediction by at most {100 * farthest:.1f} %, of 5 % that are allowed. Losses with and "
             f"without recomputation: {'the same bits' if same else 'DIFFERENT'}."]
    for row in rows[1:]:
        extra, by_attention = row["seconds"] - none["seconds"], row["attention_seconds"] - none["attention_seconds"]
        predicted = row["run"]["predicted"][row["way"]]["extra_flops"] * none["seconds"]
        words.append(f"*{row['way']}* differs from *none* by {1e3 * extra:+.0f} ms, attention alone by {1e3 * by_attention:+.0f} ms; more FLOPs at *none*'s "
                     f"speed would be {1e3 * predicted:+.0f} ms.")
    return table + ["", " ".join(words)]


def limit_table(rows: list[dict[str, Any]]) -> list[str]:
    peaks = peak_column(rows)
    table = header(["attention", "N", "kept"] + ["resident peak"] * peaks + ["step"])
    for row in rows:
        cells = [row["attention"], str(row["seqlen"])]
        if row["status"] == 0:
            cells += [f"{row['kept_bytes'] / 1e6:.1f} MB"] + [f"{row['peak_resident_bytes'] / 1e6:.0f} MB"] * peaks
            cells += [f"{1e3 * row['seconds']:.0f} ms"]
        else:
            cells += ["out of memory"] + [""] * (1 + peaks)
        table.append(line(cells))
    steps = min(len(row["losses"]) for row in rows if row["status"] == 0)
    return table + ["", "A step is the slower one of the first two." if steps == 2 else
                    f"A step is the median of {steps - 2}, after two that ask the system for memory."]


def default_table(rows: list[dict[str, Any]]) -> list[str]:
    table = header(["model", "seed", "weights", "training", "perplexity a byte", "bits a byte"])
    for row in rows:
        result, ngrams = row["result"], row["run"]["options"]["hashed_ngrams"]
        name = f"GPT, hashed n-grams to {ngrams}" if ngrams else "GPT, no n-grams"
        quality = result["validation"]
        table.append(line([name, str(row["run"]["options"]["seed"]), str(row["run"]["parameters"]), f"{result['seconds']:.0f} s",
                           f"{quality['perplexity_per_byte']:.3f}", f"{quality['bits_per_byte']:.3f}"]))
    ngram = rows[0]["result"]["ngram"]
    table.append(line([f"{ngram['order']}-gram", "", "", "", f"{ngram['perplexity_per_byte']:.3f}", f"{ngram['bits_per_byte']:.3f}"]))
    return table + ["", "What the first one writes with `--sample 400`:", "", "```text", *sample_of(rows[0]["printed"]), "```"]


def sample_of(printed: str) -> list[str]:
    """The lines that the program wrote of its own, after those of its progress."""
    return re.split(r"^\d+-gram model .*\n", printed, maxsplit=1, flags=re.MULTILINE)[1].strip("\n").expandtabs().splitlines()


TABLES = {"parity": parity_table, "memory": memory_table, "limit": limit_table, "default": default_table}


def load(part: str) -> Optional[dict[str, Any]]:
    path = RESULTS / f"{part}.json"
    return json.loads(path.read_text()) if path.exists() else None


def draw_figures() -> None:
    """Those whose JSON is there."""
    sys.path.insert(0, str(ROOT / "bench"))
    import figures  # pylint: disable=import-outside-toplevel
    import plot  # pylint: disable=import-outside-toplevel
    FIGURES.mkdir(exist_ok=True)
    for part, drawn in figures.DRAWN.items():
        data = load(part)
        if data:
            for name, figure in drawn.items():
                (FIGURES / f"{name}.svg").write_text(plot.svg(figure(plot, data["rows"]), [f"{part}.json"]))


def command_words(rows: list[dict[str, Any]]) -> str:
    """The options that all runs of a part have."""
    pairs = [list(zip(row["options"][::2], row["options"][1::2])) for row in rows if "options" in row]
    common = [pair for pair in pairs[0] if all(pair in others for others in pairs)]
    return " ".join(["gpt", *(word for pair in common for word in pair)])


def page_text(text: str) -> str:
    """The page with each table as the JSON has it."""
    for part, table in TABLES.items():
        data = load(part)
        if data is None:
            body = "Not recorded yet: `examples/gpt/record.py run`."
        else:
            ran = ", ".join(dict.fromkeys(row["ran"] for row in data["rows"] if row.get("ran")))
            body = "\n".join(table(data["rows"]) + [
                "", f"From [{part}.json](../examples/gpt/results/{part}.json), which `examples/gpt/record.py run --gpt build/release/bin/gpt "
                f"{part}` wrote. All runs are `{command_words(data['rows'])}`, with the options that the table names. Commit "
                f"{data['commit']}, {data['cpu']}, {data['threads']} threads{', ' + ran if ran else ''}, load {data['load']:.1f} when it "
                "began."])
        text = re.sub(f"(<!-- {part}:begin -->\n).*?(<!-- {part}:end -->)", lambda m: f"{m[1]}{body}\n{m[2]}", text,
                      flags=re.DOTALL)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("--gpt", required=True)
    run.add_argument("--data")
    run.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    page = commands.add_parser("page")
    page.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if arguments.command == "page" and arguments.check:
        if page_text(PAGE.read_text()) != PAGE.read_text():
            sys.exit(f"record.py: tables of {PAGE.name} are not those of {RESULTS.name}/*.json; run examples/gpt/record.py page.")
        return
    if arguments.command == "page":
        draw_figures()
        PAGE.write_text(page_text(PAGE.read_text()))
        return
    load_before = os.getloadavg()[0]  # later it is this program's own
    for part in arguments.parts or list(PARTS):
        if part not in PARTS:
            parser.error(f"PART was {part}; allowed is {', '.join(PARTS)}")
        rows = PARTS[part](Program(arguments.gpt, arguments.data))
        build = next(row["run"] for row in rows if "run" in row)
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{part}.json").write_text(json.dumps(
            {"part": part, "commit": build["build"]["commit"], "build": build["build"], "threads": build["threads"],
             "cpu": cpu(), "load": load_before, "command": sys.argv[1:], "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
