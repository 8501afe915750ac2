"""Figures are of the results that are committed, and show what the rows say."""

import importlib.machinery
import importlib.util
import json
import pathlib
import re
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "examples" / "gpt")]
sys.dont_write_bytecode = True
import generated
import lm_tables
import record
import results
import ring_tables

try:
    import lm_figures
    import matplotlib
    import panels
    import plot
    import ring_figures
    MISSING = None
except ImportError:
    MISSING = "the Debian package python3-matplotlib is not installed"
FIGURES = ROOT / "docs" / "figures"


def row(implementation, direction, n, milliseconds, **more):
    shape = f"b1_h2_n{n}_d64"
    flops = 4.0 * 2 * n * n * 64 * (1 if direction == "forward" else 2.5)
    return {"name": "", "run_name": f"{direction}/float32/{shape}/real_time", "aggregate_name": "median",
            "implementation": implementation, "label": "openmp:x on y", "real_time": milliseconds, "flops": flops,
            "TFLOP/s": flops / milliseconds * 1e-9, "least_bytes": 1000.0 * n, "peak_bytes": 2048.0 * n, **more}


def some_rows():
    rows = []
    for direction in ("forward", "backward"):
        for n in (256, 512):
            rows += [row("flashomp", direction, n, 1.0), row("pytorch-flash", direction, n, 0.5),
                     row("pytorch-cudnn", direction, n, 0.25)]
        rows.append(row("pytorch-math", direction, 256, 4.0))
        full = row("pytorch-math", direction, 512, 1.0, error_occurred=True, error_message="out of memory")
        del full["real_time"], full["TFLOP/s"]
        rows.append(full)
    return rows


PEAKS = {"flops": 1e12, "flops_source": "measured: a", "bandwidth": 1e11, "bandwidth_source": "measured: b"}


class Committed(unittest.TestCase):
    def test_figures_were_drawn_from_the_committed_files(self):
        expected = {name: " ".join(f"{path.name}:{results.digest(path)}" for path in paths)
                    for name, _, paths in results.present_sets()}
        expected |= {path.stem: f"{path.name}:{results.digest(path)}" for path in [*lm_tables.files(), *ring_tables.files()]}
        kinds = {}
        for path in FIGURES.glob("*.svg"):
            name, _, kind = path.stem.rpartition("-")
            self.assertIn(name, expected, f"{path.name} is of no set; run tools/report")
            self.assertIn(expected[name], path.read_text(), f"{path.name} is of other results; run tools/report")
            kinds.setdefault(name, set()).add(kind)
        for name, _, _ in results.present_sets():
            self.assertIn("speed", kinds.get(name, set()), f"{name} has no figures; run tools/report")
        for path in lm_tables.files():
            self.assertEqual(kinds.get(path.stem), set(lm_tables.FIGURES), f"{path.name}: run bench/lm_figures.py")
        for path in ring_tables.files():
            self.assertEqual(kinds.get(path.stem), set(ring_tables.FIGURES), f"{path.name}: run bench/ring_figures.py")

    def test_pages_have_the_committed_tables(self):
        for tables in (lm_tables, ring_tables):
            text = tables.PAGE.read_text()
            filled = generated.filled(text, tables.MARKS, tables.tables(), tables.PAGE.name)
            self.assertEqual(filled, text, f"run bench/{tables.__name__}.py")

    def test_the_language_models_page_has_the_committed_tables(self):
        text = record.PAGE.read_text()
        self.assertEqual(record.page_text(text), text, "run examples/gpt/record.py page")

    def test_pages_embed_figures_that_are_there(self):
        count = 0
        for page in ("README.md", "docs/results.md", "docs/language_model.md", "docs/language_model_pytorch.md",
                     "docs/distributed.md"):
            for link in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (ROOT / page).read_text()):
                self.assertTrue(((ROOT / page).parent / link).exists(), f"{page}: {link}")
                count += 1
        self.assertGreater(count, 1)

    def test_figures_have_no_background_and_no_black_text(self):
        for path in FIGURES.glob("*.svg"):
            text = path.read_text()
            patch = re.search(r'<g id="patch_1">.*?</g>', text, re.S)
            self.assertRegex(patch.group(0), "fill: none|opacity: 0", path.name)
            self.assertNotIn("#000000", text, path.name)


