"""bench/python_tables.py: what the rows of bench/compare_python.py say; bench/accuracy.py has the numbers of accuracy.cpp."""

import json
import pathlib
import re
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
sys.dont_write_bytecode = True
import accuracy
import ages
import python_tables


def row(kind, implementation, milliseconds, direction="forward", shape="b1_h8_n512_d64", mask="", why=None, **more):
    timed = {"real_time": milliseconds, "spread": 0.02}
    return {"run_name": f"{direction}/float32/{shape}/real_time", "implementation": implementation, "label": "x on y",
            "kind": kind, "mask": mask, "error_o": 1e-7, "bound_o": 2e-6,
            **(timed if why is None else {"error_occurred": True, "error_message": why, "is_wrong": True}), **more}


def some_rows():
    of = {"layout": "bhnd", "kernel": "chosen"}
    rows = []
    for mask, theirs in (("", 3.0), ("padding", 1.0)):
        rows += [row("call", "flashomp-sdpa", 2.0, mask=mask), row("call", "flashomp-enabled", 1.5, mask=mask),
                 row("call", "pytorch-sdpa", theirs, mask=mask, **of)]
    rows += [row("overhead", name, took, shape="b1_h1_n1_d64") for name, took in (
        ("flashomp-sdpa", 0.010), ("flashomp-enabled", 0.012), ("pytorch-sdpa", 0.008))]
    rows[-3]["library_time"] = 0.004
    rows += [row("model", name, took, "generate", "b1_h4kv2_n1x320_d64_causal", tokens_per_second=100.0) for name, took in (
        ("flashomp-transformers", 400.0), ("pytorch-sdpa", 440.0))]
    return rows


class Tables(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name) / python_tables.FILE

    def tearDown(self):
        self.folder.cleanup()

    def write(self, rows):
        self.path.write_text(json.dumps({"context": {"torch": "2.x", "transformers": "5.x", "cpu": "A CPU", "date": "2026-01-02T",
                                                     "flashomp_commit": "0123456789ab"}, "benchmarks": rows}))
        return [section.lines for section in python_tables.sections(self.path.parent)]

    def part(self, older):
        with unittest.mock.patch.object(ages, "of", lambda path: {"older": older, "why": "nobody knows"}):
            return python_tables.part(str.lower, self.path)

    def test_nothing_is_recorded(self):
        self.assertEqual(python_tables.sections(self.path.parent), [])
        self.assertIn("Not measured yet", self.part(False))

    def test_a_line_for_each_call_has_times_ratios_and_errors(self):
        calls, overhead, model = self.write(some_rows())
        self.assertEqual(calls[2], "| forward float32 b1_h8_n512_d64 | 2.00 ms | 1.50 ms | 3.00 ms | its choice, bhnd | 1.50x "
                         "| 2.00x | 1.0e-07 (2.0e-06) | 1.0e-07 (2.0e-06) | 2.0 % / 2.0 % / 2.0 % |")
        self.assertTrue(calls[3].startswith("| forward float32 b1_h8_n512_d64 padding | 2.00 ms | 1.50 ms | 1.00 ms |"))
        self.assertIn("PyTorch's function is faster when flashomp serves it: forward float32 in 1 of 2. Spread of", calls[-1])
        self.assertEqual(overhead[-1], "| forward float32 | 10.0 µs (2.0 %) | 12.0 µs (2.0 %) | 8.0 µs (2.0 %) | 4.0 µs |")
        self.assertIn('| attn_implementation="flashomp" | 400 ms | 100.0 tokens/s | 1.10x |', model[2])

    def test_a_wrong_row_is_marked_and_has_no_ratio(self):
        rows = some_rows()
        rows[0] = row("call", "flashomp-sdpa", None, why="wrong: o, largest difference 1 is over its bound, 0.1")
        calls, *_ = self.write(rows)
        self.assertTrue(calls[2].startswith("| forward float32 b1_h8_n512_d64 | wrong: o, largest difference 1 is over its bound, "
                                            "0.1 | 1.50 ms | 3.00 ms | its choice, bhnd |  | 2.00x |"), calls[2])
        self.assertIn("and therefore not timed: 1 of 2 by flashomp.torch.sdpa.", calls[-1])
        self.assertIn("- Further from float64", self.part(False))
        self.assertEqual(python_tables.ratios_of([one | {"timed": "real_time" in one, "dtype": "float32", "direction": "forward",
                                                         "shape": "x"} for one in rows if one["kind"] == "call"],
                                                 "flashomp-sdpa", "forward", "float32"), [0.5])

    def test_the_page_has_the_numbers_only_while_they_are_as_new_as_the_code(self):
        self.write(some_rows())
        text = self.part(False)
        self.assertIn("float32: 1.33x as fast as by PyTorch, the median of 2 shapes and masks (from 0.67x to 2.00x), and faster "
                      "in 1.", text)
        self.assertIn("sdpa 10.0 µs, PyTorch's function served by flashomp 12.0 µs, by PyTorch 8.0 µs; the library itself "
                      "takes 4.0 µs.", text)
        self.assertIn("generate() of a small Llama, float32: 1.10x as fast", text)
        for older in (True, None):
            self.assertNotRegex(self.part(older), r"\d(x| µs)")

    def test_the_rule_has_the_numbers_of_the_library_s(self):
        source = (ROOT / "src/reference/accuracy.cpp").read_text() + (ROOT / "src/reference/accuracy.hpp").read_text()
        for name, number in (("float32_slack", accuracy.FLOAT32_SLACK), ("rows_of_a_block", accuracy.ROWS_OF_A_BLOCK),
                             ("output_factor", accuracy.OUTPUT_FACTOR), ("gradient_factor", accuracy.GRADIENT_FACTOR),
                             ("few", accuracy.FEW_KEYS)):
            self.assertEqual(float(re.search(rf"constexpr [\w:]+ {name} = ([\d.e-]+);", source)[1]), number, name)
        half = re.search(r"f\.unit = judged\.dtype == DType::bfloat16 \? (\S+) : (\S+);", source)
        self.assertEqual([float.fromhex(one) for one in half.groups()], list(accuracy.HALF_UNITS.values()))
        self.assertIn("f.largest = is_loose ? 3.0 : is_output ? 1.0 : 1.5;", source)
        self.assertIn("f.rms = is_loose ? 2.0 : 1.05;", source)
        self.assertIn("f.block_rms = is_loose ? 3.0 : 1.25;", source)
        self.assertIn("f.block_largest = 1.5 * f.largest;", source)


if __name__ == "__main__":
    unittest.main()
