"""bench/compare_pytorch.py without PyTorch: a real flashomp on the host beside a kernel that is pretended.

Usage: compare_test.py FLASHOMP
"""

import contextlib
import io
import json
import pathlib
import struct
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
sys.dont_write_bytecode = True
import compare_pytorch
import pytorch_side

FLASHOMP = sys.argv.pop(1)


class Pretended:
    """flash works, math has no memory for long sequences, cudnn has no kernel."""

    label, where, versions = "pretended 1", "nowhere", {"torch": "pretended"}
    device, prefix = "cuda", "pytorch"

    def __init__(self, **versions):
        self.count, self.inputs = 0, None
        self.layout, self.direction = None, None
        self.versions = Pretended.versions | versions

    def refusal(self, shape):
        return "no packed sequences" if pytorch_side.sizes(shape)["packed"] else None

    def calls(self, shape, inputs, kernel, layout):
        self.inputs = inputs
        if kernel == "cudnn":
            raise RuntimeError("no such kernel\nand a second line")

        def call(direction):
            self.count += 1
            self.layout, self.direction = layout, direction
            if kernel == "math" and pytorch_side.sizes(shape)["seqlen_q"] > 64:
                raise MemoryError_("CUDA out of memory")
            if kernel == "efficient" and layout == "bhnd":
                raise RuntimeError("not in this layout")
            time.sleep(0.003 if (direction, layout) in (("forward", "bhnd"), ("backward", "bnhd")) else 0.0005)

        yield "forward", lambda: call("forward")
        yield "backward", lambda: call("backward")

    def synchronize(self):
        pass

    def peak(self, call):
        call()
        return 4096

    def kernel_time(self, call):
        call()
        return 1e-6 * self.count * (1000 if self.layout == "bnhd" else 1)

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

    def arguments(self, *words):
        return compare_pytorch.parse_arguments(
            ["--bench", FLASHOMP, "--out", str(self.out), "--device", "host", "--min-time", "0.001", *words])

    def run_with(self, *words, pytorch=None):
        return compare_pytorch.run(self.arguments(*words), pytorch or Pretended())

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

    def rows_of(self, kernel, *words):
        pretended = Pretended()
        return pytorch_side.pytorch_rows(pretended, "b1_h2_n64_d16", {}, kernel,
                                         self.arguments("--shape", "b1_h2_n64_d16", "--min-time", "0", *words))

    def test_kernel_time_is_the_median_of_as_many_calls_as_repetitions(self):
        forward, backward = self.rows_of("flash", "--kernel-time", "--repetitions", "7")
        first = 1 + 2 + 7 * 1 + 1  # peak, warming up and timing come before
        self.assertAlmostEqual(forward["least_kernel_time"], first * 1e-3)
        self.assertAlmostEqual(forward["kernel_time"], (first + 3) * 1e-3)
        self.assertAlmostEqual(forward["most_kernel_time"], (first + 6) * 1e-3)
        self.assertLess(forward["kernel_time"], backward["kernel_time"])

    def test_pytorch_has_the_layout_that_is_best_for_it_and_both_are_recorded(self):
        forward, backward = self.rows_of("flash", "--kernel-time")
        self.assertEqual((forward["layout"], backward["layout"]), ("bnhd", "bhnd"))
        self.assertEqual((forward["kernel_layout"], backward["kernel_layout"]), ("bhnd", "bhnd"))
        for row in forward, backward:
            both = row["layouts"]
            self.assertEqual(set(both), {"bhnd", "bnhd"})
            self.assertEqual(row["real_time"], min(one["real_time"] for one in both.values()))
            self.assertEqual(row["kernel_time"], min(one["kernel_time"] for one in both.values()))

    def test_a_layout_without_a_kernel_leaves_the_other(self):
        forward, _ = self.rows_of("efficient")
        self.assertEqual(forward["layout"], "bnhd")
        self.assertEqual(forward["layouts"]["bhnd"]["error_message"], "not in this layout")

    def test_both_sides_have_the_same_values(self):
        pretended = Pretended()
        self.run_with("--shape", "b2_h4kv2_n8x6_d4v3", "--dtype", "float32", pytorch=pretended)
        kind, extents, data = pretended.inputs["q"]
        self.assertEqual((kind, extents), ("F32", [2, 8, 4, 4]))
        self.assertEqual({name: tensor[1] for name, tensor in pretended.inputs.items()},
                         {"q": [2, 8, 4, 4], "k": [2, 6, 2, 4], "v": [2, 6, 2, 3], "do": [2, 8, 4, 3]})
        q = struct.unpack(f"<{len(data) // 4}f", data)
        self.assertGreater(len(set(q)), 250)
        again = compare_pytorch.inputs_of(self.arguments("--shape", "b1_h1_n1_d1"), "b2_h4kv2_n8x6_d4v3", "float32")
        self.assertEqual(bytes(again["q"][2]), bytes(data))
        self.assertAlmostEqual(sum(value * value for value in q) / len(q), 1, delta=0.3)

    def test_five_repetitions_are_the_least(self):
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()) as text:
            self.arguments("--shape", "b1_h1_n8_d8", "--repetitions", "4")
        self.assertIn("--repetitions was 4; allowed are 5 or more.", text.getvalue())
        rows = self.run_with("--shape", "b1_h2_n64_d16", "--kernels", "flash")
        self.assertEqual({row["repetitions"] for row in rows}, {5})

    def test_resume_refuses_rows_of_another_pytorch_build_or_device(self):
        self.run_with("--shape", "b1_h2_n64_d16", "--kernels", "flash")
        with self.assertRaises(SystemExit) as refused:
            self.run_with("--shape", "b1_h2_n32_d16", "--resume", pytorch=Pretended(torch="2.99"))
        self.assertEqual(str(refused.exception), f"--resume was given with {self.out}, whose torch is 'pretended'; allowed "
                         "is this run's, '2.99'.")
        for key in ("flashomp_commit", "cpu", "flashomp_device_0"):
            file = json.loads(self.out.read_text())
            file["context"][key] = "another"
            self.out.write_text(json.dumps(file))
            with self.assertRaises(SystemExit) as refused:
                self.run_with("--shape", "b1_h2_n32_d16", "--resume")
            self.assertIn(f"whose {key} is 'another'", str(refused.exception))
            self.assertEqual(json.loads(self.out.read_text()), file)
            self.out.unlink()
            self.run_with("--shape", "b1_h2_n64_d16", "--kernels", "flash")

    def test_rows_of_a_cpu_say_what_its_products_reach(self):
        rows = compare_pytorch.run(self.arguments("--cpu", "--shape", "b1_h2_n64_d16", "--dtype", "float32", "bfloat16",
                                                  "--kernels", "flash"), Pretended())
        peaks = {(row["dtype"], row["peak_flops"]) for row in rows}
        self.assertEqual(len(peaks), 2)

    def test_memory_of_a_cpu_that_was_freed_before_counts_again(self):
        def blocks():
            return [b"x" * (32 << 10) for _ in range(1024)]
        kept = [blocks(), blocks()]
        del kept[0]  # the heap keeps these pages, below the others
        self.assertGreater(pytorch_side.PytorchOnCpu.peak(None, blocks), 30 << 20)

    def test_what_has_no_time_says_why(self):
        rows = self.run_with("--shape", "b1_h2_n128_d16")
        why = {(row["implementation"], row["direction"]): row.get("error_message") for row in rows}
        for direction in ("forward", "backward"):
            self.assertEqual(why["pytorch-math", direction], "out of memory")
            self.assertEqual(why["pytorch-cudnn", direction], "no such kernel")
            self.assertIsNone(why["flashomp", direction])

    def test_a_shape_that_flashomp_refuses_does_not_end_the_run(self):
        rows = self.run_with("--shape", "b1_h1_n8_d600", "--shape", "b1_h1_n8_d8", "--kernels")
        self.assertIn("head dims", rows[0]["error_message"])
        self.assertIn("real_time", rows[2])

    def test_resume_adds_only_what_is_missing(self):
        first = self.run_with("--shape", "b1_h2_n64_d16")
        second = self.run_with("--shape", "b1_h2_n64_d16", "--shape", "b1_h2_n32_d16", "--resume")
        self.assertEqual(second[:len(first)], first)
        self.assertEqual({row["shape"] for row in second[len(first):]}, {"b1_h2_n32_d16"})

    def test_seconds_end_the_run_in_time(self):
        self.assertEqual(self.run_with("--shape", "b1_h2_n64_d16", "--shape", "b1_h2_n32_d16", "--seconds", "-1"), [])
        self.assertEqual(json.loads(self.out.read_text())["context"]["stopped"],
                         {"before": "bfloat16 b1_h2_n64_d16", "seconds": -1, "shapes_asked_for": 2, "shapes_measured": 0})
        self.assertNotEqual(self.run_with("--shape", "b1_h2_n64_d16", "--resume"), [])
        self.assertNotIn("stopped", json.loads(self.out.read_text())["context"])

    def test_shapes_come_from_suites_files_and_flags(self):
        shapes = pathlib.Path(self.folder.name) / "shapes.txt"
        shapes.write_text("# a comment\nb1_h1_n8_d8 # another\n\n")
        arguments = compare_pytorch.parse_arguments(
            ["--bench", FLASHOMP, "--out", "x", "--suite", "fa2", "--shapes", str(shapes), "--shape", "b2_h1_n8_d8"])
        self.assertEqual(len(arguments.all_shapes), 36 + 2)
        self.assertEqual(arguments.all_shapes[-2:], ["b2_h1_n8_d8", "b1_h1_n8_d8"])
        self.assertEqual(arguments.all_shapes[0], "b32_h32_n512_d64")
        self.assertEqual(pytorch_side.sizes("b2_h8kv2_n1x64_d32v16_causal"),
                         {"batch": 2, "heads_q": 8, "heads_kv": 2, "seqlen_q": 1, "seqlen_k": 64, "head_dim": 32,
                          "head_dim_v": 16, "causal": True, "packed": False})


if __name__ == "__main__":
    unittest.main()
