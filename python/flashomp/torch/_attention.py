"""flashomp.torch.attention: all options, with gradients."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from .. import _core
from ._operators import Eager, EagerBlocks, Transformed, core_options, forward_kernel, is_transformed, is_watched


def new_seed() -> Tensor:
    """Seed and offset of dropout, from PyTorch's generator of the CPU."""
    return torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device="cpu")


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in autocast's dtype, where autocast is on: attention is one of its operators of lower precision."""
    if not isinstance(tensors[0], Tensor):
        return tensors
    device = tensors[0].device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t for t in tensors)


def autocast_bias(bias: Tensor | None, q: Tensor) -> Tensor | None:
    """What is added to the scores, in the dtype of q where autocast is on. float32 stays, since flashomp adds it as it is;
    autocast leaves float64 and booleans alone."""
    if (not isinstance(bias, Tensor) or not isinstance(q, Tensor) or not bias.is_floating_point()
            or bias.dtype in (torch.float32, torch.float64, q.dtype)):
        return bias
    device = q.device.type
    return bias.to(q.dtype) if device != "meta" and torch.is_autocast_enabled(device) else bias


def _check(q: Any, k: Any, v: Any, window: Any, layout: Any, **optional: Any) -> None:
    """Raises where PyTorch or Python would before the library sees the arguments."""
    for name, tensor in (("q", q), ("k", k), ("v", v), *optional.items()):
        if not isinstance(tensor, Tensor):
            if tensor is None and name in optional:
                continue
            raise TypeError(f"{name} was {described(tensor)}; it must be a tensor of PyTorch.")
        if tensor.dim() == 0:
            raise _core.Error(f"{name} has 0 axes; it must have 1 to 4, as its shape is documented.")
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() not in (3, 4):
            raise _core.Error(f"{name} has {tensor.dim()} {'axis' if tensor.dim() == 1 else 'axes'}; it must have 4, or 3 "
                              "where sequences are packed.")
    if isinstance(window, str) or not hasattr(window, "__len__") or len(window) != 2:
        raise _core.Error(f"window was {described(window)}; it must be two integers, (left, right).")
    if not isinstance(layout, str) or layout not in ("bshd", "bhsd"):
        raise _core.Error(f"layout was {described(layout)}; allowed are 'bshd', 'bhsd'.")


