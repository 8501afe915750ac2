#!/usr/bin/env python3
"""Whether two builds plan the calls alike that bench/results has of GPUs: bench/same_plans.py OLD NEW.

OLD and NEW are programs flashomp with the code of both backends for GPUs. Prints each shape whose plan differs; status 1: one does,
2: wrong use. A change of src/plan that alters no measured call's plan alters no result, if the kernels stay (bench/same_kernels.py):
ages.SAME_KERNELS has such changes.
"""

import json
import subprocess
import sys

import results


def measured_calls():
    """(shape, dtype, GPU, backend) of all our rows of GPUs, but for 8 bits, which `flashomp plan` does not take."""
    calls = set()
    for path in sorted(results.RESULTS.glob("h?00-*.json")):
        for row in json.loads(path.read_text()).get("benchmarks", []):
            if row.get("backend") in ("openmp", "cuda") and row.get("on_device") and not row["dtype"].startswith("float8"):
                calls.add((row["shape"], row["dtype"], path.name[:4], row["backend"]))
    return sorted(calls)


def without_estimates(planned):
    """What runs, without what src/cost thinks it takes, and without what built it."""
    if isinstance(planned, dict):
        return {key: without_estimates(value) for key, value in planned.items() if key not in ("build", "traffic", "roofline")}
    return [without_estimates(value) for value in planned] if isinstance(planned, list) else planned


def plan(program, shape, dtype, gpu, backend):
    done = subprocess.run([program, "plan", "--json", "--shape", shape, "--dtype", dtype, "--device", gpu, "--backend", backend],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"same_plans: {program} cannot plan {shape}: {done.stderr.strip()}")
    return without_estimates(json.loads(done.stdout))


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    calls = measured_calls()
    different = [call for call in calls if plan(sys.argv[1], *call) != plan(sys.argv[2], *call)]
    for shape, dtype, gpu, backend in different:
        print(f"{shape} in {dtype} on {gpu}, {backend}")
    print(f"{len(different)} of {len(calls)} calls have another plan")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
