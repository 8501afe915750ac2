"""What the tests share: which packages must be there, and float64 attention by NumPy."""

import importlib.util
import os

import numpy as np
import pytest

# Packages that may not be missing, for example "torch jax" in CI.
EXPECTED = os.environ.get("FLASHOMP_EXPECT_PACKAGES", "").split()


def pytest_configure(config):
    missing = [name for name in EXPECTED if importlib.util.find_spec(name) is None]
    if missing:
        raise pytest.UsageError(f"FLASHOMP_EXPECT_PACKAGES names {', '.join(missing)}, which are not installed.")


def reference(q, k, v, dout=None, *, scale=None, causal="none", window=(-1, -1), softcap=0.0, alibi_slopes=None, bias=None,
              key_padding_mask=None, sink=None, keep=None, dropout=0.0):
    """Attention of [B, N, H, D] in float64: {"o", "lse"} and, with dout, the gradients."""
    q, k, v = (np.asarray(x, np.float64).transpose(0, 2, 1, 3) for x in (q, k, v))
    batch, heads, rows, depth = q.shape
    heads_kv, columns = k.shape[1:3]
    group = heads // heads_kv
    k_all, v_all = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scale = depth**-0.5 if scale is None else scale
    raw = scale * (q @ k_all.swapaxes(-1, -2))
    scores = softcap * np.tanh(raw / softcap) if softcap else raw
    i, j = np.arange(rows)[:, None], np.arange(columns)[None, :]
    delta = columns - rows
    if alibi_slopes is not None:
        slopes = np.broadcast_to(np.asarray(alibi_slopes, np.float64), (batch, heads))
        scores = scores - slopes[:, :, None, None] * np.abs(i + delta - j)
    if bias is not None:
        scores = scores + np.asarray(bias, np.float64)
    seen = np.ones((batch, heads, rows, columns), bool)
    if causal != "none":
        seen &= j <= i + (delta if causal == "bottom_right" else 0)
    if window[0] >= 0:
        seen &= j >= i + delta - window[0]
    if window[1] >= 0:
        seen &= j <= i + delta + window[1]
    if key_padding_mask is not None:
        seen &= np.asarray(key_padding_mask)[:, None, None, :]
    scores = np.where(seen, scores, -np.inf)
    logits = [scores]
    if sink is not None:
        logits.append(np.broadcast_to(np.asarray(sink, np.float64)[None, :, None, None], (batch, heads, rows, 1)))
    logits = np.concatenate(logits, axis=-1)
    top = np.max(logits, axis=-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        lse = (top + np.log(np.sum(np.exp(logits - top), axis=-1, keepdims=True)))
    shift = np.where(np.isfinite(lse), lse, 0.0)
    p = np.exp(scores - shift)
    kept = np.ones_like(p) if keep is None else keep / (1.0 - dropout)
    o = (p * kept) @ v_all
    result = {"o": o.transpose(0, 2, 1, 3), "lse": lse[..., 0]}
    if dout is None:
        return result
    do = np.asarray(dout, np.float64).transpose(0, 2, 1, 3)
    dp = (do @ v_all.swapaxes(-1, -2)) * kept
    d = np.sum(do * o, axis=-1, keepdims=True)
    ds = p * (dp - d)
    if bias is not None:
        axes = tuple(axis for axis in range(4) if np.shape(bias)[axis] == 1)
        result["dbias"] = ds.sum(axis=axes, keepdims=True)
    if sink is not None:
        weight = np.exp(np.asarray(sink, np.float64)[None, :, None, None] - shift)
        result["dsink"] = -(weight * d).sum(axis=(0, 2, 3))
    draw = ds * (1.0 - np.tanh(raw / softcap) ** 2) if softcap else ds
    over_group = lambda x: x.reshape(batch, heads_kv, group, *x.shape[2:]).sum(axis=2).transpose(0, 2, 1, 3)  # noqa: E731
    result["dq"] = (scale * (draw @ k_all)).transpose(0, 2, 1, 3)
    result["dk"] = over_group(scale * (draw.swapaxes(-1, -2) @ q))
    result["dv"] = over_group((p * kept).swapaxes(-1, -2) @ do)
    return result


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def tensors(rng, batch=2, rows=33, columns=47, heads=4, heads_kv=2, depth=24, depth_v=16):
    """q, k, v and dout in float32."""
    shapes = ((batch, rows, heads, depth), (batch, columns, heads_kv, depth), (batch, columns, heads_kv, depth_v),
              (batch, rows, heads, depth_v))
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def assert_close(got, expected, bound=3e-5):
    """The largest error, relative to the largest number; infinities agree."""
    got, expected = (np.asarray(x.cpu() if hasattr(x, "cpu") else x, np.float64) for x in (got, expected))
    assert got.shape == expected.shape
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(got[~finite], expected[~finite])
    if finite.any():
        size = max(1.0, np.abs(expected[finite]).max())
        assert np.abs(got[finite] - expected[finite]).max() <= bound * size
