"""The code of docs/python.md and docs/decoding.md runs, block after block, and prints what stands under `# prints`."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
BLOCKS, DECODING = (re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", page.read_text(), re.DOTALL)
                    for page in (PAGE, PAGE.with_name("decoding.md")))


def test_readme_s_lines_run():
    torch = pytest.importorskip("torch")
    import flashomp.torch

    (code,) = re.findall(r"```python\n(.*?)```", (PAGE.parents[1] / "README.md").read_text(), re.DOTALL)
    scope = {}
    flashomp.torch.counts(reset=True)
    try:
        exec(compile(code, "README.md", "exec"), scope)  # noqa: S102
    finally:
        flashomp.torch.disable()
    assert flashomp.torch.counts()["backward"] == 1 and torch.isfinite(scope["q"].grad).all()


def sections():
    """Blocks by what they need: those that name Transformers, PyTorch or JAX run where these are."""
    blocks = {"transformers": [], "torch": [], "jax": [], "numpy": []}
    for block in BLOCKS:
        blocks[next((name for name in blocks if name in block[0]), "numpy")].append(block)
    return blocks


@pytest.mark.parametrize("name", ["numpy", "torch", "jax", "transformers"])
def test_every_block_runs(name, capsys):
    if name != "numpy":
        pytest.importorskip(name)
    blocks = sections()[name]
    assert blocks
    scope = {}
    for code, printed in blocks:
        exec(compile(code, str(PAGE), "exec"), scope)  # noqa: S102
        got = capsys.readouterr().out
        assert got == printed, f"this prints\n{got}instead of\n{printed}\n{code}"


def test_decoding_page_runs(capsys):
    pytest.importorskip("torch")
    assert DECODING
    scope = {}
    for code, printed in DECODING:
        exec(compile(code, "decoding.md", "exec"), scope)  # noqa: S102
        assert capsys.readouterr().out == printed, code
