"""The program, its dictionaries, and the package as it is installed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import flashomp
import numpy as np
import pytest


def test_info_and_version():
    info = flashomp.info()
    assert info["build"]["version"] == flashomp.version == flashomp.__version__
    assert flashomp.host_isa() in ("baseline", "avx2", "avx512", "avx512_bf16", "amx")
    assert flashomp.host_isa("float32")
    assert isinstance(flashomp.devices(), list)
    with pytest.raises(flashomp.Error, match="dtype was 'int8'"):
        flashomp.host_isa("int8")


def test_plan():
    plan = flashomp.plan("b1_h8_n1024_d64_causal", dtype="bfloat16", layers=2, threads=1)
    assert "flops" in str(plan).lower()
    with pytest.raises(flashomp.Error, match="shape"):
        flashomp.plan("nonsense")


def test_python_m_flashomp():
    done = subprocess.run([sys.executable, "-m", "flashomp", "--version"], capture_output=True, text=True, check=True)
    assert flashomp.version in done.stdout
    bad = subprocess.run([sys.executable, "-m", "flashomp", "forward", "--q", "nope.npy"], capture_output=True, text=True)
    assert bad.returncode == 2 and bad.stderr.startswith("flashomp: ")


def test_the_package_is_typed():
    folder = Path(flashomp.__file__).parent
    assert (folder / "py.typed").exists()
    stub = (folder / "_core.pyi").read_text()
    for name in dir(flashomp._core):
        assert name.startswith("__") or re.search(rf"^(def |class )?{name}\b", stub, re.MULTILINE), name


FORK = """
import os, flashomp, numpy as np
q = np.random.default_rng(0).standard_normal((1, 64, 2, 32)).astype(np.float32)
expected = flashomp.attention(q, q, q)
child = os.fork()
if child == 0:
    os._exit(0 if np.array_equal(flashomp.attention(q, q, q), expected) else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_may_call():
    """In a process of its own, since JAX's threads, which other tests start, bear no fork."""
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=60)


def test_float64_inputs_say_what_to_do():
    q = np.zeros((1, 2, 1, 4))
    with pytest.raises(flashomp.Error, match="float64.*float32"):
        flashomp.attention(q, q, q)
