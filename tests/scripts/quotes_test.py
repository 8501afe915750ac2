"""bench/quotes.py: numbers in prose are those of the results, and what has no result says so."""

import json
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
sys.dont_write_bytecode = True
import quotes
import results


def row(implementation, n, milliseconds, direction="forward", **more):
    return {"run_name": f"{direction}/float32/b1_h2_n{n}_d64/real_time", "implementation": implementation,
            "real_time": milliseconds, "TFLOP/s": 0.5, **more}


class Quotes(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        patch = unittest.mock.patch.object(results, "RESULTS", pathlib.Path(self.folder.name))
        patch.start()
        self.addCleanup(patch.stop)
        self.addCleanup(self.folder.cleanup)
        self.addCleanup(quotes.rows_of.cache_clear)
        self.write("a.json", row("flashomp", 512, 2.0, kernel_time=1.0), row("flashomp", 1024, 4.0, kernel_time=3.0),
                   row("pytorch-flash", 512, 1.0, kernel_time=0.5), row("pytorch-flash", 1024, 6.0, kernel_time=6.0),
                   row("flashomp", 512, 9.0, "backward", peak_flops=1e12, real_text="x"))
        self.write("b.json", row("flashomp", 512, 1.5), row("flashomp", 1024, 4.4))

    def write(self, name, *rows):
        (results.RESULTS / name).write_text(json.dumps({"context": {}, "benchmarks": rows}))
        quotes.rows_of.cache_clear()

    def test_values(self):
        for words, number in {
                "a.json time forward n=512": 2.0, "a.json time of pytorch-flash n=512 us": 1000.0,
                "a.json kernels forward n=1024": 3.0, "a.json least ratio to pytorch-flash": 0.5,
                "a.json most ratio to pytorch-flash n>=512": 1.5, "a.json median kernel-ratio to pytorch-flash": 1.25,
                "a.json count<1 ratio to pytorch-flash forward": 1, "a.json rows ratio to pytorch-flash": 2,
                "a.json..b.json most faster n=512,1024 %": 100 / 3, "a.json share backward %": 50.0,
                "a.json..b.json most slower %": 100 / 11, "a.json..b.json median drift": (1 / 3 + 1 / 11) / 2,
                "a.json most kernel_time full d=64 heads=2": 3.0, "a.json speed backward x1000": 500.0}.items():
            with self.subTest(words):
                self.assertAlmostEqual(quotes.value(words), number)

    def test_what_cannot_be_computed_is_told(self):
        for words, why in {"c.json time": "no bench/results/c.json", "a.json time": "3 rows are chosen",
                           "a.json least time n=7": "no row is chosen", "a.json least time sideways": "'sideways' is no word",
                           "a.json least ratio to x of y": "has no y"}.items():
            with self.subTest(words), self.assertRaisesRegex(quotes.Wrong, why):
                quotes.value(words)
        with self.assertRaisesRegex(quotes.Wrong, "page.md: 'c.json time'"):
            quotes.filled("1.0<!-- result: c.json time -->", "page.md")

    def test_a_number_that_differs_is_corrected_as_it_was_written(self):
        text = ("from 1.23<!-- result: a.json least ratio\n to pytorch-flash --> to "
                "7<!-- result: a.json time forward n=1024 us -->")
        self.assertEqual(quotes.filled(text), text.replace("1.23", "0.50").replace(" 7<", " 4000<"))
        self.assertEqual(quotes.filled(quotes.filled(text)), quotes.filled(text))

    def test_what_has_no_source_is_found(self):
        page = ("# One\n\nIt took 3 ms, 4<!-- result: x --> ms and\n5.5 TFLOP/s.\n\n- 7 µs, read off the terminal\n\n"
                "# Two\n\nAll other numbers in this section were read off a terminal.\n\n3 ms\n\n```\n4 ms\n```\n")
        self.assertEqual(quotes.unsourced(page), ["One: 3 ms", "One: 5.5 TFLOP/s"])


class Pages(unittest.TestCase):
    def test_every_quoted_number_is_that_of_its_file(self):
        count = 0
        for name in quotes.PAGES:
            text = (ROOT / name).read_text()
            self.assertEqual(quotes.filled(text, name), text, name)
            count += len(quotes.QUOTE.findall(text))
            self.assertEqual(len(quotes.QUOTE.findall(text)), text.count("result:"), f"{name} has a comment with no number")
        self.assertGreater(count, 20)

    def test_every_number_has_a_source(self):
        for name in quotes.PAGES:
            text = (ROOT / name).read_text()
            if name == "README.md":
                text = text.split("<!-- results:begin -->")[0] + text.split("<!-- results:end -->")[1]
            self.assertEqual(quotes.unsourced(text), [], name)


if __name__ == "__main__":
    unittest.main()
