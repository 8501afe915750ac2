"""bench/host_tables.py: what the rows say, and nothing where there is no file."""

import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
sys.dont_write_bytecode = True
import host_tables


def row(direction, n, **more):
    return {"run_name": f"{direction}/float32/b1_h1_n{n}_d64/real_time", "implementation": "flashomp", "label": "x on y",
            **more}


class Tables(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()

    def tearDown(self):
        self.folder.cleanup()

    def lines(self, **files):
        for name, rows in files.items():
            path = pathlib.Path(self.folder.name) / f"{name.replace('_', '-')}.json"
            path.write_text(json.dumps({"context": {"cpu": name, "num_cpus": 2}, "benchmarks": rows}))
        return [section.lines for section in host_tables.sections(pathlib.Path(self.folder.name))]

    def test_nothing_is_recorded(self):
        self.assertEqual(self.lines(), [])

    def test_scaling_of_one_machine(self):
        one = [row("forward", 8, threads=1, real_time=9.0), row("forward", 8, threads=1, real_time=8.0) |
               {"implementation": "pytorch-cpu-flash"}]
        two = [row("forward", 8, threads=2, real_time=4.5)]
        (lines,) = self.lines(host_scaling=one + two)
        self.assertEqual(lines, [
            "| pass, dtype, shape | implementation | 1 thread | 2 threads |", "| --- | --- | --- | --- |",
            "| forward float32 b1_h1_n8_d64 | flashomp | 9.00 ms | 4.50 ms (2.00x) |",
            "| forward float32 b1_h1_n8_d64 | PyTorch's flash kernel | 8.00 ms |  |"])

    def test_scaling_of_two_machines_is_one_table(self):
        (lines,) = self.lines(host_scaling=[row("forward", 8, threads=1, real_time=9.0)],
                              host_scaling_16=[row("forward", 8, threads=16, real_time=1.0)])
        self.assertEqual(lines[0], "| machine | pass, dtype, shape | implementation | 1 thread | 16 threads |")
        self.assertEqual(lines[2:], ["| host_scaling, 2 CPUs | forward float32 b1_h1_n8_d64 | flashomp | 9.00 ms |  |",
                                     "| host_scaling_16, 2 CPUs | forward float32 b1_h1_n8_d64 | flashomp |  | 1.00 ms |"])

    def test_machines_are_told_apart_by_their_caches(self):
        def caches(bytes_of_l1):
            return [{"level": level, "type": kind, "size": size, "num_sharing": 1} for level, kind, size in (
                (1, "Data", bytes_of_l1), (1, "Instruction", 2**15), (2, "Unified", 2**20), (3, "Unified", 2**25))]
        with tempfile.TemporaryDirectory() as folder:
            for name, size, isa in (("h200-x", 2**15, "avx2"), ("host-a", 2**15, "amx"), ("host-b", 3 * 2**14, "avx2")):
                (pathlib.Path(folder) / f"{name}.json").write_text(json.dumps({"benchmarks": [], "context": {
                    "cpu": "A CPU", "num_cpus": 2, "mhz_per_cpu": 2600, "caches": caches(size), "flashomp_host_isa": isa}}))
            lines = host_tables.machine_lines(host_tables.machines(pathlib.Path(folder)))
        self.assertEqual(lines[2:], ["| A | A CPU | 2, 2.6 GHz | 32 KiB | 1 MiB | 32 MiB | amx, avx2 | host-a; the host of an "
                                     "H200, 1 files |", "| B | A CPU | 2, 2.6 GHz | 48 KiB | 1 MiB | 32 MiB | avx2 | host-b |"])

    def test_caches_of_8_bits_stand_beside_those_of_the_queries_type(self):
        def cached(shape, milliseconds, share):
            return row("forward", 8, real_time=milliseconds, copy_bandwidth=2e10, bandwidth_share=share) | {
                "run_name": f"forward/float32/{shape}/real_time"}
        (lines,) = self.lines(host_cache=[cached("b1_h8_n1x64_d64", 2.0, 0.5), cached("b1_h8_n1x64_d64_int8", 1.0, 0.25),
                                          cached("b1_h8_n1x64_d64_page16", 2.5, 0.4)])
        self.assertEqual(lines[0], "| q, shape | cache as q | GB/s | of a copy | cache float8_e4m3 | GB/s | of a copy | cache int8 | GB/s "
                         "| of a copy |")
        self.assertEqual(lines[2:], ["| float32 b1_h8_n1x64_d64 | 2.00 ms | 10.0 | 0.50 |  |  |  | 1.00 ms | 5.0 | 0.25 |",
                                     "| float32 b1_h8_n1x64_d64_page16 | 2.50 ms | 8.0 | 0.40 |  |  |  |  |  |  |"])

    def test_memory(self):
        (lines,) = self.lines(host_memory=[row("forward", 1024, real_time=1, peak_bytes=2**20, standard_bytes=2**23)])
        self.assertEqual(lines[-1], "| 1024 | 1.0 MiB | 1024 | 8.0 MiB |")

    def test_shares_count_needed_and_carried_out_products(self):
        times = {"machine": "host-avx2", "real_time": 1.0, "TFLOP/s": 0.2, "peak_flops": 4e11}
        (lines,) = self.lines(host_isas=[row("backward", 8, **times)])
        self.assertEqual(lines[-1], "| avx2 | backward float32 b1_h1_n8_d64 | 1.00 ms | 200 GFLOP/s | 400 GFLOP/s | 50 % "
                         "| 70 % |")
        (lines,) = self.lines(host_isas=[row("backward", 8, products=5, **times)])
        self.assertTrue(lines[-1].endswith("| 50 % | 50 % |"), lines[-1])

    def test_instructions(self):
        (lines,) = self.lines(host_instructions=[row("backward", 8, instructions=7e6, multiply_adds=2e7, carried_out=2.8e7)])
        self.assertEqual(lines[-1], "| backward float32 b1_h1_n8_d64 | 7.0 million | 0.350 | 0.250 | 2.00 |")


if __name__ == "__main__":
    unittest.main()
