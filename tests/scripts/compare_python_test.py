"""bench/compare_python.py on tiny shapes and a tiny Llama: the file's rows, what is wrong, what is resumed. Needs the package
flashomp of this build on PYTHONPATH, PyTorch and Transformers.
"""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
sys.dont_write_bytecode = True
try:
    import torch
    import transformers  # noqa: F401
    MISSING = None
except ImportError as error:
    MISSING = f"{error.name} is not installed"
if MISSING is None:
    import accuracy
    import compare_python
    import python_calls
    import python_model
    import python_tables
    import results

TINY = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 8, "vocab_size": 64, "max_position_embeddings": 64}
SHAPES = ("b1_h2_n130_d16", "b1_h2_n130_d16_causal", "b2_h2_n24_d16 padding", "b1_h2_n24_d16 additive", "b1_h4kv2_n24_d16v8",
          "b1_h2_n1_d16")


@unittest.skipIf(MISSING, MISSING)
class Compare(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.out = pathlib.Path(self.folder.name) / "new" / python_tables.FILE
        quiet = contextlib.redirect_stdout(io.StringIO())
        quiet.__enter__()
        self.addCleanup(quiet.__exit__, None, None, None)

    def tearDown(self):
        self.folder.cleanup()

    def arguments(self, *words):
        return compare_python.parse_arguments(["--out", str(self.out), "--min-time", "0", "--repetitions", "5", "--threads", "1",
                                               *words])

    def test_every_caller_has_a_row_and_every_row_was_compared(self):
        words = [word for shape in SHAPES for word in ("--shape", shape)]
        rows = compare_python.run(self.arguments("--parts", "calls", *words))
        self.assertEqual(len(rows), len(SHAPES) * 2 * 2 * 3)
        for row in rows:
            self.assertIn("real_time", row, row.get("error_message"))
            self.assertEqual(row["repetitions"], 5)
            self.assertTrue(row["compared_after_timing"])
            for name in ("o",) if row["direction"] == "forward" else ("o", "dq", "dk", "dv"):
                self.assertLessEqual(row[f"error_{name}"], row[f"bound_{name}"])
        data = json.loads(self.out.read_text())
        self.assertEqual(data["benchmarks"], rows)
        for key in ("date", "flashomp_commit", "flashomp_flags", "cpu", "caches", "flashomp_threads", "flashomp_host_isa", "torch",
                    "transformers", "command"):
            self.assertIn(key, data["context"])
        theirs = next(row for row in rows if row["implementation"] == "pytorch-sdpa")
        self.assertEqual(set(theirs["layouts"]), {"bhnd", "bnhd"})
        self.assertEqual({theirs["kernel"], *theirs["kernels"]}, {"chosen", "math"})
        self.assertEqual({row["implementation"] for row in results.read(self.out)[1]},
                         {"flashomp-sdpa", "flashomp-enabled", "pytorch-sdpa"})

    def test_overhead_and_a_model(self):
        arguments = self.arguments("--parts", "overhead", "--dtype", "float32")
        rows = compare_python.run(arguments)
        self.assertEqual([(row["direction"], row["implementation"]) for row in rows if row["direction"] == "forward"],
                         [("forward", f"flashomp-{name}") for name in ("sdpa", "enabled")] + [("forward", "pytorch-sdpa")] +
                         [("forward", f"flashomp-{name}") for name in ("operator", "attention")])
        self.assertGreater(rows[0]["real_time"], rows[0]["library_time"])
        for dtype in ("float32", "bfloat16"):
            of_model = python_model.rows_of_model(dtype, arguments, TINY, 2, 24, 12, 6)
            self.assertEqual({(row["direction"], row["implementation"]) for row in of_model},
                             {(direction, name) for direction in python_model.DIRECTIONS for name in python_model.IMPLEMENTATIONS})
            for row in of_model:
                self.assertIn("real_time", row, row.get("error_message"))
                self.assertNotIn("pytorch_calls", row)
                rows.append(row)
        self.assertEqual(next(row for row in rows if row["direction"] == "generate")["shape"], "b1_h4kv2_n1x18_d8_causal")
        self.out.write_text(json.dumps({"context": json.loads(self.out.read_text())["context"], "benchmarks": rows}))
        tables = [section.lines for section in python_tables.sections(self.out.parent)]
        self.assertEqual([sum(line.startswith("| ") for line in lines) - 2 for lines in tables], [3, 16])  # no calls

    def test_a_wrong_result_is_marked_and_not_timed(self):
        right = python_calls.flashomp.torch.sdpa

        def wrong(q, k, v, **words):
            return right(q, k, v, **words) * 1.001
        with unittest.mock.patch.object(python_calls.flashomp.torch, "sdpa", wrong):
            rows = compare_python.run(self.arguments("--parts", "calls", "--dtype", "float32", "--shape", "b1_h2_n130_d16"))
        for row in rows:
            self.assertEqual("real_time" not in row, row["implementation"] == "flashomp-sdpa")
            self.assertEqual(bool(row.get("is_wrong")), row["implementation"] == "flashomp-sdpa")
        self.assertIn("wrong: o, ", rows[0]["error_message"])
        self.assertEqual(compare_python.report(rows), None)

    def test_a_wrong_row_of_one_block_is_not_excused_by_the_others(self):
        case = python_calls.Case("b1_h2_n256_d16", "", "float32")
        case.expect()
        o = case.exact["o"].float()
        self.assertNotIn("is_wrong", case.judge([o]))
        o[0, 1, 200] += 5e-4
        self.assertTrue(case.judge([o])["is_wrong"])
        o[0, 0, 0, 0] = float("nan")
        self.assertTrue(case.judge([o])["is_wrong"])

    def test_a_common_factor_and_a_mean_are_found_that_no_element_shows(self):
        case = python_calls.Case("b1_h4_n512_d64", "", "bfloat16")
        case.expect()
        rounded = case.exact["o"].bfloat16()
        self.assertNotIn("is_wrong", case.judge([rounded]))
        limits = {limit.name: limit for limit in accuracy.judge("o", "bfloat16", (case.exact["o"] * 1.01).bfloat16(),
                                                                case.exact["o"], case.naive["o"], case.few_keys)}
        self.assertLess(accuracy.share(limits["largest difference"]), 1)
        self.assertGreater(accuracy.share(limits["common factor"]), 1)

    def test_exact_attention_is_autograd_s(self):
        for shape, mask in (("b2_h4kv2_n40_d8", "padding"), ("b1_h2_n40_d8_causal", ""), ("b1_h2_n40_d8", "additive")):
            case = python_calls.Case(shape, mask, "float32")
            case.expect()
            wanted = [case.tensors[name].double().requires_grad_() for name in "qkv"]
            words = {key: x.double() if mask == "additive" else x for key, x in case.words.items()}
            o = torch.nn.functional.scaled_dot_product_attention(*wanted, **words)
            found = dict(zip(("o", "dq", "dk", "dv"), (o, *torch.autograd.grad(o, wanted, case.tensors["do"].double()))))
            for name, x in found.items():
                self.assertLess((x - case.exact[name]).abs().max().item(), 1e-12, f"{shape} {mask} {name}")
                naive = (case.naive[name].double() - case.exact[name]).abs().max().item()
                self.assertTrue(0 < naive < 1e-4)

    def test_exact_attention_takes_some_rows_at_a_time(self):
        case = python_calls.Case("b1_h2_n40_d8_causal", "", "bfloat16")
        case.expect()
        whole = case.exact
        with unittest.mock.patch.object(accuracy, "SCORES_AT_ONCE", 7 * 2 * 40):
            case.expect()
        for name, x in case.exact.items():
            self.assertLess((x - whole[name]).abs().max().item(), 1e-12)

    def test_resume_adds_what_is_missing_and_seconds_end_the_run(self):
        words = ("--parts", "calls", "--dtype", "float32", "--shape", "b1_h2_n16_d16")
        first = compare_python.run(self.arguments(*words))
        compare_python.run(self.arguments(*words, "--shape", "b1_h2_n16_d16 additive", "--resume", "--seconds", "-1"))
        self.assertEqual(json.loads(self.out.read_text())["benchmarks"], first)
        second = compare_python.run(self.arguments(*words, "--shape", "b1_h2_n16_d16 additive", "--resume"))
        self.assertEqual(second[:len(first)], first)
        self.assertEqual({row["mask"] for row in second[len(first):]}, {"additive"})
        self.assertNotIn("stopped", json.loads(self.out.read_text())["context"])
        data = json.loads(self.out.read_text())
        data["context"]["torch"] = "1.0"
        self.out.write_text(json.dumps(data))
        with self.assertRaises(SystemExit) as refused:
            compare_python.run(self.arguments(*words, "--resume"))
        self.assertIn("whose torch is '1.0'; allowed is this run's", str(refused.exception))

    def test_bad_arguments_are_refused(self):
        for words in (("--repetitions", "4"), ("--shape", "b1_h1"), ("--shape", "b1_h1_n8_d8_causal additive"),
                      ("--shape", "b1_h1_n8_d8 window"), ("--shape", "b1_h1_n8_d8_varlen")):
            with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()) as text:
                self.arguments(*words)
            self.assertIn("allowed", text.getvalue())

    def test_the_shapes_are_those_of_the_list(self):
        cases = self.arguments().cases
        lengths = {int(shape.split("_n")[1].split("_")[0]) for shape, _ in cases}
        self.assertEqual(lengths, {1, 16, 128, 512, 1024, 2048, 4096, 8192})
        self.assertEqual({mask for _, mask in cases}, {"", "padding", "additive"})
        self.assertTrue(any("kv" in shape for shape, _ in cases) and any("_causal" in shape for shape, _ in cases))
        self.assertEqual(len(cases), len(set(cases)))


if __name__ == "__main__":
    unittest.main()
