"""Key/value caches on NumPy's arrays and PyTorch's tensors: append() and attention() in every form, and 8 bits."""

import flashomp
import numpy as np
import pytest
from conftest import assert_close, reference

PAGE, CAPACITY, HEADS, HEADS_KV, DEPTH = 4, 24, 4, 2, 16


def tables_of(form, rng, batch):
    """Options that say where the keys of each sequence are, and (sequence, row) -> index into the first two axes."""
    if form == "contiguous":
        return {}, (batch, CAPACITY), lambda b, j: (b, j)
    if form == "index":
        order = rng.permutation(batch + 1)[:batch].astype(np.int32)
        return {"cache_batch_index": order}, (batch + 1, CAPACITY), lambda b, j: (order[b], j)
    each = CAPACITY // PAGE
    table = rng.permutation(batch * each + 1)[:batch * each].reshape(batch, each).astype(np.int32)
    return {"block_table": table}, (batch * each + 1, PAGE), lambda b, j: (table[b, j // PAGE], j % PAGE)


@pytest.mark.parametrize("form", ["contiguous", "index", "pages"])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_append_then_attend(form, layout, rng):
    lengths, new = np.array([5, 0, 19], np.int32), 3
    where, shape, place = tables_of(form, rng, 3)
    order = (0, 2, 1, 3) if layout == "bhsd" else (0, 1, 2, 3)
    q, all_k, all_v = (rng.standard_normal((3, n, h, DEPTH)).astype(np.float32)
                       for n, h in ((new, HEADS), (CAPACITY, HEADS_KV), (CAPACITY, HEADS_KV)))
    caches = [np.full((*shape, HEADS_KV, DEPTH), np.nan, np.float32) for _ in range(2)]
    for b, n in enumerate(lengths):
        for j in range(n):
            caches[0][place(b, j)], caches[1][place(b, j)] = all_k[b, j], all_v[b, j]
    k, v = (np.stack([x[b, n:n + new] for b, n in enumerate(lengths)]) for x in (all_k, all_v))
    in_layout = [x.transpose(order) for x in (k, v, *caches)]
    assert flashomp.append(*in_layout, cache_seqlens=lengths, layout=layout, **where) is None
    o, lse = flashomp.attention(q.transpose(order), *in_layout[2:], cache_seqlens=lengths + new, causal="bottom_right",
                                layout=layout, return_lse=True, **where)
    for b, n in enumerate(lengths + new):
        expected = reference(q[b:b + 1], all_k[b:b + 1, :n], all_v[b:b + 1, :n], np.zeros((1, new, HEADS, DEPTH), np.float32),
                             causal="bottom_right")
        assert_close(o.transpose(order)[b], expected["o"][0])
        assert_close(lse[b], expected["lse"][0])


@pytest.mark.parametrize("form", ["contiguous", "pages"])
def test_values_that_are_a_view_of_the_keys(form, rng):
    lengths = np.array([5, 0, 19], np.int32)
    where, shape, place = tables_of(form, rng, 3)
    rows = rng.standard_normal((3, CAPACITY, 1, DEPTH)).astype(np.float32)
    cache = np.full((*shape, 1, DEPTH), np.nan, np.float32)
    for b, n in enumerate(lengths):
        for j in range(n):
            cache[place(b, j)] = rows[b, j]
    new = np.stack([rows[b, n:n + 2] for b, n in enumerate(lengths)])
    assert flashomp.append(new, None, cache, None, cache_seqlens=lengths, **where) is None
    q = rng.standard_normal((3, 1, HEADS, DEPTH)).astype(np.float32)
    o = flashomp.attention(q, cache, cache[..., :DEPTH // 2], cache_seqlens=lengths + 2, **where)
    for b, n in enumerate(lengths + 2):
        key = rows[b:b + 1, :n]
        assert_close(o[b], flashomp.attention(q[b:b + 1], key, key[..., :DEPTH // 2])[0])
    for arguments, options, says in (((new, new, cache, None), {}, "v and v_cache must be given together"),
                                     ((new, None, cache, cache), {}, "v and v_cache must be given together"),
                                     ((new, None, cache, None), {"q_out": q}, "q_out was given without q")):
        with pytest.raises(flashomp.Error, match=says):
            flashomp.append(*arguments, cache_seqlens=lengths, **where, **options)


@pytest.mark.parametrize("form", ["contiguous", "index", "pages"])
def test_int8(form, rng):
    lengths = np.array([5, 24, 19], np.int32)
    where, shape, _ = tables_of(form, rng, 3)
    caches = [rng.integers(-128, 128, (*shape, HEADS_KV, DEPTH)).astype(np.int8) for _ in range(2)]
    scales = [rng.uniform(0.01, 0.02, (shape[0], HEADS_KV)).astype(np.float32) for _ in range(2)]
    q = rng.standard_normal((3, 2, HEADS, DEPTH)).astype(np.float32)
    o = flashomp.attention(q, *caches, k_scale=scales[0], v_scale=scales[1], cache_seqlens=lengths, **where)
    assert o.dtype == np.float32
    products = [c.astype(np.float32) * s[:, None, :, None] for c, s in zip(caches, scales)]
    assert_close(o, flashomp.attention(q, *products, cache_seqlens=lengths, **where))
    # Of all heads alike; and new rows are rounded.
    one = np.full(HEADS_KV, 0.5, np.float32)
    k = np.array([0.25, 0.75, -0.25, 99.0] * 4, np.float32)[None, None, None].repeat(3, 0).repeat(HEADS_KV, 2)
    flashomp.append(k, k, *caches, cache_seqlens=np.zeros(3, np.int32), k_scale=one, v_scale=one, **where)
    again = flashomp.attention(q, *caches, k_scale=one, v_scale=one, cache_seqlens=np.ones(3, np.int32), **where)
    assert_close(again[..., :4], np.broadcast_to(np.array([0.0, 1.0, 0.0, 63.5], np.float32), (3, 2, HEADS, 4)))


def test_float8_of_pytorch():
    torch = pytest.importorskip("torch")
    torch.manual_seed(5)
    q = torch.randn(2, 1, HEADS, DEPTH, dtype=torch.bfloat16)
    k, v = (torch.randn(2, CAPACITY, HEADS_KV, DEPTH) for _ in range(2))
    lengths = torch.tensor([0, 3], dtype=torch.int32)
    caches = [torch.zeros(2, CAPACITY, HEADS_KV, DEPTH, dtype=torch.float8_e4m3fn) for _ in range(2)]
    scale = torch.tensor([[0.25, 0.5], [1.0, 0.125]])
    new = [x[:, :7].to(torch.bfloat16) for x in (k, v)]
    flashomp.append(*new, *caches, cache_seqlens=lengths, k_scale=scale, v_scale=scale)
    for cache, rows in zip(caches, new):
        for b, n in enumerate(lengths.tolist()):
            wanted = (rows[b].float() / scale[b][None, :, None]).to(torch.float8_e4m3fn)
            assert torch.equal(cache[b, n:n + 7].view(torch.uint8), wanted.view(torch.uint8))
    o = flashomp.attention(q, *caches, cache_seqlens=lengths + 7, k_scale=scale, v_scale=scale)
    assert o.dtype == torch.bfloat16
    products = [(c.float() * scale[:, None, :, None]).to(torch.bfloat16) for c in caches]
    assert torch.equal(o, flashomp.attention(q, *products, cache_seqlens=lengths + 7))


def test_errors():
    q = np.zeros((1, 2, 4, 16), np.float32)
    cache = np.zeros((1, 8, 2, 16), np.int8)
    with pytest.raises(flashomp.Error, match="k is int8, which only the forward pass takes"):
        flashomp.attention_backward(q, cache, cache, q, np.zeros((1, 4, 2), np.float32), q, dk=cache, dv=cache)
    with pytest.raises(flashomp.Error, match="k_scale is 0 for key head 1"):
        flashomp.attention(q, cache, cache, k_scale=np.array([1.0, 0.0], np.float32))
    with pytest.raises(flashomp.Error, match="v is float32 but k is int8"):
        flashomp.attention(q, cache, cache.astype(np.float32))
    with pytest.raises(TypeError, match="append[(][)] has no option 'softcap'; its options are causal, window"):
        flashomp.append(q, q, cache, cache, softcap=1.0)
