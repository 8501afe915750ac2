"""flashomp.flash_attn beside flash-attention 2's signatures, and float64."""

import inspect

import numpy as np
import pytest
from conftest import assert_close, reference

torch = pytest.importorskip("torch")
import flashomp  # noqa: E402
from flashomp import flash_attn  # noqa: E402

# Parameters and defaults in flash-attention 2.8.3, flash_attn/flash_attn_interface.py of the source package on PyPI. What
# has no default there is named first; a value of Ellipsis stands for none.
OPTIONS = {"dropout_p": 0.0, "softmax_scale": None, "causal": False, "window_size": (-1, -1), "softcap": 0.0,
           "alibi_slopes": None, "deterministic": False, "return_attn_probs": False}
STARTS = {"cu_seqlens_q": ..., "cu_seqlens_k": ..., "max_seqlen_q": ..., "max_seqlen_k": ...}
SIGNATURES = {
    "flash_attn_func": {"q": ..., "k": ..., "v": ..., **OPTIONS},
    "flash_attn_kvpacked_func": {"q": ..., "kv": ..., **OPTIONS},
    "flash_attn_qkvpacked_func": {"qkv": ..., **OPTIONS},
    "flash_attn_varlen_func": {"q": ..., "k": ..., "v": ..., **STARTS, **OPTIONS, "block_table": None},
    "flash_attn_varlen_kvpacked_func": {"q": ..., "kv": ..., **STARTS, **OPTIONS},
    "flash_attn_varlen_qkvpacked_func": {"qkv": ..., "cu_seqlens": ..., "max_seqlen": ..., **OPTIONS},
}
MISSING = {"flash_attn_with_kvcache"}  # the seventh that flash_attn/__init__.py exports


@pytest.mark.parametrize("name", list(SIGNATURES))
def test_signatures_and_defaults(name):
    parameters = inspect.signature(getattr(flash_attn, name)).parameters
    given = {p.name: ... if p.default is inspect.Parameter.empty else p.default for p in parameters.values()}
    assert list(given.items()) == list(SIGNATURES[name].items())
    assert all(p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in parameters.values())


def test_what_there_is():
    assert set(SIGNATURES) == set(flash_attn.__all__)
    assert not MISSING & set(dir(flash_attn))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [(-1, -1), (6, 2), (4, -1), (-2, 0)])
