"""flashomp.flash_attn beside flash-attention 2's signatures, and float64."""

import inspect

import pytest
from conftest import assert_close, reference

torch = pytest.importorskip("torch")
import flashomp  # noqa: E402
from flashomp import flash_attn  # noqa: E402

# What follows the tensors in every function of flash-attention 2.8, with the defaults there.
COMMON = {"dropout_p": 0.0, "softmax_scale": None, "causal": False, "window_size": (-1, -1), "softcap": 0.0,
          "alibi_slopes": None, "deterministic": False, "return_attn_probs": False}
STARTS = ["cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"]
SIGNATURES = {
    "flash_attn_func": (["q", "k", "v"], COMMON),
    "flash_attn_kvpacked_func": (["q", "kv"], COMMON),
    "flash_attn_qkvpacked_func": (["qkv"], COMMON),
    "flash_attn_varlen_func": (["q", "k", "v", *STARTS], {**COMMON, "block_table": None}),
    "flash_attn_varlen_kvpacked_func": (["q", "kv", *STARTS], COMMON),
    "flash_attn_varlen_qkvpacked_func": (["qkv", "cu_seqlens", "max_seqlen"], COMMON),
}


@pytest.mark.parametrize("name", list(SIGNATURES))
def test_signatures_and_defaults(name):
    tensors, options = SIGNATURES[name]
    parameters = inspect.signature(getattr(flash_attn, name)).parameters
    assert list(parameters) == [*tensors, *options]
    for option, default in options.items():
        assert parameters[option].default == default
    for tensor in tensors:
        assert parameters[tensor].default is inspect.Parameter.empty
    assert all(p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in parameters.values())
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
    assert_close(lse, expected["lse"])
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
    starts = torch.tensor([0, 9], dtype=torch.int32)
    with pytest.raises(flashomp.NotBuilt, match="no paged caches"):
        flash_attn.flash_attn_varlen_func(q[0], q[0], q[0], starts, starts, 9, 9, block_table=torch.zeros(1, 1))
    with pytest.raises(flashomp.Error, match="cu_seqlens_q"):
        flash_attn.flash_attn_varlen_func(q[0], q[0], q[0], starts + 1, starts, 9, 9)
