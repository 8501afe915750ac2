"""Numbers in prose that come from the committed results: filled in and checked, so that none of them is typed.

Behind a number in a page stands a comment that says what it is, which a reader of the page does not see:

    at least 1.08<!-- result: h200-openmp.json least ratio to pytorch-flash d=256 n>=2048 --> of FlashAttention-2

tools/results_table computes the value and writes it with as many decimals as were there. The words of a comment, in this order:

    FILE,FILE           files of bench/results, read as one set; FILE..FILE two versions of a set
    least most median   of the rows that are chosen; `count<1.2` (or > <= >=): how many of them; `rows`: their number.
                        Without one of these exactly one row has to be chosen
    time kernels speed  what of a row: ms by wall-clock, ms in kernels, TFLOP/s; `ratio`, `kernel-ratio`: the time of another
                        implementation over this one's; `share`: of the peak that the row names; of two versions `faster`,
                        `slower` and `drift`, which is either, and `bfloat16-ratio`, the first one's time in bfloat16 over the
                        second one's in its own type; `beyond`: ms that are not in kernels; `time-of-16`: the time with
                        16 key heads over that with one; or a key of the row
    of X                the implementation, a key of results.NAMES, or `all`; the first that is there unless named
    to Y                for the ratios: the other one
    forward bfloat16 causal full d=64,128 n=512 n>=2048 heads=4 threads=2 machine=host-avx2 shape=NAME modified=softcap
                        which rows; every word narrows the choice
    us % x1000          the unit, where it is another

unsourced() finds numbers with a unit of time or speed that have no such comment, in a block that does not say that they were
read off a terminal.
"""

import functools
import operator
import re
import statistics

import results

PAGES = ("README.md", "docs/offload.md", "docs/host.md", "docs/cuda.md", "docs/algorithm.md", "docs/tuning.md", "docs/ci.md",
         "docs/log/hidden-keys.md", "CHANGELOG.md")
QUOTE = re.compile(r"(\d[\d,]*(?:\.\d+)?)(<!--\s+result:\s+(.*?)\s+-->)", re.S)
COMPARE = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge, "=": operator.eq}
CONDITION = re.compile(r"(n|d|heads|batch|threads|products)(<=|>=|<|>|=)([\d,]+)$")
KEYS = {"n": "seqlen_k", "d": "head_dim", "heads": "heads_q"}
UNITS = {"us": 1e3, "%": 1e2}
CHANGES = {"faster": lambda before, after: before / after - 1, "slower": lambda before, after: 1 - before / after,
           "drift": lambda before, after: abs(before / after - 1)}
FIELDS = {"time": "real_time", "kernels": "kernel_time", "speed": "TFLOP/s"}


class Wrong(ValueError):
    """A comment that says nothing that can be computed."""


@functools.lru_cache(maxsize=None)
def rows_of(names):
    rows = []
    for name in names.split(","):
        path = results.RESULTS / name
        if not path.exists():
            raise Wrong(f"there is no bench/results/{name}")
        rows += [row | {"file": name} for row in results.read(path)[1]]
    return rows


def others_of(rows, implementation, field, between_files):
    """A function from a row to the value of the same call by another implementation, or in another file."""
    rows = [row for row in rows if row["implementation"] == implementation and row["timed"]]
    more = [key for key in ("threads", "machine") if any(key in row for row in rows)]  # where one file has several

    def key(row):
        return (row["direction"], row["dtype"], row["shape"], *(row.get(key) for key in more),
                None if between_files else row["file"])
    found = {key(row): row.get(field) for row in rows}
    return lambda row: found.get(key(row))


def chosen(rows, words):
    """The rows that all words leave."""
    for word in words:
        if word in ("forward", "backward"):
            rows = [row for row in rows if row["direction"] == word]
        elif word in ("float32", "bfloat16", "float16", "float8_e4m3"):
            rows = [row for row in rows if row["dtype"] == word]
        elif word in ("causal", "full"):
            rows = [row for row in rows if row["causal"] == (word == "causal")]
        elif condition := CONDITION.match(word):
            key, compare, numbers = condition.groups()
            values = [int(number) for number in numbers.split(",")]
            rows = [row for row in rows if any(COMPARE[compare](row[KEYS.get(key, key)], value) for value in values)]
        elif word.startswith("modified="):
            rows = [row for row in rows if row["modified"].startswith("_" + word.removeprefix("modified="))]
        elif word.startswith(("shape=", "machine=")):
            key, value = word.split("=")
            rows = [row for row in rows if row[key] == value]
        else:
            raise Wrong(f"'{word}' is no word of a result")
    return rows


def take(words, *allowed):
    """The first word if it is one of `allowed`, and then no longer there."""
    return words.pop(0) if words and words[0] in allowed else None


