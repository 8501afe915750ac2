"""mask= and block_mask=: dense masks, BlockMask and its makers, FlexAttention's masks, and bad ones."""

import numpy as np
import pytest

import flashomp


def inputs(batch=2, rows=70, columns=90, heads=4, heads_kv=2, depth=16, seed=0):
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((batch, rows, heads, depth), dtype=np.float32)
    k = rng.standard_normal((batch, columns, heads_kv, depth), dtype=np.float32)
    v = rng.standard_normal((batch, columns, heads_kv, depth), dtype=np.float32)
    return q, k, v


def reference(q, k, v, mask):
    """Float64; rows that see nothing give 0."""
    group = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x.astype(np.float64), group, axis=2) for x in (k, v))
    scores = np.einsum("bihd,bjhd->bhij", q.astype(np.float64), k) / np.sqrt(q.shape[3])
    scores = np.where(np.broadcast_to(mask, scores.shape), scores, -np.inf)
    top = np.where(np.isfinite(scores.max(-1, keepdims=True)), scores.max(-1, keepdims=True), 0.0)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    return np.einsum("bhij,bjhd->bihd", np.divide(weights, total, out=np.zeros_like(weights), where=total > 0), v)


@pytest.mark.parametrize("shape", [(2, 4, 70, 90), (1, 1, 70, 90), (2, 1, 1, 90), (1, 4, 70, 1)])
def test_dense_mask(shape):
    q, k, v = inputs()
    mask = np.random.default_rng(1).random(shape) < 0.4
    mask[..., :1, :] = False  # a row that sees nothing, where rows have masks of their own
    o, lse = flashomp.attention(q, k, v, mask=mask, return_lse=True)
    np.testing.assert_allclose(o, reference(q, k, v, mask), atol=2e-6)
    seen = np.broadcast_to(mask, (2, 4, 70, 90)).any(-1)
    assert (np.isneginf(lse) == ~seen).all()
    gradients = flashomp.attention_backward(q, k, v, o, lse, np.ones_like(o), mask=mask)
    wanted = flashomp.attention_backward(q, k, v, o, lse, np.ones_like(o), backend="reference", mask=mask)
    for got, want in zip(gradients[:3], wanted[:3]):
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_a_mask_of_any_strides():
    q, k, v = inputs()
    mask = np.random.default_rng(2).random((2, 4, 90, 70)) < 0.4
    turned = mask.transpose(0, 1, 3, 2)
    assert np.array_equal(flashomp.attention(q, k, v, mask=turned), flashomp.attention(q, k, v, mask=turned.copy()))


def test_a_mask_of_bits():
    q, k, v = inputs()
    mask = np.random.default_rng(4).random((2, 1, 70, 90)) < 0.4
    bits = np.packbits(mask, axis=-1, bitorder="little")
    assert np.array_equal(flashomp.attention(q, k, v, mask=bits), flashomp.attention(q, k, v, mask=mask))
    with pytest.raises(flashomp.Error, match="8 keys to a byte"):
        flashomp.attention(q, k, v, mask=mask.astype(np.uint8))


@pytest.mark.parametrize("block", [(16, 16), (32, 48), (128, 128)])
def test_block_mask_has_the_bits_of_its_dense_mask(block):
    q, k, v = inputs()
    dense = np.random.default_rng(3).random((2, 4, 70, 90)) < 0.5
    dense[:, :, :32, 48:] = False
    mask = flashomp.BlockMask.from_mask(dense, *block)
    assert mask.shape == (2, 4, 70, 90) and mask.block_size == block and mask.kept_pairs == dense.sum()
    assert np.array_equal(mask.to_mask(), dense)
    o, lse = flashomp.attention(q, k, v, mask=dense, return_lse=True)
    assert np.array_equal(flashomp.attention(q, k, v, block_mask=mask), o)
    dout = np.ones_like(o)
    for got, want in zip(flashomp.attention_backward(q, k, v, o, lse, dout, block_mask=mask)[:3],
                         flashomp.attention_backward(q, k, v, o, lse, dout, mask=dense)[:3]):
        assert np.array_equal(got, want)
    prepared = flashomp.prepare(q, k, v, block_mask=mask)
    assert np.array_equal(prepared.run(q, k, v, block_mask=mask), o)