@pytest.mark.parametrize("softcap", [0.0, 5.0])
def test_values_and_gradients(causal, window, softcap):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, n, h, 16).requires_grad_() for n, h in ((9, 4), (13, 2), (13, 2)))
    slopes = torch.rand(2, 4)
    out, lse, s_dmask = flash_attn.flash_attn_func(q, k, v, 0.0, 0.3, causal, window, softcap, slopes, True, True)
    assert s_dmask is None and lse.dtype == torch.float32
    dout = torch.randn_like(out)
    out.backward(dout)
    expected = reference(*(x.detach().numpy() for x in (q, k, v)), dout.numpy(), scale=0.3, softcap=softcap,
                         causal="bottom_right" if causal else "none", window=window, alibi_slopes=slopes.numpy())
    assert_close(out.detach(), expected["o"])
    assert_close(lse, np.where(np.isneginf(expected["lse"]), np.inf, expected["lse"]))
    for leaf, name in ((q, "dq"), (k, "dk"), (v, "dv")):
        assert_close(leaf.grad, expected[name], 1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_packed_forms_are_the_same_function(dtype):
    qkv = torch.randn(2, 9, 3, 4, 16).to(dtype).requires_grad_()
    q, k, v = (x.detach().clone().requires_grad_() for x in qkv.unbind(2))
    plain = flash_attn.flash_attn_func(q, k, v, causal=True)
    packed = flash_attn.flash_attn_qkvpacked_func(qkv, causal=True)
    assert torch.equal(plain, packed) and packed.dtype == dtype
    assert torch.equal(plain, flash_attn.flash_attn_kvpacked_func(q, torch.stack([k, v], 2), causal=True))
    plain.sum().backward()
    packed.sum().backward()
    assert torch.equal(qkv.grad, torch.stack([q.grad, k.grad, v.grad], 2))


def test_varlen_forms():
    starts = torch.tensor([0, 4, 4, 15], dtype=torch.int32)
    qkv = torch.randn(15, 3, 4, 16).requires_grad_()
    q, k, v = (x.detach().clone().requires_grad_() for x in qkv.unbind(1))
    out, lse, _ = flash_attn.flash_attn_varlen_func(q, k, v, starts, starts, 11, 11, causal=True, return_attn_probs=True)
    assert lse.shape == (4, 15)
    last = flash_attn.flash_attn_func(q[None, 4:], k[None, 4:], v[None, 4:], causal=True)
    torch.testing.assert_close(out[4:], last[0])
    same = flash_attn.flash_attn_varlen_qkvpacked_func(qkv, starts, 11, causal=True)
    also = flash_attn.flash_attn_varlen_kvpacked_func(q, torch.stack([k, v], 1), starts, starts, 11, 11, causal=True)
    assert torch.equal(out, same) and torch.equal(out, also)
    same.sum().backward()
    out.sum().backward()
    assert torch.equal(qkv.grad[:, 0], q.grad)


def test_lse_of_rows_without_keys_is_that_of_flash_attention():
    """softmax.h and flash_fwd_kernel.h of flash-attention 2.8.3 write INFINITY where the sum of a row is 0 or NaN."""
    q, k, v = torch.randn(1, 9, 2, 16), torch.randn(1, 4, 2, 16), torch.randn(1, 4, 2, 16)
    q[0, 8, 1] = float("nan")
    out, lse, _ = flash_attn.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    empty = torch.arange(9) < 5  # bottom right: the last four rows see keys
    assert torch.isposinf(lse[0, :, empty]).all() and not out[0, empty].any()
    assert torch.isfinite(lse[0, 0, 5:]).all() and torch.isfinite(lse[0, 1, 5:8]).all()
    assert torch.isposinf(lse[0, 1, 8]) and out[0, 8, 1].isnan().all()
    _, lse, _ = flash_attn.flash_attn_func(q, k[:, :0], v[:, :0], return_attn_probs=True)
    assert torch.isposinf(lse).all()
    _, ours = flashomp.attention(q, k, v, causal="bottom_right", return_lse=True)
    assert torch.isneginf(ours[0, :, empty]).all()


@pytest.mark.parametrize("behind_q, behind_k", [(4, 0), (0, 3), (5, 2)])
def test_rows_behind_the_last_sequence_take_no_part(behind_q, behind_k):
    starts_q, starts_k = (torch.tensor(ends, dtype=torch.int32) for ends in ([0, 4, 4, 15], [0, 6, 7, 13]))
    inside = [torch.randn(n, h, 16) for n, h in ((15, 4), (13, 2), (13, 2))]
    nan = float("nan")
    q, k, v = (torch.cat([x, x.new_full((n, *x.shape[1:]), nan)]).requires_grad_()
               for x, n in zip(inside, (behind_q, behind_k, behind_k)))
    arguments = (starts_q, starts_k, 11, 6)
    out, lse, _ = flash_attn.flash_attn_varlen_func(q, k, v, *arguments, causal=True, return_attn_probs=True)
    for x in inside:
        x.requires_grad_()
    alone, lse_alone, _ = flash_attn.flash_attn_varlen_func(*inside, *arguments, causal=True, return_attn_probs=True)
    assert out.shape == q.shape and lse.shape == (4, 15 + behind_q)
    assert torch.equal(out[:15], alone) and not out[15:].any()
    assert torch.equal(lse[:, :15], lse_alone) and torch.isposinf(lse[:, 15:]).all()
    weight = torch.randn_like(alone)
    (out[:15] * weight).sum().backward()
    (alone * weight).sum().backward()
    for whole, part in zip((q, k, v), inside):
        assert torch.equal(whole.grad[:len(part)], part.grad) and not whole.grad[len(part):].any()


def test_slopes_that_require_a_gradient_get_none():
    q, slopes = torch.randn(2, 9, 4, 16).requires_grad_(), torch.rand(4).requires_grad_()
    out = flash_attn.flash_attn_func(q, q, q, alibi_slopes=slopes)
    out.sum().backward()
    assert slopes.grad is None and q.grad is not None
    assert torch.equal(out, flash_attn.flash_attn_func(q, q, q, alibi_slopes=slopes.detach()))


def test_dropout_draws_from_pytorch_s_generator():
    q = torch.randn(1, 64, 2, 16)
    torch.manual_seed(2)
    a = flash_attn.flash_attn_func(q, q, q, dropout_p=0.5)
    torch.manual_seed(2)
    assert torch.equal(a, flash_attn.flash_attn_func(q, q, q, dropout_p=0.5))
    assert not torch.equal(a, flash_attn.flash_attn_func(q, q, q, dropout_p=0.5))


def test_errors():
    q = torch.randn(2, 9, 4, 16)
    with pytest.raises(flashomp.Error, match="kv has shape"):
        flash_attn.flash_attn_kvpacked_func(q, torch.randn(2, 9, 3, 4, 16))
    with pytest.raises(TypeError, match="qkv was None; it must be a tensor of PyTorch[.]"):
        flash_attn.flash_attn_qkvpacked_func(None)
    starts = torch.tensor([0, 9], dtype=torch.int32)
    with pytest.raises(flashomp.Error, match="cu_seqlens_q"):  # beyond the rows
        flash_attn.flash_attn_varlen_func(q[0, :8], q[0], q[0], starts, starts, 9, 9)
    with pytest.raises(TypeError, match="q was None; it must be a tensor of PyTorch[.]"):
        flash_attn.flash_attn_varlen_func(None, q[0], q[0], starts, starts, 9, 9)
    with pytest.raises(flashomp.NotBuilt, match="no paged caches"):
        flash_attn.flash_attn_varlen_func(q[0], q[0], q[0], starts, starts, 9, 9, block_table=torch.zeros(1, 1))
    with pytest.raises(flashomp.Error, match="cu_seqlens_q"):
        flash_attn.flash_attn_varlen_func(q[0], q[0], q[0], starts + 1, starts, 9, 9)