@unittest.skipIf(MISSING, MISSING)
class Drawn(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.out = pathlib.Path(self.folder.name)
        self.file = self.out / "some.json"
        self.file.write_text(json.dumps({"context": {"peaks": PEAKS, "cpu": "A CPU"}, "benchmarks": some_rows()}))
        _, self.rows = results.read(self.file)
        self.panels = plot.by_panel(self.rows)

    def tearDown(self):
        plot.plt.close("all")
        self.folder.cleanup()

    def values(self, figure, axis=0):
        return sorted(tuple(round(float(y), 6) for y in line.get_ydata()) for line in figure.axes[axis].lines
                      if line.get_marker() not in ("None", None, ""))

    def test_speed_is_that_of_the_rows(self):
        figure = plot.speed(self.panels, "here")
        expected = sorted([tuple(r["TFLOP/s"] * 1e3 for r in self.rows if r["direction"] == "forward" and r["timed"]
                                 and r["implementation"] == name) for name in
                           ("flashomp", "pytorch-flash", "pytorch-cudnn", "pytorch-math")])
        for got, want in zip(self.values(figure), expected):
            self.assertEqual(len(got), len(want))
            for a, b in zip(got, want):
                self.assertAlmostEqual(a, b, 4)
        self.assertEqual(len(figure.axes), 2)

    def test_out_of_memory_is_told(self):
        self.assertIn("out of memory: standard attention (PyTorch) from N = 512",
                      plot.speed(self.panels, "here")._suptitle.get_text())

    def test_ratios(self):
        self.assertEqual(self.values(plot.ratio(self.panels, "here")), [(0.25, 0.25), (0.5, 0.5)])

    def test_speedup_over_standard_attention_where_that_ran(self):
        self.assertEqual(self.values(plot.speedup(self.panels, "here")), [(4.0,), (8.0,), (16.0,)])

    def test_memory_is_what_was_measured(self):
        for values in self.values(plot.memory(self.panels, "here")):
            self.assertEqual(values[0], 0.5)

    def test_a_row_of_panels_has_one_dtype_and_panels_say_batch_and_heads(self):
        names = [f"2 × 16 heads of {depth}, {mask}, {dtype}" for dtype in ("bfloat16", "float32")
                 for mask in ("full", "causal") for depth in (64, 128)]
        for band in plot.bands_of(names):
            self.assertEqual(len({name.split(", ")[-1] for name in band}), 1)
        self.assertEqual([len(band) for band in plot.bands_of(names)], [2, 2, 2, 2])
        self.assertEqual([len(band) for band in plot.bands_of(names[:3] + names[4:5])], [3, 1])
        titles = [axis.get_title() for axis in plot.speed(self.panels, "here").axes]
        self.assertEqual(titles, ["forward: 1 × 2 heads of 64, full", "backward: 1 × 2 heads of 64, full"])

    def test_sizes_of_a_panel(self):
        def sizes(*batches, heads_kv=8):
            return panels.size_text([{"batch": batch, "heads_q": 8, "heads_kv": heads_kv, "seqlen_k": n}
                                          for batch, n in batches])
        self.assertEqual(sizes((2, 512), (2, 1024)), "2 × 8 heads")
        self.assertEqual(sizes((32, 512), (16, 1024)), "16k/N × 8 heads")
        self.assertEqual(sizes((1, 512), (2, 1024)), "1 to 2 × 8 heads")
        self.assertEqual(sizes((2, 512), heads_kv=2), "2 × 8 heads, 4 a key head")

    def test_logarithmic_axes_have_plain_numbers(self):
        for low, high in ((60.0, 70.0), (3.0, 40.0), (0.01, 900.0)):
            figure, axis = plot.plt.subplots()
            axis.set_yscale("log")
            axis.set_ylim(low, high)
            plot.plain_log(axis.yaxis)
            figure.canvas.draw()
            shown = [label.get_text() for label in axis.yaxis.get_ticklabels() if label.get_text()
                     and low <= float(label.get_text()) <= high]
            self.assertGreater(len(shown), 1)
            self.assertNotIn("^", "".join(label.get_text() for label in axis.yaxis.get_ticklabels(which="both")))

    def test_memory_below_what_a_call_returns_is_not_shown(self):
        for r in self.rows:
            if r["implementation"] == "pytorch-flash" and r["seqlen_k"] == 512 and r["direction"] == "backward":
                r["peak_bytes"] = 3 * 4 * 2 * 512 * 64 - 1
        figure = plot.memory(plot.by_panel(self.rows), "here")
        self.assertIn("not shown: FlashAttention-2", figure._suptitle.get_text())
        self.assertEqual(len(self.values(figure)), 3)
        self.assertEqual(len(self.values(plot.speed(plot.by_panel(self.rows), "here"))), 4)

    def test_a_roof_is_for_its_own_type(self):
        roofs = {"measured: bfloat16 products on amx, 2 threads": None, "measured: float32 products on amx, 2 threads": 7,
                 "measured: float32 multiply-adds, AVX2, 2 threads": 7}
        for source, count in roofs.items():
            forward = [r for r in self.rows if r["direction"] == "forward"]
            figure = plot.roofline(forward, PEAKS | {"flops_source": source}, "here")
            self.assertEqual(figure and len({(line.get_xdata()[0], line.get_ydata()[0]) for line in figure.axes[0].lines[1:]}),
                             count)

    def test_roofline_needs_peaks(self):
        self.assertIsNone(plot.roofline(self.rows, None, "here"))
        figure = plot.roofline(self.rows, PEAKS, "here")
        roof = figure.axes[0].lines[0]
        self.assertEqual(roof.get_ydata()[1], 1.0)
        self.assertAlmostEqual(roof.get_xdata()[1], 10.0)

    def test_the_same_rows_give_the_same_file(self):
        first = {path.name: path.read_text() for path in plot.draw("x", [self.file], self.out / "a")}
        second = {path.name: path.read_text() for path in plot.draw("x", [self.file], self.out / "b")}
        self.assertEqual(sorted(first), [f"x-{kind}.svg" for kind in ("memory", "ratio", "roofline", "speed", "speedup")])
        self.assertEqual(first, second)
        self.assertIn(f"some.json:{results.digest(self.file)}", first["x-speed.svg"])

    def test_a_language_models_figures_show_its_rows(self):
        def trained(attention, implementation, checkpoint, factor):
            values = [100.0 * factor, 50.0 * factor]
            return row(implementation, "training step", 64, 2.0) | {
                "configuration": {"attention": attention, "dtype": "float32", "checkpoint": checkpoint, "seed": 1},
                "perplexity": values[-1], "tokens_per_second": 64 / factor, "peak_bytes": 2**20 * factor, "losses_digest": "a",
                "evaluations": [{"step": 10 * (number + 1), "perplexity": value} for number, value in enumerate(values)]}
        rows = [trained("pytorch-math", "pytorch-cpu-math", "none", 1.0), trained("flashomp-openmp", "flashomp", "none", 1.001),
                trained("flashomp-openmp", "flashomp", "layer", 2.0)]
        figure = lm_figures.curves(rows, "here")
        self.assertEqual(self.values(figure), [(100.0, 50.0), (100.1, 50.05)])
        self.assertEqual(self.values(figure, 1), [(0.1, 0.1)])
        heights = [sorted(round(bar.get_height(), 6) for bar in axis.patches) for axis in lm_figures.cost(rows, "here").axes]
        self.assertEqual(heights, [[32.0, round(64 / 1.001, 6), 64.0], [1.0, 1.001, 2.0]])
        path = self.out / "some-language-model-pytorch.json"
        path.write_text(json.dumps({"context": {"cpu": "A CPU"}, "benchmarks": rows}))
        drawn = [file.read_text() for file in lm_figures.draw(path, self.out)]
        self.assertEqual(drawn, [file.read_text() for file in lm_figures.draw(path, self.out)])
        self.assertTrue(all(f"{path.name}:{results.digest(path)}" in text for text in drawn))

    def test_shares_of_the_ideal_are_those_of_the_rows(self):
        def shared(ranks, layout, scheme, share, **more):
            return row("flashomp-mpi", "forward", 256, 1.0) | {
                "ranks": ranks, "layout": layout, "scheme": scheme, "heads_ranks": 2 if scheme == "grid" else 1, "devices": min(ranks, 2),
                "ranks_share_cores": ranks > 2, "share_of_ideal": share, "overlap": 0.25, "bytes_sent": 4000000,
                "planned_bytes": 4000000, "planned_time": 0.5, "spread": 0.01, "one_rank_time": 2.0 + ranks, "least_time": 0.5,
                "most_time": 2.0} | more
        rows = [shared(1, "", "one rank", 1.0), shared(2, "zigzag", "ring", 0.9), shared(4, "zigzag", "ring", 0.8),
                shared(2, "contiguous", "ring", 0.5), shared(4, "contiguous", "grid", 0.7, overlap=None),
                shared(2, "contiguous", "ulysses", 0.6, planned_bytes=5)]
        file = self.out / "some-ring.json"
        runs = [{"ranks": 2, "load_avg": [0.5, 0, 0]}]
        file.write_text(json.dumps({"context": {"cpu": "A CPU", "cores_of_host": 2, "mpi": "An MPI", "runs": runs},
                                    "benchmarks": rows}))
        _, read = results.read(file)
        figure = ring_figures.share(read, "here")
        self.assertEqual(self.values(figure), [(50.0,), (60.0,), (70.0,), (80.0,), (90.0,)])  # no line from 2 ranks to 4
        bars = sorted(tuple(segment[:, 1].round(6)) for lines in figure.axes[0].collections for segment in lines.get_segments())
        self.assertEqual(bars, [(25.0, 100.0), (30.0, 120.0), (35.0, 140.0), (40.0, 160.0), (45.0, 180.0)])
        own_cores = [one | {"ranks_share_cores": False} for one in read]
        self.assertEqual(self.values(ring_figures.share(own_cores, "here")), [(50.0,), (60.0,), (70.0,), (90.0, 80.0)])
        self.assertIn("from 4 on", figure._suptitle.get_text())
        text = "\n".join(ring_tables.section(file))
        self.assertIn("1, 2 and 4 ranks, one thread a rank, An MPI.", text)
        self.assertIn("| float32 | forward | b1_h2_n256_d64 | 3.00 ms (spread 1 %) | 4.00 ms | 6.00 ms |", text)
        self.assertIn("| float32 | forward | b1_h2_n256_d64 | ring, zigzag: 90 % | ring, zigzag: 80 % |", text)
        self.assertIn("<summary>float32 forward b1_h2_n256_d64</summary>", text)
        self.assertIn("| ring, zigzag | 2 | 90 % | 1.00 ms | 1 % | 0.50 ms | 4.00 | 25 % |", text)
        self.assertIn("| ring, zigzag | 4 | 80 % | 1.00 ms | 1 % | 0.50 ms | 4.00 |  |", text)
        self.assertIn("In 1 of 5 rows **other bytes are sent than planned**: 2 ranks, float32 forward b1_h2_n256_d64, Ulysses.", text)
        self.assertIn("Where ranks share cores, planned times are 0.50 to 0.50 times the measured ones", text)
        self.assertEqual([one.read_text() for one in ring_figures.draw(file, self.out)],
                         [one.read_text() for one in ring_figures.draw(file, self.out)])

    def test_the_report_names_machine_commit_and_command_of_every_file(self):
        loader = importlib.machinery.SourceFileLoader("report", str(ROOT / "tools" / "report"))
        report = importlib.util.module_from_spec(importlib.util.spec_from_loader("report", loader))
        loader.exec_module(report)
        few = [one for one in results.SETS if len(one[2]) > 1][:1] + [one for one in results.SETS if "launch" in one[0]]
        with unittest.mock.patch.object(results, "SETS", few):  # all of them are two minutes of drawing
            page = report.page()
            sets = results.present_sets()
        self.assertGreater(len(sets), 2)
        ids = re.findall(r'\bid="([^"]+)"', page)
        self.assertEqual(len(ids), len(set(ids)))
        for link in re.findall(r'(?:xlink:href="|url\()#([^")]+)', page):
            self.assertIn(link, set(ids))
        for _, _, paths in sets:
            for path in paths:
                for fact in ("commit", "machine", "command"):
                    self.assertIn(report.html.escape(str(results.provenance(path)[fact])), page)


if __name__ == "__main__":
    unittest.main()