def values_of(files, quantity, of, to, words):
    """One number for each row that the words choose."""
    before, _, after = files.rpartition("..")
    rows = rows_of(after)
    names = [name for name in results.NAMES if any(row["implementation"] == name for row in rows)]
    of = of or names[0]
    if of not in (*names, "all"):
        raise Wrong(f"{after} has no {of}")
    mine = [row for row in chosen(rows, words) if of in (row["implementation"], "all") and row["timed"]]
    if quantity == "share":
        return [1e12 * row["TFLOP/s"] / row["peak_flops"] for row in mine]
    if quantity in CHANGES:
        before_of = others_of(rows_of(before), of, "real_time", True)
        return [CHANGES[quantity](before_of(row), row["real_time"]) for row in mine if before_of(row)]
    if quantity == "bfloat16-ratio":
        first = {(row["direction"], row["shape"]): row["real_time"] for row in chosen(rows_of(before), ["bfloat16"])
                 if row["implementation"] == "flashomp-cuda" and row["timed"]}
        return [first[row["direction"], row["shape"]] / row["real_time"] for row in mine
                if (row["direction"], row["shape"]) in first]
    if quantity in ("ratio", "kernel-ratio"):
        field = FIELDS["kernels" if quantity == "kernel-ratio" else "time"]
        other = others_of(rows, to, field, False)
        return [other(row) / row[field] for row in mine if other(row) and field in row]
    if quantity == "beyond":
        return [row["real_time"] - row["kernel_time"] for row in mine if "kernel_time" in row]
    if quantity == "time-of-16":
        def call(row):
            return row["direction"], row["dtype"], row["batch"], row["seqlen_k"], row["head_dim"], row["causal"]
        many = {call(row): row["real_time"] for row in mine if row["heads_kv"] == 16}
        return [many[call(row)] / row["real_time"] for row in mine if row["heads_kv"] == 1 and call(row) in many]
    field = FIELDS.get(quantity, quantity)
    return [row[field] for row in mine if field in row]


def value(comment):
    """The number that a comment describes."""
    words = comment.split()
    files = words.pop(0)
    statistic = words.pop(0) if words and re.match(r"(least|most|median|rows)$|count[<>=]", words[0]) else "one"
    quantity = words.pop(0) if words else "time"
    of = to = None
    while word := take(words, "of", "to"):
        of, to = (words.pop(0), to) if word == "of" else (of, words.pop(0))
    unit = 1.0
    if words and (words[-1] in UNITS or re.fullmatch(r"x[\d.e-]+", words[-1])):
        unit = UNITS.get(words[-1]) or float(words[-1][1:])
        words.pop()
    found = [one * unit for one in values_of(files, quantity, of, to, words)]
    if statistic == "rows":
        return len(found)
    if not found:
        raise Wrong("no row is chosen")
    if statistic.startswith("count"):
        compare, limit = re.fullmatch(r"count([<>]=?|=)([\d.]+)", statistic).groups()
        return sum(COMPARE[compare](one, float(limit)) for one in found)
    if statistic == "one":
        if len(found) != 1:
            raise Wrong(f"{len(found)} rows are chosen where one is needed")
        return found[0]
    return {"least": min, "most": max, "median": statistics.median}[statistic](found)


def as_written(number, like):
    """A number with as many decimals, and with commas if there are some."""
    decimals = len(like.partition(".")[2])
    text = f"{number:,.{decimals}f}"
    return text if "," in like else text.replace(",", "")


def filled(text, page="a page"):
    """`text` with all quoted numbers as the results have them."""
    def quote(match):
        shown, comment, words = match.groups()
        try:
            return as_written(value(words), shown) + comment
        except (Wrong, KeyError, TypeError) as error:
            raise Wrong(f"{page}: '{' '.join(words.split())}': {error}") from error
    return QUOTE.sub(quote, text)


MEASURED = re.compile(r"(?<![\w.^])\d[\d,.]*(?:\s(?:to|and|or)\s\d[\d,.]*)*\s?(?:µs|ms|cycles|%|[TGM]FLOP/s|[TG]B/s|times as fast|"
                      r"of FlashAttention|of PyTorch)")
ELSEWHERE = ("read off", "predicted:", "predicted ")


def blocks(text):
    """(section, block) of a page: paragraphs, items of lists and rows of tables; code is none of them."""
    section, block, in_code = "", [], False
    for line in [*text.splitlines(), ""]:
        if line.startswith("```"):
            in_code = not in_code
        if in_code or line.startswith("```") or (line.startswith("    ") and not block):
            continue
        starts = re.match(r"#|[-*] |\d+\. |\|", line)
        if (starts or not line.strip()) and block:
            yield section, "\n".join(block)
            block = []
        if line.startswith("#"):
            section = line.lstrip("# ")
        elif line.strip():
            block.append(line)


def unsourced(text):
    """Numbers of time or speed that have neither a comment nor, in their block or section, a word on where they are from."""
    all_blocks = list(blocks(text))
    sections = {}
    for section, block in all_blocks:
        sections.setdefault(section, []).append(block)
    excused = {section for section, texts in sections.items()
               if any("in this section" in " ".join(one.split()) and "read off" in one for one in texts)}
    found = []
    for section, block in all_blocks:
        bare = QUOTE.sub("", block)
        if section in excused or any(word in bare for word in ELSEWHERE) or "results.md" in block:
            continue
        found += [f"{section}: {match.group(0)}" for match in MEASURED.finditer(bare)]
    return found
