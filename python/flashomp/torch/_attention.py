"""flashomp.torch.attention: all options, with gradients."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from .. import _core
from ._operators import Eager, Transformed, core_options, forward_kernel, is_transformed, is_watched


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


def call(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None, key_padding_mask: Tensor | None = None,
         alibi_slopes: Tensor | None = None, sink: Tensor | None = None, cu_seqlens_q: Tensor | None = None,
         cu_seqlens_k: Tensor | None = None, seed: Tensor | None = None, scale: float | None = None,
         causal: str = "none", window: tuple[int, int] = (-1, -1), softcap: float = 0.0, dropout: float = 0.0,
         layout: str = "bshd") -> tuple[Tensor, Tensor]:
    """(o, lse) of the operator, or at once of the library where nobody watches."""
    options = (bias, key_padding_mask, alibi_slopes, sink, cu_seqlens_q, cu_seqlens_k, seed, scale, causal, window[0],
               window[1], softcap, dropout, layout)
    result: tuple[Tensor, Tensor]
    if torch.compiler.is_compiling():
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
              key_padding_mask: Tensor | None = None, cu_seqlens_q: Tensor | None = None,
              cu_seqlens_k: Tensor | None = None, sink: Tensor | None = None, dropout: float = 0.0,
              seed: Tensor | tuple[int, int] | None = None, layout: Literal["bshd", "bhsd"] = "bshd",
              return_lse: bool = False) -> Any:
    """Attention with gradients for q, k, v, bias and sink; the options are those of flashomp.attention.

    q: [B, Nq, Hq, head_dim]; k: [B, Nk, Hkv, head_dim]; v: [B, Nk, Hkv, head_dim_v]; float32, bfloat16 or float16;
    packed sequences: [total, heads, head_dim]. Any strides; a last axis that is not contiguous is copied.
    bias: float32 or the dtype of q, [1|B, 1|Hq, 1|Nq, 1|Nk]; its gradient has its shape.
    seed: of dropout: (seed, offset), or int64 [2]; PyTorch's generator draws one where it is not given.
    return_lse: returns (o, lse); lse, float32 [B, Hq, Nq], has no gradient.

    Saves q, k, v, o and lse for the backward pass, and nothing of size Nq x Nk but a bias that was given. Works in
    torch.compile(fullgraph=True), torch.export, autocast (which lowers the precision of q, k and v) and checkpoints.
    Raises flashomp.Error (a ValueError) when an argument is not as documented, also for tensors that require a gradient
    where there is none (alibi_slopes).
    """
    if alibi_slopes is not None and alibi_slopes.requires_grad and torch.is_grad_enabled():
        raise _core.Error("alibi_slopes requires a gradient, which flashomp does not compute; give "
                          "alibi_slopes.detach().")
    for name, number in (("scale", scale), ("softcap", softcap), ("dropout", dropout)):
        if isinstance(number, Tensor):
            raise _core.Error(f"{name} is a tensor, for which flashomp computes no gradient; give float({name}).")
    if len(window) != 2:
        raise _core.Error(f"window was {window}; it must be two integers, (left, right).")
    q, k, v = autocast(q, k, v)
    if bias is not None and bias.dtype not in (torch.float32, q.dtype) and torch.is_autocast_enabled(q.device.type):
        bias = bias.to(q.dtype)
    if dropout == 0.0:
        seed = None
    elif seed is None:
        seed = new_seed()
    elif not isinstance(seed, Tensor):
        seed = torch.tensor([(n + 2**63) % 2**64 - 2**63 for n in seed], dtype=torch.int64,
                            device="cpu")
    o, lse = call(q, k, v, bias=bias, key_padding_mask=key_padding_mask, alibi_slopes=alibi_slopes, sink=sink,
                  cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, seed=seed, scale=scale, causal=causal,
                  window=window, softcap=softcap, dropout=dropout, layout=layout)
    return (o, lse) if return_lse else o
