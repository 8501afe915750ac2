#!/usr/bin/env python3
"""tools/cuda_report fails where a kernel needs more than is recorded, is not recorded, or is missing."""

import contextlib
import importlib.machinery
import importlib.util
import io
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True


def load():
    loader = importlib.machinery.SourceFileLoader("cuda_report", str(ROOT / "tools" / "cuda_report"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("cuda_report", loader))
    loader.exec_module(module)
    return module


class CudaReport(unittest.TestCase):
    def setUp(self):
        self.tool = load()
        self.recorded, _ = self.tool.resources.read(self.tool.RECORD, len(self.tool.NUMBERS))
        self.kernel = sorted(self.recorded)[0]

    def outcome(self, found):
        """(exit status, stderr) where a build has such kernels."""
        self.tool.resources_of = lambda build: found
        sys.argv = ["cuda_report", "build"]
        err = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
            return self.tool.main(), err.getvalue()

    def test_what_is_recorded_or_less_passes(self):
        self.assertEqual(self.outcome(dict(self.recorded)), (0, ""))
        less = tuple(max(0, number - 1) for number in self.recorded[self.kernel])
        self.assertEqual(self.outcome(self.recorded | {self.kernel: less})[0], 0)

    def test_each_number_that_grows_fails(self):
        for at, name in enumerate(self.tool.NUMBERS):
            numbers = list(self.recorded[self.kernel])
            numbers[at] += 1
            status, err = self.outcome(self.recorded | {self.kernel: tuple(numbers)})
            self.assertEqual(status, 1)
            self.assertIn(f"has {numbers[at]} {name}; recorded are {numbers[at] - 1}", err)

    def test_a_kernel_that_is_new_or_missing_fails(self):
        status, err = self.outcome(self.recorded | {("sm_90a", "new one"): (1, 0, 0)})
        self.assertEqual((status, "new one is not recorded" in err), (1, True))
        without = {kernel: numbers for kernel, numbers in self.recorded.items() if kernel != self.kernel}
        status, err = self.outcome(without)
        self.assertEqual((status, "is recorded but not built" in err), (1, True))
        self.assertEqual(self.outcome({})[0], 2)


if __name__ == "__main__":
    unittest.main()
