"""tools/results_table: the pages differ from the results when a number does, and rows that miss their bound stay out."""

import importlib.machinery
import importlib.util
import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
sys.dont_write_bytecode = True
import results

LOADER = importlib.machinery.SourceFileLoader("results_table", str(ROOT / "tools" / "results_table"))
tables = importlib.util.module_from_spec(importlib.util.spec_from_loader("results_table", LOADER))
LOADER.exec_module(tables)


def row(implementation, milliseconds=None, why=None, **more):
    shape = "b1_h2_n64_d16"
    timed = {"real_time": milliseconds, "TFLOP/s": 0.5, "error_o": 1e-7, "bound_o": 1e-5, "peak_bytes": 2**20}
    return {"name": "forward/float32/" + shape, "run_name": f"forward/float32/{shape}/real_time",
            "aggregate_name": "median", "implementation": implementation, "label": "openmp:host-avx2 on host",
            **(timed if why is None else {"error_occurred": True, "error_message": why}), **more}


class Table(unittest.TestCase):
    def lines(self, *rows, **choice):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "some.json"
            file.write_text(json.dumps({"context": {"flashomp_commit": "abc"}, "benchmarks": list(rows)}))
            return tables.table([file], **choice)

    def test_ratios_and_reasons(self):
        lines = self.lines(row("flashomp", 2.0), row("pytorch-flash", 1.0), row("pytorch-cudnn", 5.0),
                           row("pytorch-math", why="out of memory: 12 bytes"))
        self.assertEqual(lines[0], "| pass, dtype, shape | flashomp | speed | peak memory | against FlashAttention-2 "
                         "(PyTorch) | against cuDNN (PyTorch) | against standard attention (PyTorch) | error (bound) |")
        self.assertEqual(lines[2], "| forward float32 b1_h2_n64_d16 | 2.00 ms | 500.0 GFLOP/s | 1.0 MiB | 0.50x | 2.50x "
                         "| out of memory | 1.0e-07 (1.0e-05) |")
        self.assertIn("commit abc", "\n".join(lines[3:]))

    def test_time_in_kernels_and_the_largest_error_of_gradients(self):
        gradients = {"error_dq": 3e-7, "error_dk": 2e-7, "error_dv": 1e-7, "bound_gradient": 2e-5}
        lines = self.lines(row("flashomp", 2.0, kernel_time=1.0, **gradients), row("pytorch-flash", 4.0, kernel_time=1.5),
                           row("pytorch-math", 8.0))
        self.assertIn("| flashomp | in kernels | speed |", lines[0])
        self.assertEqual(lines[2], "| forward float32 b1_h2_n64_d16 | 2.00 ms | 1.00 ms | 500.0 GFLOP/s | 1.0 MiB "
                         "| 2.00x (1.50x) | 4.00x | 3.0e-07 (2.0e-05) |")

    def test_a_multiply_add_limit_is_stated_beside_the_ratio(self):
        peaks = {"flops": 1e12, "flops_source": "measured: float32 multiply-adds, AVX2, 2 threads"}
        rows = [row("flashomp", 2.0), row("pytorch-cpu-flash", 4.0, **{"TFLOP/s": 0.25})]
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "some.json"
            file.write_text(json.dumps({"context": {"peaks": peaks}, "benchmarks": rows}))
            lines = tables.table([file])
        self.assertIn("| speed | share of the limit | PyTorch's flash kernel: its share | peak memory | against", lines[0])
        self.assertIn("| 500.0 GFLOP/s | 50 % | 25 % | 1.0 MiB | 2.00x |", lines[2])
        self.assertIn("1000 GFLOP/s: a loop of float32 multiply-adds, AVX2, 2 threads", "\n".join(lines))

    def test_a_run_that_was_stopped_says_how_much_of_it_is_there(self):
        stopped = {"before": "float32 b1_h2_n128_d16", "seconds": 225, "shapes_asked_for": 72,
                   "shapes_measured": 1}
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "some.json"
            file.write_text(json.dumps({"context": {"stopped": stopped}, "benchmarks": [row("flashomp", 2.0)]}))
            self.assertIn("Measured are 1 of the 72 shapes that were asked for: the time was over before float32 "
                          "b1_h2_n128_d16.", "\n".join(tables.table([file])))

    def test_a_wrong_result_is_refused(self):
        with self.assertRaises(SystemExit):
            self.lines(row("flashomp", why="errors: o 1 (bound 1e-5)", is_wrong=True))

    def test_both_forms_of_files_are_read(self):
        old = {"context": {}, "benchmarks": [
            {"run_name": "forward/bfloat16/b1_h2kv1_n64x32_d16_causal/real_time", "aggregate_name": name,
             "label": "openmp:tensor on NVIDIA H200 (device 0)", "real_time": 1.0, "TFLOP/s": 1.0}
            for name in ("mean", "median", "stddev")]}
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "old.json"
            file.write_text(json.dumps(old))
            (only,) = results.read(file)[1]
        self.assertEqual(only["implementation"], "flashomp-tensor")
        self.assertEqual((only["heads_kv"], only["seqlen_q"], only["seqlen_k"], only["causal"]), (1, 64, 32, True))

    def test_labels_of_older_files(self):
        for label, name in {"openmp:hopper on x": "flashomp", "openmp:plain on x": "flashomp-plain",
                            "reference:eigen on x": "reference", "openmp:host-avx512 on x": "flashomp",
                            "PyTorch 2.11.0+cu130 flash on x": "pytorch-flash"}.items():
            self.assertEqual(results.implementation_of({"label": label}), name)

    def test_every_number_on_the_pages_is_generated(self):
        readme = (ROOT / "README.md").read_text()
        part = readme.split(tables.BEGIN)[1].split(tables.END)[0]
        self.assertEqual(part, f"\n{tables.readme_part()}\n")
        self.assertEqual((ROOT / "docs/results.md").read_text(), tables.results_page())
        self.assertNotIn("FLOP/s", readme.replace(part, ""))
        host = (ROOT / "docs/host.md").read_text()
        self.assertIn(f"{tables.HOSTS_BEGIN}\n{tables.hosts_part()}\n{tables.HOSTS_END}", host)

    def test_readme_is_short_and_has_one_small_table(self):
        readme = (ROOT / "README.md").read_text()
        self.assertLessEqual(len(readme.splitlines()), 120)
        self.assertLessEqual(sum(line.startswith("|") for line in readme.splitlines()), 2 + 8)
        self.assertLessEqual(sum(len(cells) for cells, _ in tables.README_MACHINES), 8)

    def test_readme_s_rows_are_there_in_every_set_that_may_be_shown(self):
        there = {one[0]: one for one in results.present_sets()}
        for cells, kinds in tables.README_MACHINES:
            for kind, names in kinds:
                for name in names:
                    with self.subTest(name):
                        _, title, paths = there[name]
                        body, note = tables.set_lines(kind, title, paths, cells)
                        self.assertEqual(len(body), len(cells))
                        self.assertIn("ahead of", note)

    def test_readme_shows_a_loss_as_it_is(self):
        rows = [row("flashomp", 2.0, spread=0.01, kernel_time=1.0), row("pytorch-flash", 1.0, kernel_time=0.25)]
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "some.json"
            file.write_text(json.dumps({"context": {"flashomp_commit": "0123456789ab"}, "benchmarks": rows}))
            body, note = tables.set_lines("A GPU", "Some set", [file], (("forward", "float32", "b1_h2_n64_d16"),))
        self.assertEqual(body, [["A GPU: forward float32 b1_h2_n64_d16", "2.00 ms", "500.0 GFLOP/s", "1.0 MiB", "0.50x (0.25x)",
                                 "", "1.0e-07 (1.0e-05)", "1.0 %"]])
        self.assertIn("ahead of FlashAttention-2 (PyTorch) in 0 of 1 cells by wall-clock", note)
        self.assertIn("on flashomp's layout", note)

    def test_grid_lines_count_what_the_files_hold(self):
        for path in tables.grid_files():
            line = tables.grid_line(path)
            facts, *cells = (json.loads(text) for text in path.read_text().splitlines())
            self.assertIn(f"{len(cells):,} lines", line)
            failed = sum(not cell["pass"] for cell in cells)
            self.assertIn(f"{failed} missed" if failed else "none missed", line)


if __name__ == "__main__":
    unittest.main()
