"""What .ci/run is made of: mutants that still apply, how old the GPU's logs are, stages with their seconds."""

import contextlib
import importlib.machinery
import importlib.util
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
# Settings of whoever runs the tests, such as signed commits, are not for the repositories made here.
ENVIRONMENT = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b",
               "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}


def run(folder, *command):
    return subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)


class Folder(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)

    def tearDown(self):
        self.temporary.cleanup()

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class Mutants(Folder):
    def setUp(self):
        super().setUp()
        loader = importlib.machinery.SourceFileLoader("mutants", str(ROOT / "tools" / "mutants"))
        self.mutants = importlib.util.module_from_spec(importlib.util.spec_from_loader("mutants", loader))
        loader.exec_module(self.mutants)

    def test_committed_ones_apply_and_have_a_line_in_the_table(self):
        mutants = self.mutants.all_mutants()
        self.assertGreaterEqual(len(mutants), 40)
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(self.mutants.check(mutants), 0)
        self.assertEqual(sorted(self.mutants.read_table()), sorted(mutant.name for mutant in mutants))

    def test_one_that_no_longer_applies_is_named(self):
        self.write("gone.patch", "What was there is gone.\n\n--- a/offload/algorithm/mask.hpp\n+++ b/offload/algorithm/mask.hpp\n"
                                 "@@ -1,1 +1,1 @@\n-no such line\n+another\n")
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            self.assertEqual(self.mutants.check([self.mutants.Mutant(self.folder / "gone.patch")]), 1)
        self.assertIn("gone.patch no longer applies", said.getvalue())

    def test_one_without_a_first_line_is_refused(self):
        self.write("bare.patch", "--- a/offload/algorithm/mask.hpp\n+++ b/offload/algorithm/mask.hpp\n")
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit):
            self.mutants.Mutant(self.folder / "bare.patch")


class GpuLogAge(Folder):
    def setUp(self):
        super().setUp()
        for name in ("tools/gpu_log_age", "tools/lib/common.sh"):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.folder / name)
        self.write("offload/algorithm/forward.hpp", "1\n")
        self.write("offload/host/host_machine.hpp", "1\n")
        self.write("cuda/forward.cuh", "1\n")
        run(self.folder, "git", "init", "-q")
        self.commit()
        commit = run(self.folder, "git", "rev-parse", "HEAD").stdout[:12]
        for name in ("h200-log.txt", "h200-cuda-log.txt"):
            self.write(f"bench/results/{name}", f"$ flashomp info\ncommit           {commit}-dirty\n")

    def commit(self):
        run(self.folder, "git", "add", ".")
        run(self.folder, "git", "commit", "-qm", "x")

    def age(self):
        done = run(self.folder, "tools/gpu_log_age")
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_nothing_changed(self):
        self.write("offload/host/host_machine.hpp", "only a host has this\n")
        self.commit()
        self.assertEqual(self.age().count("nothing that runs on a GPU has changed"), 2)

    def test_changes_are_named(self):
        self.write("cuda/forward.cuh", "2\n")
        self.commit()
        said = self.age().splitlines()
        self.assertIn("nothing that runs on a GPU has changed in offload", said[0])
        self.assertIn("1 files of cuda offload", said[1])
        self.assertIn("cuda/forward.cuh", said[2])

    def test_a_commit_that_is_not_here(self):
        self.write("bench/results/h200-log.txt", "commit           0123456789ab\n")
        self.assertIn("h200-log.txt is of 0123456789ab, which this clone does not have", self.age())


class Stages(Folder):
    def stages(self, text):
        start = f'set -euo pipefail; say() {{ :; }}; source {ROOT}/tools/lib/stages.sh; trap print_stages EXIT; '
        return run(self.folder, "bash", "-c", start + text)

    def test_a_table_of_seconds(self):
        done = self.stages("stage one sleep 1.2; stage 'two words' true")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [line.split() for line in done.stdout.splitlines()]
        self.assertEqual(lines[1], ["one", "1", "0"])
        self.assertEqual(lines[2], ["two", "words", "0", "0"])
        self.assertEqual(lines[3][0], "all")

    def test_a_stage_that_fails_ends_the_run(self):
        done = self.stages("f() { false; echo no; }; stage one f; echo no")
        self.assertEqual(done.returncode, 1)
        self.assertNotIn("no", done.stdout.split())

    def test_a_stage_that_comes_too_late_is_left_out_and_the_table_says_so(self):
        done = self.stages("SECONDS=50; stage_before 40 late false; stage_before 60 early echo here")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [line.split() for line in done.stdout.splitlines()]
        self.assertEqual(lines[0], ["here"])
        self.assertEqual(lines[2], ["late:", "left", "out", "-", "-"])
        self.assertEqual(lines[3][0], "early")
        self.assertEqual(self.stages("SECONDS=50; stage_before 60 early false").returncode, 1)


class WithoutNvcc(unittest.TestCase):
    def said(self, path, **environment):
        clean = {name: value for name, value in os.environ.items() if name != "CI"}
        return subprocess.run(["bash", "-c", f'source tools/lib/common.sh; expect_nvcc "{path}"; echo "goes on"'], cwd=ROOT,
                              env=clean | environment, capture_output=True, text=True)

    def test_it_is_said_and_fails_in_ci(self):
        here = self.said("")
        self.assertEqual((here.returncode, here.stderr), (0, ""))
        self.assertIn("the CUDA backend is not compiled\ngoes on", here.stdout)
        for word in ("true", "1"):
            in_ci = self.said("", CI=word)
            self.assertEqual(in_ci.returncode, 2)
            self.assertIn("nvcc is missing", in_ci.stderr)
            self.assertNotIn("goes on", in_ci.stdout)
            self.assertEqual(self.said("/usr/bin/nvcc", CI=word).stdout, "goes on\n")
        self.assertEqual(self.said("", CI="false").returncode, 0)


if __name__ == "__main__":
    unittest.main()
