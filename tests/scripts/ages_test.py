"""bench/ages.py: results are older than the code when what they measure changed, and README shows none that are."""

import fnmatch
import importlib.machinery
import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
sys.dont_write_bytecode = True
import ages
import results

LOADER = importlib.machinery.SourceFileLoader("results_table", str(ROOT / "tools" / "results_table"))
tables = importlib.util.module_from_spec(importlib.util.spec_from_loader("results_table", LOADER))
LOADER.exec_module(tables)


class Age(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)
        self.git("init", "-q")
        self.first = self.commit("kernel.hpp", "1")

    def tearDown(self):
        self.folder.cleanup()
        ages.age.cache_clear()

    def git(self, *words):
        done = subprocess.run(["git", "-C", self.root, "-c", "user.name=a", "-c", "user.email=b", *words], check=True,
                              capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self, name, text):
        (self.root / name).write_text(text)
        self.git("add", name)
        self.git("commit", "-q", "-m", name)
        return self.git("rev-parse", "HEAD")

    def age(self, commit, *paths):
        ages.age.cache_clear()
        ages.moved.cache_clear()
        return ages.age(commit, paths, str(self.root))

    def test_only_what_is_measured_counts(self):
        self.commit("page.md", "2")
        self.assertEqual(self.age(self.first, "kernel.hpp"), {"older": False})
        self.commit("kernel.hpp", "2")
        self.commit("kernel.hpp", "3")
        self.assertEqual(self.age(self.first, "kernel.hpp"), {"older": True, "commits": 2, "files": 1})
        self.assertEqual(self.age(self.first, ".", ":(exclude)kernel.hpp")["commits"], 1)

    def test_a_change_that_is_not_committed_counts(self):
        (self.root / "kernel.hpp").write_text("2")
        self.assertEqual(self.age(self.first, "kernel.hpp"), {"older": True, "commits": 0, "files": 1})

    def test_comments_do_not_count(self):
        first = self.commit("kernel.hpp", 'int x; // one\nauto y = "// no comment";\n')
        self.commit("kernel.hpp", '/* two\nlines */ int x;\n\nauto y =\n    "// no comment";\n')
        self.assertEqual(self.age(first, "kernel.hpp"), {"older": False})
        self.commit("kernel.hpp", 'int x;\nauto y = "// a text";\n')
        self.assertTrue(self.age(first, "kernel.hpp")["older"])

    def test_changes_that_alter_no_plan_do_not_count(self):
        first = self.commit("plan.cpp", "int x;\n")
        self.commit("plan.cpp", "int y; // another\n")
        self.assertTrue(self.age(first, "plan.cpp", "cuda/")["older"])
        known = {("plan.cpp", ages.digest_of("int x;"), ages.digest_of("int y;"))}
        with unittest.mock.patch.object(ages, "SAME_KERNELS", known):
            self.assertEqual(self.age(first, "plan.cpp", "cuda/"), {"older": False})
            self.commit("plan.cpp", "int z;\n")
            self.assertTrue(self.age(first, "plan.cpp", "cuda/")["older"])

    def test_changes_that_give_the_cuda_backend_the_same_kernels_count_for_others_alone(self):
        (self.root / "cuda").mkdir()
        first = self.commit("cuda/kernel.cu", "int x;\n")
        self.commit("shared.hpp", "int y;\n")  # not there before
        self.commit("cuda/kernel.cu", "int z;\n")
        known = frozenset({("cuda/kernel.cu", ages.digest_of("int x;"), ages.digest_of("int z;")),
                           ("shared.hpp", None, ages.digest_of("int y;"))})
        with unittest.mock.patch.object(ages, "SAME_KERNELS", known):
            self.assertEqual(self.age(first, "cuda/", "shared.hpp"), {"older": False})
            self.assertTrue(self.age(first, "cuda/", "shared.hpp", "offload/")["older"])
            self.assertTrue(self.age(first, "shared.hpp")["older"])

    def test_where_files_are_does_not_count(self):
        code = "".join(f"int x{i};\n" for i in range(20))
        self.commit("machine.hpp", '#include "kernel.hpp"\n' + code)
        first = self.commit("CMakeLists.txt", "# old\nlayer(machine.hpp\n kernel.hpp)\n")
        (self.root / "host").mkdir()
        self.git("mv", "machine.hpp", "host/tile.hpp")
        self.commit("host/tile.hpp", '#include "math/kernel.hpp"\n' + code)
        self.assertFalse(self.age(first, "host/")["older"])
        self.assertEqual(self.age(first, "CMakeLists.txt"), {"older": False})
        self.commit("CMakeLists.txt", "layer(host/tile.hpp kernel.hpp)\n")
        self.assertFalse(self.age(first, ".", ":(exclude)host/")["older"])
        self.commit("CMakeLists.txt", "layer(host/tile.hpp)\n")
        self.assertTrue(self.age(first, "CMakeLists.txt")["older"])
        self.commit("host/tile.hpp", code.replace("x7", "y7"))
        self.assertEqual(self.age(first, "host/"), {"older": True, "commits": 2, "files": 1})

    def test_what_was_taken_back_does_not_count(self):
        self.commit("kernel.hpp", "2")
        self.commit("kernel.hpp", "1")
        self.assertEqual(self.age(self.first, "kernel.hpp"), {"older": False})

    def test_a_commit_of_another_history_is_told(self):
        self.assertEqual(self.age("0123456789ab", "kernel.hpp")["why"], "that commit is not in this repository")
        self.assertIsNone(self.age(self.first + "-dirty", "kernel.hpp")["older"])

    def test_of_a_build_with_known_changes_only_what_they_are_of_is_unknown(self):
        dirty = self.commit("page.md", "2") + "-dirty"
        with unittest.mock.patch.dict(ages.CHANGED, {dirty: ("page.md",)}):
            self.assertIs(self.age(dirty, "kernel.hpp")["older"], False)
            self.assertIsNone(self.age(dirty, "page.md")["older"])

    def test_where_git_is_not_there_it_is_told(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(ages.why_unknown(folder), "git or its repository is not here")
        with unittest.mock.patch.object(ages.subprocess, "run", side_effect=FileNotFoundError):
            self.assertEqual(ages.why_unknown(self.folder.name + "/."), "git or its repository is not here")

    def test_a_shallow_clone_is_told(self):
        self.commit("page.md", "2")
        clone = self.root / "clone"
        subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{self.root}", clone], check=True)
        self.assertIn("shallow", ages.why_unknown(str(clone)))


class Paths(unittest.TestCase):
    def included(self, *starts):
        """The project's files that these files include, themselves too."""
        seen, rest = set(), [ROOT / start for start in starts]
        while rest:
            file = rest.pop()
            if file in seen:
                continue
            seen.add(file)
            for name in re.findall(r'#\s*include\s+["<]([^">]+)[">]', file.read_text()):
                for folder in (file.parent, ROOT / "offload", ROOT / "include", ROOT):
                    if (folder / name).is_file():
                        rest.append((folder / name).resolve())
                        break
        return {str(file.relative_to(ROOT)) for file in seen}

    def missing(self, files, paths):
        """The files that git would not look at. Of its globs only those for one folder are used."""
        def fits(file, path):
            name = path.rpartition(")")[2]
            same_folder = file.rpartition("/")[0] == name.rpartition("/")[0]
            return file == name or name.endswith("/") and file.startswith(name) or same_folder and fnmatch.fnmatch(file, name)
        without = [path for path in paths if path.startswith(":(exclude)")]
        return sorted(file for file in files if not any(fits(file, path) for path in paths if path not in without)
                      or any(fits(file, path) for path in without))

    def test_sets_measure_all_that_their_kernels_include(self):
        host = self.included("offload/launch/launch_host.cpp")
        amx = ages.measured("host-pytorch-16.json")[1]
        few = set(ages.FEW_QUERIES)
        self.assertEqual(self.missing(host - few, amx), [])
        self.assertEqual(self.missing(host, ages.measured("host-check-float32.json")[1]), [])
        matrices = {f"offload/host/{name}.hpp" for name in ("amx", "dpbf16", "pairs", "terms")}
        self.assertEqual(self.missing(host - matrices - few, ages.HOST), [])
        self.assertEqual(self.missing(host - matrices, ages.measured("host-cache-avx2.json")[1]), [])
        gpu = self.included("offload/launch/launch_plain.cpp", "offload/launch/launch_tensor.cpp")
        self.assertEqual(self.missing(gpu, ages.OPENMP), [])
        self.assertEqual(self.missing(gpu | host, ages.measured("h200-grid.jsonl")[1]), [])
        cuda = self.included(*(str(file.relative_to(ROOT)) for file in (ROOT / "cuda").glob("*.cu")))
        self.assertEqual(self.missing(cuda - set(ages.CUDA_PARTS), ages.CUDA), [])
        self.assertEqual(self.missing(cuda, ages.measured("h200-cuda-decode.json")[1]), [])

    def test_sets_with_few_queries_measure_their_machine(self):
        # The most queries: lanes of a vector; rows of a block of CUDA's kernel.
        for sets, most_queries, few in (("host*.json", 15, set(ages.FEW_QUERIES)), ("h?00-cuda*.json", 32, set(ages.CUDA_PARTS))):
            for path in ages.results.RESULTS.glob(sets):
                rows = json.loads(path.read_text()).get("benchmarks", [])
                for shape in {row["shape"] for row in rows if "shape" in row and row["direction"] == "forward"}:
                    if int(re.search(r"_n(\d+)", shape)[1]) <= most_queries:
                        self.assertLessEqual(few, set(ages.measured(path.name)[1]), f"{path.name}: {shape}")

    def test_every_path_is_there(self):
        for words, paths, _ in ages.MEASURES:
            for path in paths:
                if not path.startswith(":"):
                    self.assertTrue((ROOT / path).exists(), f"{words}: {path}")

    def test_every_file_of_results_measures_something(self):
        for name in ages.recorded_files():
            self.assertTrue(ages.measured(name)[1], name)
        self.assertEqual(ages.measured("x.json", {"measures": ["offload/"]})[1], ("offload/",))


class Pages(unittest.TestCase):
    def of(self, older):
        return unittest.mock.patch.object(ages, "of", lambda path: {"older": older, "commit": "0123456789ab", "commits": 7,
                                                                    "files": 1, "why": "nobody knows"})

    def test_readme_shows_no_set_that_is_older_than_the_code(self):
        readme = (ROOT / "README.md").read_text()
        for name, one in ages.recorded()["files"].items():
            if one["older"] is not False:
                self.assertNotIn(name, readme)

    def test_the_committed_verdicts_are_git_s(self):
        why = ages.why_unknown()
        if why:
            print(f"which results are older than the code is not tested: {why}", file=sys.stderr)
        self.assertEqual(ages.problems(), [])

    def test_a_set_that_is_older_leaves_readme_and_is_marked_in_results(self):
        for older in (True, None):
            with self.of(older):
                part = tables.readme_part()
                self.assertNotIn("FLOP/s", part)
                self.assertIn("no numbers are shown", part)
                self.assertNotIn("bench/results", part)
                page = tables.results_page()
            sets = len(results.present_sets())
            mark = "**Older than the code**: what it measures has changed since 0123456, in 7 commits" if older else \
                "**Perhaps older than the code**: nobody knows."
            self.assertGreaterEqual(page.count(mark), sets)
        with self.of(False):
            part = tables.readme_part()
            for _, machines in tables.README_MACHINES:
                self.assertIn(f"bench/results/{machines[0][1][0]}.json", part)
            self.assertNotIn("than the code**", tables.results_page())

    def test_links_to_results_lead_to_headings(self):
        headings = {tables.anchor(line.lstrip("# ")) for line in tables.results_page().splitlines() if line.startswith("#")}
        with self.of(True):
            links = re.findall(r"docs/results.md#([^)]+)\)", tables.readme_part())
        self.assertGreater(len(links), 3)
        for link in links:
            self.assertIn(link, headings)

    def test_of_sets_of_one_machine_the_newest_and_then_the_quietest_is_shown(self):
        def write(folder, name, date, spread):
            file = pathlib.Path(folder) / f"{name}.json"
            file.write_text(json.dumps({"context": {"date": date}, "benchmarks": [
                {"run_name": "forward/float32/b1_h1_n8_d8/real_time", "implementation": "flashomp", "label": "a on b",
                 "real_time": 1.0, "TFLOP/s": 1.0, "error_o": 0.0, "bound_o": 1.0, "spread": spread}]}))
            return name, f"Set {name}", [file]
        with tempfile.TemporaryDirectory() as folder, self.of(False):
            sets = [write(folder, "old", "2026-01-01", 0.01), write(folder, "loud", "2026-01-02T09", 0.5),
                    write(folder, "quiet", "2026-01-02T08", 0.1)]
            self.assertEqual(tables.current_set(sets)[1], "Set quiet")
        with self.of(True):
            self.assertIsNone(tables.current_set(sets))


if __name__ == "__main__":
    unittest.main()
