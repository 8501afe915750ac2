#!/usr/bin/env python3
"""Records `flashomp-mpi bench` with several numbers of ranks on this host, in one file of bench/results.

    bench/ring.py --out bench/results/host-ring.json [--ranks 1 2 4 8] [--dtype float32 bfloat16] [OPTION ...]

Other options go to `flashomp-mpi bench`, such as --shape or --repetitions. Each rank has one thread. More ranks than cores share
them, which the rows say. Then: tools/report.
"""

import argparse
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True
import flashomp_bench
import results

# As tests/CMakeLists.txt starts them: one thread a rank, and ranks that wait leave their core to others.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "OMPI_MCA_mpi_yield_when_idle": "1"}


def starter(mpiexec):
    """mpirun with what Open MPI needs for more ranks than cores."""
    version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=True).stdout
    more = ["--oversubscribe", "--bind-to", "none", "--allow-run-as-root"] if "Open MPI" in version or "OpenRTE" in version else []
    return [mpiexec, *more]


def measure(arguments, ranks, dtype, options):
    """(context, rows) of one run; each row was checked before it was timed."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "rows.json"
        command = [*starter(arguments.mpiexec), "-n", str(ranks), arguments.program, "bench", "--dtype", dtype, "--threads", "1",
                   "--device", "host", "--out", str(file), *options]
        print(f"{ranks} ranks, {dtype}, load {os.getloadavg()[0]:.1f}: {shlex.join(command)}", flush=True)
        print(flashomp_bench.output_of(command, ENVIRONMENT), flush=True)
        data = json.loads(file.read_text())
    return data["context"], data["benchmarks"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, help="file of results")
    parser.add_argument("--program", default=str(results.ROOT / "build/release/bin/flashomp-mpi"), help="flashomp-mpi")
    parser.add_argument("--mpiexec", default="mpirun")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    arguments, options = parser.parse_known_args()
    first, rows, runs = None, [], []
    for ranks in arguments.ranks:
        for dtype in arguments.dtype:
            context, more = measure(arguments, ranks, dtype, options)
            first = first or context
            runs.append({"ranks": ranks, "dtype": dtype} | {key: context[key] for key in ("date", "load_avg", "peaks")})
            # One rank alone is in every run, as each is set beside its own; one row of it is enough.
            rows += [row for row in more if row["ranks"] == ranks]
            kept = {key: value for key, value in first.items() if key not in ("ranks", "ranks_of_host")}
            flashomp_bench.write(arguments.out, kept | {"runs": runs}, rows)
    print(f"{len(rows)} rows in {arguments.out}")


if __name__ == "__main__":
    try:
        main()
    except flashomp_bench.Failed as failed:
        sys.exit(f"ring.py: {failed}")
