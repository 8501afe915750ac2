"""The scripts that record the host: small calls of a real flashomp, and what cachegrind writes.

Usage: host_record_test.py FLASHOMP
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
sys.dont_write_bytecode = True
import flashomp_bench
import host_instructions
import results

FLASHOMP = sys.argv.pop(1)


class Record(unittest.TestCase):
    def run_script(self, name, *words):
        """(context, rows) of the file that a script writes."""
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "new" / "r.json"
            subprocess.run([sys.executable, ROOT / "bench" / name, "--bench", FLASHOMP, "--out", out, *words], check=True,
                           stdout=subprocess.DEVNULL)
            data = json.loads(out.read_text())
            self.assertIn(name, data["context"]["command"])
            return results.read(out)

    def test_memory_has_a_row_for_each_call(self):
        _, rows = self.run_script("host_memory.py", "--lengths", "64", "128", "--dtype", "float32", "--threads", "1")
        self.assertEqual([(row["seqlen_k"], row["direction"]) for row in rows],
                         [(n, direction) for n in (64, 128) for direction in ("forward", "backward")])
        self.assertEqual([row["standard_bytes"] for row in rows], [8 * 64**2, 16 * 64**2, 8 * 128**2, 16 * 128**2])

    def test_each_instruction_set_has_a_peak_of_its_own(self):
        _, rows = self.run_script("host_isas.py", "--shape", "b1_h1_n64_d64", "--threads", "1", "--repetitions", "1",
                                  "--min-time", "0")
        sources = {"host-baseline": "baseline", "host-avx2": "AVX2", "host-avx512": "AVX-512", "host-amx": "amx"}
        for row in rows:
            self.assertGreater(row["peak_flops"], 0)
            self.assertIn(sources[row["machine"]], row["peak_source"])
        self.assertEqual(rows[0]["machine"], "host-baseline")

    def test_scaling_keeps_each_process_to_its_cpus(self):
        with tempfile.NamedTemporaryFile("w") as shapes:
            print("b1_h1_n64_d16", file=shapes, flush=True)
            context, rows = self.run_script("host_scaling.py", "--threads", "1", "--shapes", shapes.name, "--dtype", "float32",
                                            "--repetitions", "5", "--min-time", "0", "--kernels")
        self.assertEqual([(row["direction"], row["threads"], len(row["cpus"])) for row in rows],
                         [("forward", 1, 1), ("backward", 1, 1)])
        self.assertIn("1 thread)", rows[0]["ran_on"])

    def test_caches_have_a_share_of_a_copy(self):
        with tempfile.NamedTemporaryFile("w") as shapes:
            print("b2_h4kv2_n1x64_d32_page16", "b2_h4kv2_n1x64_d32_page16_int8", sep="\n", file=shapes, flush=True)
            _, rows = self.run_script("host_cache.py", "--shapes", shapes.name, "--dtype", "float32", "--threads", "1",
                                      "--repetitions", "1", "--min-time", "0")
        self.assertEqual([row["seqlen_k"] for row in rows], [64, 64])
        for row in rows:
            self.assertGreater(row["bandwidth_share"] * row["copy_bandwidth"], 0)

    def test_each_shape_of_a_cache_is_there_in_three_types(self):
        lines = (ROOT / "bench" / "shapes" / "cache.txt").read_text().splitlines()
        shapes = [line for line in lines if not line.startswith("#")]
        self.assertEqual(set(shapes), {shape.removesuffix("_int8").removesuffix("_float8") + kind for shape in shapes
                                       for kind in ("", "_int8", "_float8")})

    def what_is_run(self, part, **environment):
        """Words of the command of a part, after the package's path."""
        with tempfile.TemporaryDirectory() as folder:
            python = pathlib.Path(folder) / "python"
            python.write_text('#!/bin/sh\necho "$PYTHONPATH" "$@"\n')
            python.chmod(0o755)
            return subprocess.run([ROOT / "bench" / "host_record.sh", FLASHOMP, folder, part], check=True, text=True,
                                  capture_output=True, env=os.environ | {"PYTHON": str(python), "THREADS": "2"} | environment).stdout

    def test_python_uses_the_package_beside_the_program(self):
        words = self.what_is_run("python", RESUME="1")
        self.assertIn(f"{pathlib.Path(FLASHOMP).parent}/../python", words)
        self.assertRegex(words, r"compare_python.py --out \S+/host-python.json --threads 2 --resume")

    def test_avx2_keeps_both_sides_to_it(self):
        self.assertIn("host-pytorch-avx2.json --cpu --isa avx2 --threads 2", self.what_is_run("avx2"))
        shapes = (ROOT / "bench" / "shapes" / "host_avx2.txt").read_text().splitlines()
        self.assertEqual(sum(not line.startswith("#") for line in shapes), 12)

    def test_what_the_program_refuses_is_told(self):
        with self.assertRaisesRegex(flashomp_bench.Failed, "FLASHOMP_HOST_ISA was 'none'"):
            flashomp_bench.measure(FLASHOMP, "--shape", "b1_h1_n8_d8", FLASHOMP_HOST_ISA="none")

    def test_instructions_are_those_of_the_summary(self):
        text = "desc: x\nevents: Ir Dr\nfl=a\n1 2 3\nsummary: 31518869 7\n"
        self.assertEqual(host_instructions.instructions_in(text), 31518869)
        row = host_instructions.row_of("b2_h3_n64_d16", "backward", 5)
        self.assertEqual((row["multiply_adds"], row["carried_out"]), (5 * 6 * 64**2 * 16, 5 * 6 * 64**2 * 16))


if __name__ == "__main__":
    unittest.main()
