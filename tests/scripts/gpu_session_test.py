"""tools/gpu_session without a GPU: with programs that only say how they were called."""

import os
import pathlib
import subprocess
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Says its arguments, makes the file that follows --out, and sleeps or fails where it is told to.
PROGRAM = """#!/usr/bin/env bash
echo "called $*"
echo "$*" >>"$CALLS"
out=
while (($#)); do [[ $1 == --out ]] && out=$2; shift; done
sleep "${SLEEP:-0}"
[[ -z $out ]] || echo '{}' >"$out"
exit "${STATUS:-0}"
"""


class GpuSession(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)
        (self.root / "bin").mkdir()
        (self.root / "out").mkdir()
        self.program = self.root / "bin" / "flashomp"
        self.program.write_text(PROGRAM)
        self.program.chmod(0o755)
        self.work = self.root / "work"

    def tearDown(self):
        self.folder.cleanup()

    def session(self, *parts, **environment):
        done = subprocess.run([ROOT / "tools" / "gpu_session", self.program, *parts], capture_output=True, text=True,
                              env=os.environ | {"WORK": str(self.work), "OUT": str(self.root / "out"), "GPU": "gpu",
                                                "PYTHON": str(self.program), "CALLS": str(self.root / "calls"),
                                                "LIMIT": "60"} | environment)
        return done.returncode, done.stdout, done.stderr

    def calls(self):
        path = self.root / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def test_gradients_are_compared_at_16384_in_every_dtype_on_both_backends(self):
        for part, backend in (("gradients", "openmp"), ("cuda_gradients", "cuda")):
            status, out, _ = self.session(part)
            self.assertEqual(status, 0, out)
            calls = [call for call in self.calls() if f"--backend {backend}" in call]
            self.assertEqual([call.split("--dtype ")[1].split()[0] for call in calls], ["bfloat16", "float16", "float32"])
            for call in calls:
                self.assertIn("--direction backward", call)
                self.assertIn("n16384_d128", call)
                self.assertIn("n16384_d256", call)
                self.assertIn("--kernel-time", call)

    def test_every_set_beside_pytorch_has_both_clocks_and_five_repetitions(self):
        status, out, _ = self.session("openmp", "cuda")
        self.assertEqual(status, 0, out)
        beside = [call for call in self.calls() if "compare_pytorch.py" in call]
        self.assertEqual(len(beside), 9)
        for call in beside:
            self.assertIn("--kernel-time --repetitions 5", call)
            self.assertIn("--resume", call)
        names = {path.name for path in self.work.glob("*.json")}
        self.assertLessEqual({"gpu-openmp.json", "gpu-cuda.json", "gpu-cuda-float8.json", "gpu-varlen.json"}, names)

    def test_what_is_there_is_not_measured_again(self):
        self.session("launch")
        status, out, _ = self.session("launch")
        self.assertEqual(status, 0)
        self.assertIn("gpu-openmp-launch is there", out)
        self.assertEqual(len(self.calls()), 1)

    def test_a_failure_is_told_and_the_next_part_begins(self):
        status, out, _ = self.session("launch", "varlen", STATUS="1")
        self.assertEqual(status, 1)
        self.assertIn("gpu-openmp-launch ended with status 1", out)
        self.assertEqual(len(self.calls()), 2)
        self.assertFalse((self.work / "gpu-openmp-launch.json").exists())

    def test_a_program_that_takes_too_long_is_ended_and_no_part_begins_after(self):
        status, out, _ = self.session("launch", "varlen", "repro", LIMIT="1", SLEEP="30")
        self.assertEqual(status, 1)
        self.assertIn("gpu-openmp-launch ended with status 124", out)
        self.assertIn("repro was not begun: the time is over.", out)

    def test_results_and_logs_are_packed_into_one_file(self):
        self.session("launch")
        with tarfile.open(self.root / "out" / "session.tar.gz") as packed:
            self.assertLessEqual({"./gpu-openmp-launch.json", "./gpu-openmp-launch.log"}, set(packed.getnames()))

    def test_an_unknown_part_is_refused_before_anything_runs(self):
        status, _, text = self.session("launch", "all")
        self.assertEqual(status, 2)
        self.assertIn("'all' is no part; allowed are openmp, cuda, gradients, grid,", text)
        self.assertEqual(self.calls(), [])


if __name__ == "__main__":
    unittest.main()
