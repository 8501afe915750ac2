"""tools/ptx_report and what it stands on can fail: on PTX and numbers that are made up; and the asm of offload/ is read.

Usage: ptx_report_test.py
"""

import importlib.machinery
import importlib.util
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("ptx_report", str(ROOT / "tools" / "ptx_report"))
ptx_report = importlib.util.module_from_spec(importlib.util.spec_from_loader("ptx_report", loader))
loader.exec_module(ptx_report)
import resources

PROLOGUE = """\t.reg .u64 %frame;
{
\t.reg .u64 %fstmp0;
\tsub.u64 %frame,%sspprev,272;
\tsub.u64 %stack,%frame,0;
}
"""


def function(body, name="some"):
    return f"// BEGIN FUNCTION DEF: {name}\n.func {name}\n{{\n{body}\n}}\n"


def constraints(text):
    """Of all operands of asm statements, and of macros that are parts of one."""
    return re.findall(r'"([=&+]*(?:[a-z0-9]{1,2}|(?="\s*FLASHOMP_ASM_)))"\s*(?:FLASHOMP_ASM_\w+\s*)?\(', text)


def matched(text):
    """Those that tie an operand to another: "+r", or a number."""
    return [word for word in constraints(text) if "+" in word or re.search(r"\d", word)]


class PtxReport(unittest.TestCase):
    def test_uses_of_the_warps_stack_are_counted_without_the_prologue(self):
        used = function(PROLOGUE + "\tadd.u64 %r1,%frame,16;\n\tst.u32 [%r1],%r2;\n\tld.u32 %r3,[%frame+8];", "used")
        self.assertEqual(ptx_report.frame_uses(function(PROLOGUE + "\tret;", "unused") + used + function("\tret;", "none")),
                         {"unused": 0, "used": 2, "none": 0})

    def test_a_lambda_that_is_called_is_refused(self):
        ptx_report.check_calls([function("\tcall (%r), _ZN8flashomp5cleanEv, (%r1);")])
        with self.assertRaisesRegex(ptx_report.Failure, "1 lambdas"):
            ptx_report.check_calls([function("\tcall _ZNK8flashompUlfE_clEf, (%r1);")])

    def test_growth_names_kernel_number_and_limit(self):
        limits = {("sm_90", "merge"): (100, 360, 220, 220, 1)}
        self.assertEqual(resources.growth({("sm_90", "merge"): (99, 360, 0, 220, 1)}, limits, ptx_report.NUMBERS), [])
        self.assertEqual(resources.growth({("sm_90", "merge"): (100, 360, 224, 220, 1)}, limits, ptx_report.NUMBERS),
                         ["sm_90 merge has 224 bytes of spill stores; recorded are 220"])
        self.assertEqual(resources.growth({("sm_80", "merge"): (1, 1, 1, 1, 1)}, limits, ptx_report.NUMBERS),
                         ["sm_80 merge is not recorded"])

    def test_a_file_is_read_as_it_was_written(self):
        limits, comments = resources.read(ptx_report.RECORD, len(ptx_report.NUMBERS))
        self.assertEqual(resources.text(limits, comments), ptx_report.RECORD.read_text())
        self.assertIn(("sm_90a", "tensor 128 bfloat16 forward"), limits)


class Asm(unittest.TestCase):
    def test_matched_operands_are_seen(self):
        self.assertEqual(matched('asm volatile("add %0;" : "+r"(a) : "r"(b));'), ["+r"])
        self.assertEqual(matched('asm("add %0, 1;" : "=r"(a) : "0"(b), "n"(2));'), ["0"])
        self.assertEqual(matched('asm volatile("add %0;" : "+" FLASHOMP_ASM_FLOAT(a));'), ["+"])
        self.assertEqual(constraints('asm volatile("{ mov %0; }" : "=" FLASHOMP_ASM_FLOAT(v) : "r"(s));'), ["=", "r"])
        self.assertEqual(matched('asm volatile("bar.sync %0, %1;" ::"r"(0), "n"(64));'), [])

    def test_no_asm_for_a_gpu_has_matched(self):
        """nvptx allocates no registers: of several operands that one value feeds, only the first is initialised."""
        seen = 0
        for path in sorted((ROOT / "offload").rglob("*.[hc]pp")):
            text = path.read_text()
            if path.parent.name != "host" and not path.name.startswith("host_"):
                seen += len(constraints(text))
                self.assertEqual(matched(text), [], path.name)
        self.assertGreater(seen, 100)


if __name__ == "__main__":
    unittest.main()
