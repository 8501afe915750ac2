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
    "flash_attn_with_kvcache": {
        "q": ..., "k_cache": ..., "v_cache": ..., "k": None, "v": None, "rotary_cos": None, "rotary_sin": None,
        "cache_seqlens": None, "cache_batch_idx": None, "cache_leftpad": None, "block_table": None, "softmax_scale": None,
        "causal": False, "window_size": (-1, -1), "softcap": 0.0, "rotary_interleaved": True, "alibi_slopes": None,
        "num_splits": 0, "return_softmax_lse": False},
}


@pytest.mark.parametrize("name", list(SIGNATURES))
def test_signatures_and_defaults(name):
    parameters = inspect.signature(getattr(flash_attn, name)).parameters
    given = {p.name: ... if p.default is inspect.Parameter.empty else p.default for p in parameters.values()}
    assert list(given.items()) == list(SIGNATURES[name].items())
    assert all(p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in parameters.values())


def test_what_there_is():
    assert set(SIGNATURES) == set(flash_attn.__all__)


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
    with pytest.raises(flashomp.Error, match="block_table is 7"):
        flash_attn.flash_attn_varlen_func(q[0], q, q, starts, starts, 9, 9,
                                          block_table=torch.full((1, 1), 7, dtype=torch.int32))
    with pytest.raises(flashomp.Error, match="cache_leftpad is torch.float32 of shape"):
        flash_attn.flash_attn_with_kvcache(q, q, q, cache_leftpad=torch.zeros(2))
    with pytest.raises(flashomp.Error, match="cache_leftpad is 0 to 10; allowed are 0 to 9"):
        flash_attn.flash_attn_with_kvcache(q, q, q, cache_leftpad=torch.tensor([0, 10], dtype=torch.int32))
    with pytest.raises(flashomp.Error, match="cache_seqlens was not given"):
        flash_attn.flash_attn_with_kvcache(q, q, q, q, q)
    with pytest.raises(flashomp.Error, match="k and v must be given together"):
        flash_attn.flash_attn_with_kvcache(q, q, q, q)
    with pytest.raises(flashomp.Error, match="v_cache is torch.int8, but q is torch.float32"):
        flash_attn.flash_attn_with_kvcache(q, q, q.to(torch.int8), q, q, cache_seqlens=0)
    with pytest.raises(TypeError, match="v_cache was None; it must be a tensor of PyTorch[.]"):
        flash_attn.flash_attn_with_kvcache(q, q, None)
    with pytest.raises(TypeError, match="cu_seqlens_k was 'a'; it must be a tensor of PyTorch[.]"):
        flash_attn.flash_attn_varlen_func(q[0], q, q, starts, "a", 9, 9, block_table=starts)
    with pytest.raises(flashomp.Error, match="cu_seqlens_q"):
        flash_attn.flash_attn_varlen_func(q[0], q[0], q[0], starts + 1, starts, 9, 9)


@pytest.mark.parametrize("bad", [{"cache_leftpad": torch.tensor([99, 0], dtype=torch.int32)}, {"softmax_scale": float("nan")},
                                 {"alibi_slopes": torch.ones(3)}, {"q": torch.randn(2, 1, 5, 16)}])
def test_what_is_refused_leaves_the_caches_as_they_were(bad):
    q = torch.randn(2, 1, 4, 16)
    caches = [torch.randn(2, 8, 4, 16) for _ in range(2)]
    before = [x.clone() for x in caches]
    with pytest.raises(flashomp.Error):
        flash_attn.flash_attn_with_kvcache(**{"q": q, **bad}, k_cache=caches[0], v_cache=caches[1], k=q, v=q,
                                           cache_seqlens=torch.tensor([3, 5], dtype=torch.int32))
    assert all(torch.equal(x, y) for x, y in zip(caches, before))


