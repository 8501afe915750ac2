"""libflashomp.so shows the symbols of public_symbols.txt, in their versions, and besides them flashomp's own insides alone.

    symbols_test.py LIBRARY NM [KERNEL_LIBRARY...]
"""

import pathlib
import re
import subprocess
import sys
import unittest

LISTED = pathlib.Path(__file__).with_name("public_symbols.txt")
PRIVATE = "FLASHOMP_PRIVATE"
# Mangled: whatever is in the namespace flashomp, with its type information and its functions' variables.
IS_OURS = re.compile(r"_Z(T[A-Z]|Z|GV|GVZ)?NK?8flashomp")


def listed():
    return {line for line in LISTED.read_text().splitlines() if line and not line.startswith("#")}


def shown(nm, library, *options):
    """(version, name) of each symbol; the version is empty where there is none."""
    text = subprocess.run([nm, "-D", "--defined-only", "--with-symbol-versions", *options, library], check=True,
                          capture_output=True, text=True).stdout
    symbols = set()
    for line in text.splitlines():
        kind, name = line.split(maxsplit=2)[1:]
        name, _, version = name.partition("@")
        if kind != "A":  # the versions themselves
            symbols.add((version.lstrip("@"), name))
    return symbols


class Symbols(unittest.TestCase):
    def test_public_symbols_are_those_of_the_list(self):
        public = {f"{version} {name}" for version, name in shown(NM, LIBRARY, "-C") if version != PRIVATE}
        self.assertEqual(sorted(listed() - public), [], "are in public_symbols.txt, but not in the library")
        self.assertEqual(sorted(public - listed()), [], "are in the library, but not in public_symbols.txt")

    def test_private_symbols_are_flashomps_own(self):
        private = [name for version, name in shown(NM, LIBRARY) if version == PRIVATE]
        self.assertGreater(len(private), 0)
        self.assertEqual([name for name in private if not IS_OURS.match(name)], [])

    def test_kernel_libraries_show_their_entry_alone(self):
        for library in KERNEL_LIBRARIES:
            with self.subTest(library):
                more = {} if any(name in library for name in ("_visible.", "_masked.", "_few.")) else {"flashomp_run_visible" if "sliced" in library else "flashomp_launches_directly"}
                self.assertEqual({name for _, name in shown(NM, library)}, {"flashomp_run", *more})


if __name__ == "__main__":
    LIBRARY, NM, *KERNEL_LIBRARIES = sys.argv[1:]
    unittest.main(argv=sys.argv[:1])
