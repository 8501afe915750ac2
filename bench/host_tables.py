"""Tables of what is recorded about the host beside times of shapes: threads, memory, instruction sets, instructions.

sections() has them for the pages; a table is there when its file is (bench/host_record.sh makes them).
"""

import collections
import json

import results

Section = collections.namedtuple("Section", "title words lines paths")  # lines: of a table in Markdown


def time_text(milliseconds):
    return f"{milliseconds:.2f} ms" if milliseconds < 100 else f"{milliseconds:.0f} ms"


def speed_text(teraflops):
    return f"{teraflops:.2f} TFLOP/s" if teraflops >= 1 else f"{teraflops * 1e3:.0f} GFLOP/s"


def memory_text(count):
    return f"{count / 2**20:.1f} MiB" if count < 10 * 2**30 else f"{count / 2**30:.0f} GiB"


def markdown(heading, rows):
    return ["| " + " | ".join(cells) + " |" for cells in [heading, ["---"] * len(heading), *rows]]


def call_text(row):
    return f"{row['direction']} {row['dtype']} {row['shape']}"


def scaling(files):
    """A line for each machine, call and implementation, a column for each number of threads."""
    threads = sorted({row["threads"] for _, rows in files for row in rows})
    machines = len(files) > 1
    lines = []
    for context, rows in files:
        times = {}
        for row in rows:
            if row["timed"]:
                times.setdefault(call_text(row), {}).setdefault(row["implementation"], {})[row["threads"]] = row["real_time"]
        for call, name, by_threads in ((call, *one) for call, each in times.items() for one in each.items()):
            cells = [f"{context.get('cpu', 'host')}, {context.get('num_cpus', '?')} CPUs"] if machines else []
            cells += [call, results.NAMES.get(name, name)]
            for count in threads:
                if count not in by_threads:
                    cells.append("")
                elif count == 1 or 1 not in by_threads:
                    cells.append(time_text(by_threads[count]))
                else:
                    cells.append(f"{time_text(by_threads[count])} ({by_threads[1] / by_threads[count]:.2f}x)")
            lines.append(cells)
    heading = (["machine"] if machines else []) + ["pass, dtype, shape", "implementation"]
    return markdown(heading + [f"{count} thread{'s' if count > 1 else ''}" for count in threads], lines)


def memory(files):
    """A line for each length, a column for each call and what standard attention would store."""
    (_, rows), = files
    calls = sorted({(row["dtype"], row["direction"]) for row in rows}, reverse=True, key=lambda call: (call[0], call[1]))
    by_key = {(row["seqlen_k"], row["dtype"], row["direction"]): row for row in rows}
    heading = ["N"]
    for dtype, direction in calls:
        heading += [f"{direction}, {dtype}", "bytes a row", "standard attention"]
    lines = []
    for length in sorted({row["seqlen_k"] for row in rows}):
        cells = [f"{length}"]
        for dtype, direction in calls:
            row = by_key.get((length, dtype, direction))
            cells += ["", "", ""] if row is None or not row["timed"] else [
                memory_text(row["peak_bytes"]), f"{row['peak_bytes'] / length:.0f}", memory_text(row["standard_bytes"])]
        lines.append(cells)
    return markdown(heading, lines)


def isas(files):
    (_, rows), = files
    lines = []
    for row in rows:
        share = 1e12 * row["TFLOP/s"] / row["peak_flops"]
        needed, at_first = (5, 7) if row["direction"] == "backward" else (2, 2)
        executed = share * row.get("products", at_first) / needed  # older files do not say
        lines.append([row["machine"].removeprefix("host-"), call_text(row), time_text(row["real_time"]),
                      speed_text(row["TFLOP/s"]), speed_text(row["peak_flops"] * 1e-12), f"{100 * share:.0f} %",
                      f"{100 * executed:.0f} %"])
    return markdown(["instruction set", "pass, dtype, shape", "time", "speed", "the loop's", "share",
                     "share, all products carried out"], lines)


def instructions(files):
    (_, rows), = files
    lines = [[call_text(row), f"{row['instructions'] / 1e6:.1f} million", f"{row['instructions'] / row['multiply_adds']:.3f}",
              f"{row['instructions'] / row['carried_out']:.3f}", f"{8 * row['instructions'] / row['carried_out']:.2f}"]
             for row in rows]
    return markdown(["pass, dtype, shape", "instructions", "a multiply-add needed", "a multiply-add carried out",
                     "the same, as a multiple of 1/8"], lines)


