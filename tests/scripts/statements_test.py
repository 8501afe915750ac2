"""bench/statements.py: what stands below a table is true of its rows."""

import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
sys.dont_write_bytecode = True
import statements


def row(implementation, milliseconds, kernels=None, shape="b1_h4_n4096_d64", direction="backward", **more):
    parts = [{"sequence": 0, "heads": [head, 1], "rows": [[0, 64], [2016, 64], [4032, 64]], "row_tensors": ["o", "lse", "dq"],
              "key_head": head, "keys": [[0, 64], [2016, 64], [4032, 64]], "key_tensors": ["dk", "dv"]} for head in (0, 2, 3)]
    ours = {"compared": "o, LSE, dQ of rows ...", "compared_after_timing": True, "compared_parts": parts}
    return {"implementation": implementation, "timed": True, "real_time": milliseconds, "spread": 0.02, "repetitions": 5,
            "direction": direction, "run_name": f"{direction}/bfloat16/{shape}/real_time", "on_device": 1.0,
            **({"kernel_time": kernels} if kernels else {}), **(ours if implementation.startswith("flashomp") else {}), **more}


class Statements(unittest.TestCase):
    def test_who_is_ahead_is_told_by_both_clocks(self):
        rows = [row("flashomp-cuda", 1.0, 0.9), row("pytorch-cudnn", 1.5, 0.8),
                row("flashomp-cuda", 1.0, 0.9, shape="other"), row("pytorch-cudnn", 1.2, 1.0, shape="other")]
        self.assertEqual(statements.ahead_text(rows, "flashomp-cuda", "pytorch-cudnn"),
                         "ahead of cuDNN (PyTorch) in 2 of 2 cells by wall-clock and in 1 of 2 by the time in kernels")

    def test_a_gpu_set_without_kernel_times_says_so_and_a_cpu_has_one_clock(self):
        rows = [row("flashomp-cuda", 1.0), row("pytorch-cudnn", 1.5)]
        self.assertIn(", the time in kernels not being recorded", statements.ahead_text(rows, "flashomp-cuda", "pytorch-cudnn"))
        rows = [one | {"on_device": 0.0} for one in rows]
        self.assertTrue(statements.ahead_text(rows, "flashomp-cuda", "pytorch-cudnn").endswith("by wall-clock"))

    def test_what_was_compared_is_counted_from_the_rows(self):
        text = statements.compared_text([row("flashomp", 1.0), row("pytorch-flash", 2.0)])
        self.assertIn("o and LSE, backward dQ too, of 192 rows in 3 heads; dK and dV of 192 keys in 3 key heads", text)
        self.assertTrue(text.endswith("before the timing, and once more with what the timed calls left."))
        without_keys = row("flashomp", 1.0)
        without_keys["compared_parts"] = [part | {"key_tensors": []} for part in without_keys["compared_parts"]]
        self.assertIn("dK and dV of 0 to 192 keys in 0 to 3 key heads",
                      statements.compared_text([row("flashomp", 1.0), without_keys]))
        once = row("flashomp", 1.0, compared_after_timing=False)
        self.assertIn("in 0 of 1 row with what the timed calls left", statements.compared_text([once]))

    def test_files_of_the_older_rule_do_not_claim_more_than_it_did(self):
        old = [{key: value for key, value in row("flashomp", 1.0).items() if key != "compared_parts"} |
               {"compared": text} for text in ("the last 128 of 4096 rows of 1 of 4 heads of 1 of 1 sequences",
                                               "all rows of 1 of 4 heads of 1 of 1 sequences")]
        text = statements.compared_text(old)
        self.assertIn("before the timing only", text)
        self.assertIn("in 1 of 2 rows o, LSE and dQ of the last 128 rows of one head, dK and dV not at all", text)
        self.assertIsNone(statements.compared_text([row("pytorch-flash", 1.0)]))

    def test_spread_layouts_and_too_few_repetitions_are_told(self):
        rows = [row("flashomp", 1.0), row("flashomp", 1.0, shape="other", spread=0.1, repetitions=3),
                row("pytorch-flash", 2.0, layout="bhnd"), row("pytorch-flash", 2.0, layout="bnhd")]
        self.assertEqual(statements.spread_text(rows, ["flashomp", "pytorch-flash"]),
                         "Spread of the repetitions, (slowest - fastest)/median: flashomp 6.0 % (at most 10 %), "
                         "FlashAttention-2 (PyTorch) 2.0 % (at most 2 %). 1 row had fewer than 5 repetitions.")
        self.assertIn("that of the first layout in 1 of 2 rows", statements.layouts_text(rows))
        self.assertIn("FlashAttention-2", statements.lines_of(rows, "flashomp", ["pytorch-flash"])[1])


if __name__ == "__main__":
    unittest.main()