def test_makers():
    i, j = np.arange(100)[:, None], np.arange(100)[None, :]
    ids = np.repeat([0, 1, -1], [30, 50, 20]).astype(np.int32)
    same = (ids[:, None] == ids[None, :]) & (ids[:, None] >= 0)
    make = flashomp.BlockMask
    made = {
        "documents": (make.from_documents(ids[None], block_q=16, block_k=16), same & (j <= i)),
        "both ways": (make.from_documents(ids[None], causal=False), same),
        "lengths": (make.from_lengths([40, 60], causal=False, block_q=16, block_k=16), (i < 40) == (j < 40)),
        "prefix": (make.prefix_lm([33], 100, 16, 16), (j <= i) | (j < 33)),
        "chunked": (make.chunked(100, 27, 16, 16), (j <= i) & (i // 27 == j // 27)),
        "dilated": (make.dilated(100, 40, 4, 16, 16), (j <= i) & (i - j < 40) & ((i - j) % 4 == 0)),
        "global": (make.sliding_with_global(100, 20, 0, 3, block_q=16, block_k=16),
                   (j <= i) & ((i - j <= 20) | (i < 3) | (j < 3))),
    }
    for name, (mask, wanted) in made.items():
        assert np.array_equal(mask.to_mask()[0, 0], wanted), name
    two = make.prefix_lm([5, 60], 100)
    assert two.shape == (2, 1, 100, 100) and two.to_mask()[1, 0, 0].sum() == 60


def test_bad_masks():
    q, k, v = inputs()
    for options, words in (
        ({"mask": np.ones((2, 4, 70, 89), bool)}, "mask has shape"),
        ({"mask": np.ones((2, 4, 70, 90), np.float32)}, "mask is float32"),
        ({"block_mask": np.ones((2, 4, 70, 90), bool)}, "block_mask was"),
        ({"block_mask": flashomp.BlockMask.chunked(70, 8)}, "block_mask is of"),
    ):
        with pytest.raises(flashomp.Error, match=words):
            flashomp.attention(q, k, v, **options)
    for make, words in (
        (lambda: flashomp.BlockMask.from_mask(np.ones((4, 4), bool)), "dense mask"),
        (lambda: flashomp.BlockMask.chunked(64, 8, 8, 16), "block_q was 8"),
        (lambda: flashomp.BlockMask.from_documents(np.zeros((1, 8), np.int64)), "ids is int64"),
        (lambda: flashomp.BlockMask.from_blocks((1, 1, 32, 32), np.array([0, 1]), np.array([3], np.int32),
                                                np.array([-1], np.int32)), "block 0 of row 0 was 3"),
    ):
        with pytest.raises(flashomp.Error, match=words):
            make()


def test_sdpa_with_a_boolean_mask():
    torch = pytest.importorskip("torch")
    import flashomp.torch

    torch.manual_seed(3)
    q, k, v = (torch.randn(2, 4, n, 16, requires_grad=True) for n in (33, 57, 57))
    mask = torch.rand(2, 1, 33, 57) < 0.5
    mask[..., 0] = True
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    got = flashomp.torch.sdpa(q, k, v, attn_mask=mask)
    torch.testing.assert_close(got, want, atol=2e-6, rtol=1e-5)
    for a, b in zip(torch.autograd.grad(got.sum(), (q, k, v)), torch.autograd.grad(want.sum(), (q, k, v))):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_first_derivatives_with_a_graph():
    torch = pytest.importorskip("torch")
    import flashomp.torch

    x = torch.randn(1, 2, 20, 8, requires_grad=True)
    mask = flashomp.BlockMask.chunked(20, 7, 16, 16)
    dense = torch.from_numpy(mask.to_mask())
    grads = [torch.autograd.grad(flashomp.torch.attention(x, x, x, layout="bhsd", **given).square().sum(), x, create_graph=True)[0]
             for given in ({"block_mask": mask}, {"mask": dense})]
    assert torch.equal(*grads)
    with pytest.raises(flashomp.NotBuilt, match="no second derivatives"):
        grads[0].sum().backward()


def test_torch_block_mask_and_flex_attention():
    torch = pytest.importorskip("torch")
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    import flashomp.torch

    documents = torch.repeat_interleave(torch.arange(4), torch.tensor([90, 50, 100, 60]))

    def keeps(b, h, i, j):
        return (documents[i] == documents[j]) & (i >= j) & ((h == 0) | (i - j < 40))

    theirs = flex.create_block_mask(keeps, None, 2, 300, 300, device="cpu", BLOCK_SIZE=64)
    mask = flashomp.torch.block_mask(theirs)
    i = torch.arange(300)
    wanted = torch.stack([keeps(None, torch.tensor(h), i[:, None], i[None, :]) for h in range(2)])
    assert np.array_equal(mask.to_mask()[0], wanted.numpy())
    q, k, v = (torch.randn(1, 300, 2, 16, requires_grad=True) for _ in range(3))
    got = flashomp.torch.attention(q, k, v, block_mask=mask)
    want = flashomp.torch.attention(q, k, v, mask=wanted[None])
    assert torch.equal(got, want)
    for a, b in zip(torch.autograd.grad(got.sum(), (q, k, v)), torch.autograd.grad(want.sum(), (q, k, v))):
        assert torch.equal(a, b)
    with pytest.raises(flashomp.Error, match="without kv_num_blocks"):
        flashomp.torch.block_mask(wanted)
