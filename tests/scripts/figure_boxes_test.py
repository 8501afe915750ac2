"""Every figure of docs/figures in a headless browser: nothing reaches past the picture's edge, and no text covers another.

FLASHOMP_FIGURES names another folder of figures. Skips where there is no browser, but not under CI.
"""

import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIGURES = pathlib.Path(os.environ.get("FLASHOMP_FIGURES", ROOT / "docs" / "figures"))
BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)

# Takes the figures of the page one after the other and leaves what was found as the page's text. A box counts as far as its
# clipping path lets it be seen; half a pixel is rounding.
SCRIPT = """
const found = {};
const seen = element => {
    let box = element.getBoundingClientRect();
    for (let at = element; at.ownerSVGElement; at = at.parentNode) {
        const name = (at.getAttribute("clip-path") || "").match(/#([^)]+)/);
        const shape = name && document.getElementById(name[1]);
        if (shape) {
            const rect = shape.firstElementChild, matrix = at.getScreenCTM(), size = rect.getBBox();
            const x = matrix.a * size.x + matrix.e, y = matrix.d * size.y + matrix.f;
            const left = Math.max(box.left, x), top = Math.max(box.top, y);
            box = new DOMRect(left, top, Math.min(box.right, x + matrix.a * size.width) - left,
                              Math.min(box.bottom, y + matrix.d * size.height) - top);
        }
    }
    return box;
};
const overlap = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
                          Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
for (const source of document.querySelectorAll("script[type='text/plain']")) {
    const holder = document.createElement("div");
    holder.innerHTML = source.textContent;
    document.body.append(holder);
    const svg = holder.querySelector("svg"), edge = svg.getBoundingClientRect();
    const report = {boxes: 0, outside: [], covered: []}, texts = [];
    for (const element of svg.querySelectorAll("path, use, text, image, rect, circle, polygon, polyline, line")) {
        if (element.closest("defs, clipPath")) continue;
        const box = seen(element);
        if (box.width <= 0 && box.height <= 0) continue;
        ++report.boxes;
        if (box.left < edge.left - 0.5 || box.top < edge.top - 0.5 ||
            box.right > edge.right + 0.5 || box.bottom > edge.bottom + 0.5)
            report.outside.push((element.closest("g[id]") || element).id);
    }
    for (const text of svg.querySelectorAll("g[id^='text_']")) {
        const box = text.getBoundingClientRect();
        for (const [name, other] of texts)
            if (overlap(box, other)) report.covered.push(name + " and " + text.id);
        texts.push([text.id, box]);
    }
    report.texts = texts.length;
    report.outside = [...new Set(report.outside)];
    found[source.id] = report;
    holder.remove();
}
document.body.textContent = "found:" + JSON.stringify(found) + ":end";
"""


def boxes(figures):
    """{name: what the browser found} of {name: SVG}."""
    parts = "".join(f"<script type='text/plain' id='{html.escape(name)}'>{svg[svg.index('<svg'):]}</script>"
                    for name, svg in figures.items())
    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder) / "page.html"
        page.write_text(f"<!doctype html><meta charset='utf-8'><body>{parts}<script>{SCRIPT}</script>")
        done = subprocess.run(
            [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             f"--user-data-dir={folder}/profile", "--virtual-time-budget=600000", "--dump-dom", page.as_uri()],
            capture_output=True, text=True, timeout=600, check=False)
    answer = re.search(r"found:(\{.*\}):end", done.stdout, re.S)
    if not answer:
        raise AssertionError(f"the browser ended with status {done.returncode} and said: {done.stderr[-2000:]}")
    return json.loads(html.unescape(answer.group(1)))


@unittest.skipIf(BROWSER is None and not os.environ.get("CI"), "there is no browser; the Debian package chromium has one")
class Boxes(unittest.TestCase):
    def setUp(self):
        self.assertIsNotNone(BROWSER, "under CI the figures are looked at; install the Debian package chromium")

    def test_the_browser_finds_what_is_wrong(self):
        def figure(*shapes):
            start = "<svg xmlns='http://www.w3.org/2000/svg' width='100' height='50' viewBox='0 0 50 25'>"
            return f"{start}{''.join(shapes)}</svg>"
        clip = "<defs><clipPath id='c'><rect x='0' y='0' width='50' height='25'/></clipPath></defs>"
        line = "<g id='line_1'><path d='M 10 10 L 55 10' {}/></g>"
        text = "<g id='text_{}'><rect x='{}' y='2' width='10' height='5'/></g>"
        found = boxes({"good": figure(clip, line.format("clip-path='url(#c)'"), text.format(1, 2), text.format(2, 20)),
                       "clipped": figure(line.format("")), "covered": figure(text.format(1, 2), text.format(2, 8))})
        self.assertEqual((found["good"]["outside"], found["good"]["covered"], found["good"]["boxes"]), ([], [], 3))
        self.assertEqual(found["clipped"]["outside"], ["line_1"])
        self.assertEqual(found["covered"]["covered"], ["text_1 and text_2"])

    def test_no_box_of_a_figure_is_clipped_and_no_text_covers_another(self):
        figures = {path.name: path.read_text() for path in sorted(FIGURES.glob("*.svg"))}
        found = boxes(figures)
        self.assertEqual(sorted(found), sorted(figures))
        for name, report in found.items():
            with self.subTest(name):
                self.assertGreater(report["boxes"], 50)
                self.assertGreater(report["texts"], 5)
                self.assertEqual(report["outside"], [], "reaches past the edge")
                self.assertEqual(report["covered"], [], "text over text")


if __name__ == "__main__":
    unittest.main()