def rotated(x, cos, sin, interleaved):
    """x [N, heads, D] at positions 0 ... N - 1 of cos and sin [N, pairs], in float64."""
    pairs = cos.shape[1]
    one, other = (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)) if interleaved else (slice(0, pairs), slice(pairs, 2 * pairs))
    out = x.double().clone()
    c, s = cos.double()[:, None], sin.double()[:, None]
    out[..., one] = x[..., one].double() * c - x[..., other].double() * s
    out[..., other] = x[..., one].double() * s + x[..., other].double() * c
    return out.float()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("form", ["contiguous", "index", "pages"])
@pytest.mark.parametrize("leftpad", [None, [3, 0, 11]])
def test_kvcache(leftpad, form, interleaved, causal):
    torch.manual_seed(3)
    lengths, new, page_size, pages = [5, 0, 19], 2, 4, 6
    tables, batch, capacity = {}, 3, page_size * pages
    all_k, all_v = (torch.randn(batch, capacity, 2, 16) for _ in range(2))
    q = torch.randn(batch, new, 4, 16)
    cos, sin = torch.randn(capacity, 4), torch.randn(capacity, 4)
    nan = float("nan")
    if form == "pages":
        table = torch.randperm(batch * pages + 1)[:batch * pages].reshape(batch, pages).to(torch.int32)
        caches = [torch.full((batch * pages + 1, page_size, 2, 16), nan) for _ in range(2)]
        tables["block_table"] = table
    else:
        order = [2, 0, 3] if form == "index" else [0, 1, 2]
        caches = [torch.full((4 if form == "index" else 3, capacity, 2, 16), nan) for _ in range(2)]
        if form == "index":
            tables["cache_batch_idx"] = torch.tensor(order, dtype=torch.int32)
    for b, n in enumerate(lengths):
        for cache, source in zip(caches, (all_k, all_v)):
            for j in range(n):
                at = (tables["block_table"][b, j // page_size], j % page_size) if form == "pages" else (order[b], j)
                cache[at] = source[b, j]
    k, v = (torch.stack([x[b, n:n + new] for b, n in enumerate(lengths)]) for x in (all_k, all_v))
    out, lse = flash_attn.flash_attn_with_kvcache(q, *caches, k, v, cos, sin, torch.tensor(lengths, dtype=torch.int32),
                                                  causal=causal, rotary_interleaved=interleaved,
                                                  cache_leftpad=leftpad and torch.tensor(leftpad, dtype=torch.int32),
                                                  return_softmax_lse=True, **tables)
    for b, n in enumerate(lengths):
        turned_k = rotated(all_k[b, n:n + new], cos[n:n + new], sin[n:n + new], interleaved)
        at = torch.full((new,), n) + (torch.arange(new) if causal else 0)
        turned_q = rotated(q[b], cos[at], sin[at], interleaved)
        first = leftpad[b] if leftpad else 0
        expected = flash_attn.flash_attn_func(turned_q[None], torch.cat([all_k[b, first:n], turned_k])[None],
                                              all_v[None, b, first:n + new], causal=causal, return_attn_probs=True)
        torch.testing.assert_close(out[b], expected[0][0])
        torch.testing.assert_close(lse[b], expected[1][0])


def test_varlen_with_block_table():
    torch.manual_seed(4)
    starts_q, starts_k = (torch.tensor(x, dtype=torch.int32) for x in ([0, 1, 1, 6], [0, 7, 9, 20]))
    q, pages = torch.randn(6, 4, 16), torch.randn(2, 9, 4, 2, 16)
    table = torch.tensor([[3, 1, 9], [0, -1, -1], [5, 8, 2]], dtype=torch.int32)
    out, lse, _ = flash_attn.flash_attn_varlen_func(q, pages[0], pages[1], starts_q, starts_k, 5, 11, causal=True,
                                                    return_attn_probs=True, block_table=table)
    k, v = (torch.cat([p[[3, 1]].flatten(0, 1)[:7], p[0][:2], p[[5, 8, 2]].flatten(0, 1)[:11]]) for p in pages)
    expected = flash_attn.flash_attn_varlen_func(q, k, v, starts_q, starts_k, 5, 11, causal=True, return_attn_probs=True)
    torch.testing.assert_close(out, expected[0])
    torch.testing.assert_close(lse, expected[1])
