"""bench/compare_pytorch.py without PyTorch: a real flashomp on the host beside a kernel that is pretended.

Usage: compare_test.py FLASHOMP
"""

import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
sys.dont_write_bytecode = True
import compare_pytorch

FLASHOMP = sys.argv.pop(1)


class Pretended:
    """Takes no time; flash works, math has no memory for long sequences, cudnn has no kernel."""

    label, where, versions = "pretended 1", "nowhere", {"torch": "pretended"}
    device, prefix = "cuda", "pytorch"

    def __init__(self):
        self.count = 0

    def calls(self, shape, dtype, kernel):
        if kernel == "cudnn":
            raise RuntimeError("no such kernel\nand a second line")

        def call():
            self.count += 1
            if kernel == "math" and compare_pytorch.sizes(shape)["seqlen_q"] > 64:
                raise MemoryError_("CUDA out of memory")

        yield "forward", call
        yield "backward", call

    def synchronize(self):
        pass

    def peak(self, call):
        call()
        return 4096

    def kernel_time(self, call):
        call()
        return 1e-6 * self.count

    def release(self):
        pass

    def is_out_of_memory(self, error):
        return isinstance(error, MemoryError_)


class MemoryError_(RuntimeError):
    pass


class Compare(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.out = pathlib.Path(self.folder.name) / "r.json"

    def tearDown(self):
        self.folder.cleanup()

    def run_with(self, *words):
        arguments = compare_pytorch.parse_arguments(
            ["--bench", FLASHOMP, "--out", str(self.out), "--device", "host", "--repetitions", "2", "--min-time", "0.001",
             *words])
        return compare_pytorch.run(arguments, Pretended())

    def test_all_implementations_are_in_one_file(self):
        rows = self.run_with("--shape", "b1_h2_n64_d16", "--shape", "b1_h2_n128_d16_causal")
        file = json.loads(self.out.read_text())
        self.assertEqual(file["benchmarks"], rows)
        self.assertEqual(len(rows), 2 * 2 * 4)
        self.assertEqual(file["context"]["torch"], "pretended")
        by_key = {(row["implementation"], row["run_name"]): row for row in rows}
        ours = by_key["flashomp", "backward/bfloat16/b1_h2_n128_d16_causal/real_time"]
        flash = by_key["pytorch-flash", "backward/bfloat16/b1_h2_n128_d16_causal/real_time"]
        self.assertLessEqual(ours["error_o"], ours["bound_o"])
        self.assertEqual(flash["flops"], ours["flops"])
        self.assertAlmostEqual(flash["TFLOP/s"] * flash["real_time"], ours["TFLOP/s"] * ours["real_time"])
        self.assertEqual(flash["peak_bytes"], 4096)

    def test_kernel_time_is_the_median_of_as_many_calls_as_repetitions(self):
        arguments = compare_pytorch.parse_arguments(["--bench", FLASHOMP, "--out", str(self.out), "--shape", "b1_h2_n64_d16",
                                                     "--kernel-time", "--repetitions", "3", "--min-time", "0"])
        pretended = Pretended()
        forward, backward = compare_pytorch.pytorch_rows(pretended, "b1_h2_n64_d16", "bfloat16", "flash", arguments)
        self.assertAlmostEqual(backward["kernel_time"], (pretended.count - 1) * 1e-3)
        self.assertLess(forward["kernel_time"], backward["kernel_time"])

    def test_what_has_no_time_says_why(self):
        rows = self.run_with("--shape", "b1_h2_n128_d16")
        why = {(row["implementation"], row["direction"]): row.get("error_message") for row in rows}
        for direction in ("forward", "backward"):
            self.assertEqual(why["pytorch-math", direction], "out of memory")
            self.assertEqual(why["pytorch-cudnn", direction], "no such kernel")
            self.assertIsNone(why["flashomp", direction])

    def test_a_shape_that_flashomp_refuses_does_not_end_the_run(self):
        rows = self.run_with("--shape", "b1_h1_n8_d300", "--shape", "b1_h1_n8_d8", "--kernels")
        self.assertIn("head dims", rows[0]["error_message"])
        self.assertIn("real_time", rows[2])

    def test_resume_adds_only_what_is_missing(self):
        first = self.run_with("--shape", "b1_h2_n64_d16")
        second = self.run_with("--shape", "b1_h2_n64_d16", "--shape", "b1_h2_n32_d16", "--resume")
        self.assertEqual(second[:len(first)], first)
        self.assertEqual({row["shape"] for row in second[len(first):]}, {"b1_h2_n32_d16"})

    def test_seconds_end_the_run_in_time(self):
        self.assertEqual(self.run_with("--shape", "b1_h2_n64_d16", "--seconds", "-1"), [])

    def test_shapes_come_from_suites_files_and_flags(self):
        shapes = pathlib.Path(self.folder.name) / "shapes.txt"
        shapes.write_text("# a comment\nb1_h1_n8_d8 # another\n\n")
        arguments = compare_pytorch.parse_arguments(
            ["--bench", FLASHOMP, "--out", "x", "--suite", "fa2", "--shapes", str(shapes), "--shape", "b2_h1_n8_d8"])
        self.assertEqual(len(arguments.all_shapes), 36 + 2)
        self.assertEqual(arguments.all_shapes[-2:], ["b2_h1_n8_d8", "b1_h1_n8_d8"])
        self.assertEqual(arguments.all_shapes[0], "b32_h32_n512_d64")
        self.assertEqual(compare_pytorch.sizes("b2_h8kv2_n1x64_d32v16_causal"),
                         {"batch": 2, "heads_q": 8, "heads_kv": 2, "seqlen_q": 1, "seqlen_k": 64, "head_dim": 32,
                          "head_dim_v": 16, "causal": True, "packed": False})


if __name__ == "__main__":
    unittest.main()