def caches(files):
    """A line for each call with a cache in the type of q, and beside it those of 8 bits."""
    kinds = {"": "as q", "_float8": "float8_e4m3", "_int8": "int8"}
    lines = []
    for context, rows in files:
        found = {(row["dtype"], row["shape"]): row for row in rows if row["timed"]}
        for dtype, shape in found:
            if shape.endswith(("_float8", "_int8")):
                continue
            cells = [f"{context.get('cpu', 'host')}, {context.get('flashomp_host_isa', '?')}"] if len(files) > 1 else []
            cells.append(f"{dtype} {shape}")
            for kind in kinds:
                row = found.get((dtype, shape + kind))
                cells += [""] * 3 if row is None else [
                    time_text(row["real_time"]), f"{row['bandwidth_share'] * row['copy_bandwidth'] / 1e9:.1f}", f"{row['bandwidth_share']:.2f}"]
            lines.append(cells)
    heading = ["machine"] if len(files) > 1 else []
    return markdown(heading + ["q, shape"] + [text for kind in kinds.values() for text in (f"cache {kind}", "GB/s", "of a copy")], lines)


def size_text(count):
    return f"{count / 2**20:.0f} MiB" if count >= 2**20 else f"{count / 2**10:.0f} KiB"


def machines(folder=results.RESULTS):
    """{(CPUs, MHz, caches): {"cpu", "isas", "files"}} of all hosts that files of results name, those of host-*.json first."""
    found = {}
    for path in sorted(folder.glob("*.json"), key=lambda path: (not path.name.startswith("host"), path.name)):
        context = json.loads(path.read_text()).get("context", {})
        if "num_cpus" not in context or not context.get("caches"):
            continue
        caches = tuple((one["level"], one["type"], one["size"], one["num_sharing"]) for one in context["caches"])
        one = found.setdefault((context["num_cpus"], context["mhz_per_cpu"], caches), {"cpu": "", "isas": set(), "files": []})
        one["cpu"] = one["cpu"] or context.get("cpu", "")
        one["isas"] |= {context.get("flashomp_host_isa")} - {None, ""}
        one["files"].append(path.name)
    return found


def letter_of(found, name):
    """A machine's letter in the tables: that of the machine which a file of results names."""
    return next(chr(ord("A") + index) for index, one in enumerate(found.values()) if name in one["files"])


def machine_lines(found):
    """A line for each machine. The CPUs of virtual machines hide their model, so that caches tell machines apart."""
    lines = []
    for (cpus, mhz, caches), one in found.items():
        size = {level: (size, sharing) for level, kind, size, sharing in caches if kind != "Instruction"}
        kept = [name.removesuffix(".json") for name in one["files"] if name.startswith("host")]
        gpu = len(one["files"]) - len(kept)
        lines.append([letter_of(found, one["files"][0]), one["cpu"], f"{cpus}, {mhz / 1e3:.1f} GHz",
                      *(size_text(size[level][0]) for level in (1, 2, 3)), ", ".join(sorted(one["isas"])),
                      ", ".join(kept) + (f"; the host of an H200, {gpu} files" if gpu else "")])
    return markdown(["host", "CPU", "CPUs", "L1 data", "L2", "L3", "instruction sets recorded", "results"], lines)


TABLES = (
    ("host-scaling*.json", "Threads of a CPU", scaling,
     "In parentheses, how many times as fast as one thread. Each number of threads is a process kept to as many CPUs."),
    ("host-cache*.json", "Decoding from a cache on a CPU", caches,
     "One query of each sequence, 32 query heads on 8 key heads of 128, from tensors and from pages; caches in the type of q, in float8_e4m3 "
     "and in int8. GB/s are the bytes that the call has to read and write over its time, and the share is that of what a copy of at least "
     "64 MiB, on 16 CPUs of as many bytes as the call's, reached just after it, bytes read and written. Where a CPU's shared cache holds "
     "both, as 300 MB do those of 8 bits on 16 CPUs, the share says nothing of memory."),
    ("host-memory.json", "Memory of a CPU against length", memory,
     "The largest resident set of a process above that before the call, which is the first of its kind in that process (in "
     "steps of about half a MiB, as Linux counts), the same for a row of the sequence, and what standard attention stores in "
     "N × N matrices: S and P, backward dS and dP as well."),
    ("host-isas.json", "Instruction sets of a CPU beside loops of nothing but products", isas,
     "The loop keeps to registers: multiply-adds in vectors of the set's width, or tile products on AMX, of which a float32 "
     "product takes six and a float16 product three and a half. Speeds count the two products that forward needs and the five "
     "that backward needs; where it is two passes the kernels carry out seven, which the last column counts."),
    ("host-instructions.json", "Instructions of the float32 AVX2 kernels", instructions,
     "Counted by cachegrind, as the difference that one more call makes, on one thread. A vector of AVX2 has 8 floats, so the "
     "least possible is 1/8 = 0.125 a multiply-add. Forward needs two multiply-adds for each score and dimension, backward "
     "five, and in one pass no more are carried out."),
)


def sections(folder=results.RESULTS, tables=TABLES):
    """What is there, in a fixed order."""
    found = []
    for pattern, title, table, words in tables:
        paths = sorted(folder.glob(pattern), key=lambda path: (len(path.name), path.name))
        if paths:
            found.append(Section(title, words, table([results.read(path) for path in paths]), paths))
    return found
