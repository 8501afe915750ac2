"""tools/links: links of the pages lead to files, headings and lines that are there, and the check notices those that do not."""

import importlib.machinery
import importlib.util
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
LOADER = importlib.machinery.SourceFileLoader("links", str(ROOT / "tools" / "links"))
links = importlib.util.module_from_spec(importlib.util.spec_from_loader("links", LOADER))
LOADER.exec_module(links)

CODE = """// tile() is used here
struct Tile;
struct Tile
{
    int rows() const { return 1; }
};
inline constexpr int many = 4;
int use() { return tile.rows(); }
"""


class Links(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        for cache in (links.lines_of, links.anchors_of):
            self.addCleanup(cache.cache_clear)
        self.root = pathlib.Path(self.folder.name)
        (self.root / "docs" / "log").mkdir(parents=True)
        (self.root / "tile.hpp").write_text(CODE)
        (self.root / "docs" / "other.md").write_text("# A page, and *more*\n\n```\n# no heading\n```\n## `Tile` of 2 [things](x.md)\n")
        (self.root / "docs" / "x.md").write_text("# x\n")

    def problems(self, text):
        (self.root / "README.md").write_text(text)
        return links.problems(self.root)

    def test_links_that_lead_somewhere(self):
        for link in ("[a](tile.hpp)", "[a](docs)", "[a](https://example.org/no)", "[a](docs/other.md#a-page-and-more)",
                     "[a](docs/other.md#tile-of-2-things)", "[`Tile`](tile.hpp#L3)", "[`Tile::rows()`](tile.hpp#L5)",
                     "[`rows(int x)`](tile.hpp#L5)", "```\n[a](none.md)\n```"):
            with self.subTest(link):
                self.assertEqual(self.problems(link + "\n"), [])

    def test_links_that_do_not(self):
        for link, why in {"[a](none.md)": "there is no none.md", "[a](docs/other.md#no-heading)": "no heading",
                          "[`Tile`](tile.hpp#L5)": "does not hold Tile", "[`Til`](tile.hpp#L3)": "does not hold Til",
                          "[`tile`](tile.hpp#L1)": "outside a comment",
                          "[`Tile`](tile.hpp#L99)": "line 99 is not in", "[`Tile`](tile.hpp#tile)": "is no line",
                          "[3](tile.hpp#L3)": "names nothing", "[`Tile`](gone.hpp#L3)": "there is no gone.hpp"}.items():
            with self.subTest(link):
                (sentence,) = self.problems(link)
                self.assertIn(why, sentence)

    def test_files_that_are_named_are_there_but_in_histories(self):
        self.assertEqual(self.problems("docs/other.md, other/folder/no.hpp and tests/a*.hpp"), [])
        self.assertEqual(self.problems("See offload/no.hpp."), ["README.md: there is no offload/no.hpp."])
        (self.root / "docs" / "log" / "old.md").write_text("offload/no.hpp was there.\n")
        self.assertEqual(self.problems("a"), [])

    def test_pages_in_folders_are_read_from_where_they_are(self):
        page = self.root / "docs" / "log" / "old.md"
        page.write_text("[a](../../tile.hpp) [b](../x.md)\n")
        self.assertEqual(links.problems(self.root), [])
        page.write_text("[a](tile.hpp)\n")
        self.assertEqual(len(links.problems(self.root)), 1)

    def test_numbers_move_to_definitions_and_right_ones_stay(self):
        page = self.root / "README.md"
        page.write_text("[`Tile`](tile.hpp#L9) [`rows()`](tile.hpp#L1) [`many`](tile.hpp#L1) [`rows()`](tile.hpp#L8) "
                        "[`no`](tile.hpp#L1)")
        self.assertEqual(links.fixed(page), "[`Tile`](tile.hpp#L3) [`rows()`](tile.hpp#L5) [`many`](tile.hpp#L7) "
                         "[`rows()`](tile.hpp#L8) [`no`](tile.hpp#L1)")


class Pages(unittest.TestCase):
    def test_every_link_leads_where_it_says(self):
        self.assertEqual(links.problems(), [])

    def test_the_algorithm_s_page_leads_to_lines(self):
        text = (ROOT / "docs/algorithm.md").read_text()
        lines = [target for _, target in links.LINK.findall(text) if "#L" in target]
        self.assertGreater(len(lines), 10)


if __name__ == "__main__":
    unittest.main()
