"""For tools/test_python. The installed package: everything that it needs is inside, and nothing of the tree that built it."""

import os
import subprocess
import sys
from pathlib import Path

import flashomp

FOLDER = Path(flashomp.__file__).parent


def test_it_is_the_installed_one():
    assert sys.prefix in str(FOLDER)
    assert Path(flashomp.program()).parent == FOLDER
    script = Path(sys.executable).parent / "flashomp"
    assert flashomp.version in subprocess.run([script, "--version"], capture_output=True, text=True, check=True).stdout


def test_libraries_are_found_inside():
    """fmt and the OpenMP run time come along; a machine has the C and C++ libraries."""
    from_system = {"libc", "libm", "libstdc++", "libgcc_s", "libdl", "libpthread", "librt", "ld-linux-x86-64", "linux-vdso"}
    binaries = [*FOLDER.glob("*.so*"), FOLDER / "flashomp"]
    assert len(binaries) >= 4
    # The plugin names libgomp, which is in the process by then: libflashomp, which opens the plugin, has brought it.
    binaries = [binary for binary in binaries if binary.name != "libgomp-plugin-nvptx.so.1"]
    for binary in binaries:
        environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
        lines = subprocess.run(["ldd", binary], capture_output=True, text=True, check=True, env=environment).stdout
        for line in lines.splitlines():
            name, _, path = (part.strip() for part in line.partition("=>"))
            if path.startswith("/"):
                inside = Path(path.split(" (")[0]).resolve().parent == FOLDER.resolve()
                assert inside or name.split(".so")[0] in from_system, f"{binary.name} needs {line}"
            assert "not found" not in line, f"{binary.name}: {line}"


def test_the_plugin_for_gpus_is_inside_and_has_the_package_s_libgomp():
    plugin = "libgomp-plugin-nvptx.so.1"
    assert (FOLDER / plugin).exists() == (flashomp.info()["build"]["offload"] != "none")
    if (FOLDER / plugin).exists():
        mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
        assert str(FOLDER / plugin) in mapped
        assert [path for path in mapped if Path(path).name.startswith("libgomp.so")] == [str(FOLDER / "libgomp.so.1")]


def test_no_links():
    assert not [path for path in FOLDER.rglob("*") if path.is_symlink()]
