"""tools/check_skips lets a test skip for a reason that is listed, where its condition holds, and no other."""

import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("check_skips", str(ROOT / "tools" / "check_skips"))
check_skips = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_skips", loader))
loader.exec_module(check_skips)

NO_GPU = "/a/target.hpp:93: Skipped\nno GPU on this machine\n[  SKIPPED ] Parity.One/device"


def case(name, status, output):
    skip = '<skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>' if status == "notrun" else ""
    return f'<testcase name="{name}" status="{status}">{skip}<system-out>{output}</system-out></testcase>'


class Skips(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.machine = check_skips.Machine()
        self.machine.has_gpu, self.machine.cpu_flags = False, {"avx2"}

    def tearDown(self):
        self.folder.cleanup()

    def file(self, *cases, build="host"):
        path = pathlib.Path(self.folder.name) / build / "tests.xml"
        path.parent.mkdir(exist_ok=True)
        path.write_text('<?xml version="1.0"?><testsuite>' + "".join(cases) + "</testsuite>")
        return path

    def bad(self, rules, *cases, build="host"):
        tests = check_skips.skipped(self.file(*cases))
        return [name for name, _ in check_skips.unexpected(tests, check_skips.read_rules(rules), self.machine, build)]

    def test_a_listed_skip_passes_and_another_does_not(self):
        rules = "# why\nno-gpu :: device :: no GPU on this machine\n"
        cases = [case("Parity.One/device", "notrun", NO_GPU), case("Parity.Two/host", "run", "")]
        self.assertEqual(self.bad(rules, *cases), [])
        self.assertEqual(self.bad(rules, *cases, case("Io.Other", "notrun", "/a:1: Skipped\nno\n")), ["Io.Other"])

    def test_another_reason_another_test_or_another_machine_does_not_pass(self):
        one = case("Parity.One/device", "notrun", NO_GPU)
        self.assertEqual(self.bad("no-gpu :: device :: out of memory", one), ["Parity.One/device"])
        self.assertEqual(self.bad("no-gpu :: host :: no GPU", one), ["Parity.One/device"])
        self.machine.has_gpu = True
        self.assertEqual(self.bad("no-gpu :: device :: no GPU", one), ["Parity.One/device"])
        self.assertEqual(self.bad("cpu-lacks=avx2 :: . :: .", one), ["Parity.One/device"])
        self.assertEqual(self.bad("cpu-lacks=amx_tile :: . :: .", one), [])

    def test_a_part_that_a_build_has_must_run_there(self):
        one = case("Plan.One", "notrun", "/a:1: Skipped\nthis build has no GPU code\n")
        rule = "not-in=release :: . :: this build has no GPU code"
        self.assertEqual(self.bad(rule, one), [])
        self.assertEqual(self.bad(rule, one, build="release"), ["Plan.One"])

    def test_disabled_tests_count(self):
        self.assertEqual(self.bad("no-gpu :: device :: .", case("Io.Other", "disabled", "")), ["Io.Other"])

    def test_the_committed_list_is_well_formed(self):
        for rule in check_skips.read_rules(check_skips.EXPECTED.read_text()):
            self.machine.meets(rule.condition, "host")
        with self.assertRaises(ValueError):
            check_skips.read_rules("always :: two parts")
        with self.assertRaises(ValueError):
            self.machine.meets("never", "host")

    def test_the_command_names_test_build_and_reason(self):
        path = self.file(case("Io.Other", "notrun", "/a:1: Skipped\nno such file here\n[  SKIPPED ] Io.Other"))
        run = subprocess.run([ROOT / "tools" / "check_skips", path], capture_output=True, text=True)
        self.assertEqual(run.returncode, 1)
        self.assertIn("Io.Other of build/host was skipped: no such file here", run.stderr)
        path = self.file(case("Io.Other", "run", ""))
        self.assertEqual(subprocess.run([ROOT / "tools" / "check_skips", path], capture_output=True).returncode, 0)


if __name__ == "__main__":
    unittest.main()