def described(value: Any) -> str:
    """Text of a value for a message, on one line and not long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:60] + "…"


def _seed_of(seed: Any) -> Tensor:
    """(seed, offset) as the operator takes them."""
    if isinstance(seed, Tensor):
        if seed.dtype != torch.int64 or tuple(seed.shape) != (2,):
            raise _core.Error(f"seed is {seed.dtype} of shape {list(seed.shape)}; as a tensor it must be torch.int64 of "
                              "shape [2], the seed and the offset.")
        return seed
    fits = isinstance(seed, (tuple, list)) and len(seed) == 2 and all(
        hasattr(n, "__index__") and not isinstance(n, bool) and 0 <= int(n) < 2**64 for n in seed)
    if not fits:
        raise _core.Error(f"seed was {described(seed)}; it must be (seed, offset), two integers from 0 to 2^64 - 1, or a "
                          "tensor of them.")
    return torch.tensor([(int(n) + 2**63) % 2**64 - 2**63 for n in seed], dtype=torch.int64, device="cpu")


def call(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None, key_padding_mask: Tensor | None = None,
         alibi_slopes: Tensor | None = None, sink: Tensor | None = None, cu_seqlens_q: Tensor | None = None,
         cu_seqlens_k: Tensor | None = None, seed: Tensor | None = None, mask: Tensor | None = None,
         block_mask: _core.BlockMask | None = None, scale: float | None = None, causal: str = "none",
         window: tuple[int, int] = (-1, -1), softcap: float = 0.0, dropout: float = 0.0,
         layout: str = "bshd") -> tuple[Tensor, Tensor]:
    """(o, lse) of the operator, or at once of the library where nobody watches."""
    options = (bias, key_padding_mask, alibi_slopes, sink, cu_seqlens_q, cu_seqlens_k, seed, mask, scale, causal,
               window[0], window[1], softcap, dropout, layout)
    result: tuple[Tensor, Tensor]
    if block_mask is not None:
        if torch.compiler.is_compiling() or is_watched(q, k, v, bias, sink):
            raise _core.Error("block_mask was given in a compiled graph or a transform, whose operators take tensors alone; "
                              "allowed there is mask.")
        result = EagerBlocks.apply(q, k, v, *options, block_mask)
    elif torch.compiler.is_compiling():
        result = torch.ops.flashomp.forward.default(q, k, v, *options)
    elif is_watched(q, k, v, bias, sink):
        result = (Transformed.apply if is_transformed() else torch.ops.flashomp.forward.default)(q, k, v, *options)
    elif torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad
                                      or (bias is not None and bias.requires_grad)
                                      or (sink is not None and sink.requires_grad)):
        result = Eager.apply(q, k, v, *options)
    else:
        result = forward_kernel(q, k, v, core_options(*options))
    return result


def attention(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None,
              causal: Literal["none", "top_left", "bottom_right"] = "none", window: tuple[int, int] = (-1, -1),
              softcap: float = 0.0, alibi_slopes: Tensor | None = None, bias: Tensor | None = None,
              key_padding_mask: Tensor | None = None, mask: Tensor | None = None,
              block_mask: _core.BlockMask | None = None, cu_seqlens_q: Tensor | None = None,
              cu_seqlens_k: Tensor | None = None, sink: Tensor | None = None, dropout: float = 0.0,
              seed: Tensor | tuple[int, int] | None = None, layout: Literal["bshd", "bhsd"] = "bshd",
              return_lse: bool = False) -> Any:
    """Attention with gradients for q, k, v, bias and sink.

    The options mean what they mean for flashomp.attention, but for seed. Not here are those that say where and how to
    run (backend, machine, device, threads, stream, tiling), q_scale, k_scale and v_scale, out, lse and return_report.

    q: [B, Nq, Hq, head_dim]; k: [B, Nk, Hkv, head_dim]; v: [B, Nk, Hkv, head_dim_v]; float32, bfloat16 or float16;
    packed sequences: [total, heads, head_dim]. Any strides; a last axis that is not contiguous is copied.
    bias: float32 or the dtype of q, [1|B, 1|Hq, 1|Nq, 1|Nk]; its gradient has its shape.
    mask: bool [1|B, 1|Hq, 1|Nq, 1|Nk]: False hides the pair. block_mask: a flashomp.BlockMask, or what block_mask() makes
    of FlexAttention's; in eager code only.
    seed: of dropout: the pair (seed, offset), integers from 0 to 2^64 - 1, or int64 [2] with their bits; one integer is
    refused. PyTorch's generator draws a seed where none is given.
    return_lse: returns (o, lse); lse, float32 [B, Hq, Nq], has no gradient.

    Saves q, k, v, o and lse for the backward pass, and nothing of size Nq x Nk but a bias that was given. Works in
    torch.compile(fullgraph=True), torch.export, autocast (which lowers the precision of q, k and v) and checkpoints.
    Raises flashomp.Error (a ValueError) when an argument is not as documented, also for tensors that require a gradient
    where there is none (alibi_slopes), and TypeError for what is no tensor.
    """
    for name, number in (("scale", scale), ("softcap", softcap), ("dropout", dropout)):
        if isinstance(number, Tensor):
            raise _core.Error(f"{name} is a tensor, for which flashomp computes no gradient; give float({name}).")
    _check(q, k, v, window, layout, bias=bias, key_padding_mask=key_padding_mask, mask=mask, alibi_slopes=alibi_slopes,
           sink=sink, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    if alibi_slopes is not None and alibi_slopes.requires_grad and torch.is_grad_enabled():
        raise _core.Error("alibi_slopes requires a gradient, which flashomp does not compute; give "
                          "alibi_slopes.detach().")
    q, k, v = autocast(q, k, v)
    bias = autocast_bias(bias, q)
    if seed is not None:
        seed = _seed_of(seed)
    if dropout == 0.0:
        seed = None
    elif seed is None:
        seed = new_seed()
    o, lse = call(q, k, v, bias=bias, key_padding_mask=key_padding_mask, mask=mask, block_mask=block_mask,
                  alibi_slopes=alibi_slopes, sink=sink, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, seed=seed,
                  scale=scale, causal=causal,
                  window=window, softcap=softcap, dropout=dropout, layout=layout)
    return (o, lse) if return_lse else o
