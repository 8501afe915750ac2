"""What the program flashomp says, as dictionaries, and where the program is."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Literal

from . import _core


def program() -> str:
    """The path of the program flashomp that belongs to this package."""
    here = Path(__file__).parent
    # In an installed package; else in the folder of a build, whose package is build/NAME/python/flashomp.
    for path in (here / "flashomp", Path(_core.__file__).parent.parent.parent / "bin" / "flashomp"):
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    raise _core.RunFailure(f"{here / 'flashomp'} is missing; install the package flashomp again.")


def _ask(*arguments: str) -> dict[str, Any]:
    done = subprocess.run([program(), *arguments, "--json"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["the program flashomp said nothing."]
        sentence = lines[-1].removeprefix("flashomp: ")
        raise (_core.Error if done.returncode == 2 else _core.RunFailure)(sentence)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def info() -> dict[str, Any]:
    """This build, this machine and the GPUs found, as `flashomp info --json` prints them."""
    return _ask("info")


def plan(shape: str, *, dtype: str = "float32", **options: Any) -> dict[str, Any]:
    """What a call costs before it runs, as `flashomp plan --json` prints it.

    shape: "bBATCH_hHEADS[kvHEADS]_nSEQLEN[xSEQLEN_K]_dHEAD_DIM[vHEAD_DIM_V][_causal|_topleft][_varlen]".
    options: those of `flashomp plan` by name: layers=80, machine="host", device="h200", threads=2, seqlens=(128, 512).
    Raises Error with the program's sentence.
    """
    arguments = ["plan", "--shape", shape, "--dtype", dtype]
    for name, value in options.items():
        text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        arguments += [f"--{name.replace('_', '-')}", text]
    return _ask(*arguments)


def devices(backend: Literal["auto", "openmp", "cuda"] = "auto") -> list[dict[str, Any]]:
    """The GPUs that a backend finds, a dictionary for each."""
    return _core.devices(backend)


def host_isa(dtype: str | None = None) -> str:
    """The instruction set that calls on the CPU use: "baseline", "avx2", "avx512", "avx512_bf16" or "amx"."""
    return _core.host_isa(dtype)
