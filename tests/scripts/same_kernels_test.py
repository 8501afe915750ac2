"""bench/same_kernels.py: kernels of two builds are the same where instructions are, wherever parameters and files' own names are."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
sys.dont_write_bytecode = True
import same_kernels

LISTING = """
Fatbin elf code:
arch = sm_90
	Function : _ZN1a20_GLOBAL__N__{0}_cu6kernelEv
	.headerflags	@"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][{1}] ;    /* {2} */
        /*0010*/                   {3} ;                    /* 0x000fe200078e0211 */
	Function : plain
        /*0000*/                   EXIT ;                   /* 0x1 */
"""


def kernels(file="abcde", place="0x28", bits="0x7", second="FADD R1, R1, R2"):
    return same_kernels.kernels(LISTING.format(file, place, bits, second).splitlines())


class SameKernels(unittest.TestCase):
    def test_each_kernel_is_read_with_its_architecture(self):
        self.assertEqual(sorted(key[:2] for key in kernels()), [("sm_90", "_ZN1a6kernelEv"), ("sm_90", "plain")])

    def test_places_of_parameters_and_names_of_files_do_not_count(self):
        self.assertEqual(kernels(), kernels("fghij", "0x30", "0x8"))

    def test_instructions_and_constants_count(self):
        self.assertNotEqual(kernels(), kernels(second="FADD R1, R1, R3"))
        self.assertNotEqual(kernels(second="MOV R1, 0x1"), kernels(second="MOV R1, 0x2"))

    def test_counts_are_of_kinds_of_instructions(self):
        def counted(second):
            return same_kernels.kernels(LISTING.format("abcde", "0x28", "0x7", second).splitlines(), counts=True)
        self.assertEqual(counted("FADD R1, R1, R3"), counted("@!P0 FADD R4, R1, R2"))
        self.assertNotEqual(counted("FADD R1, R1, R3"), counted("FMUL R1, R1, R3"))

    def test_functions_of_ptx_are_compared_without_comments(self):
        def module(folder, code="add.u32 %r1, %r2, 1;"):
            return same_kernels.ptx_functions(
                b"\x7fELF\0// BEGIN PREAMBLE\n.version 7.0\n// BEGIN GLOBAL FUNCTION DEF: first\n{\n" + code.encode() +
                b"\n}\n// BEGIN FUNCTION DEF: second\n{\n\t// 1 \"" + folder.encode() + b"/ptx.hpp\"\n\tret;\n}\0rest")
        self.assertEqual(sorted(key[1] for key in module("/a")), ["first", "second"])
        self.assertEqual(module("/a"), module("/b"))
        self.assertEqual(sum((module("/a") & module("/a", "add.u32 %r1, %r2, 2;")).values()), 1)


if __name__ == "__main__":
    unittest.main()
