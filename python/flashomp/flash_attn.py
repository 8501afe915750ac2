"""flash-attention 2's functions, by name, signature and default, on flashomp: CPU tensors, and CUDA tensors where the
build has the CUDA backend.

    from flashomp.flash_attn import flash_attn_func  # instead of: from flash_attn import flash_attn_func

q, k and v are [batch, seqlen, heads, head_dim], packed [total, heads, head_dim]. causal is bottom-right, window_size is
(left, right) around the diagonal that ends bottom right, and -1 is unbounded. Besides bfloat16 and float16 there is
float32. deterministic changes nothing: every result has the same bits in every run. The dropout mask is flashomp's, with
a seed of PyTorch's generator of the CPU. return_attn_probs gives (out, softmax_lse, None): no S_dmask is made, since
it is of size Nq x Nk; flashomp.dropout_mask() draws the mask. softmax_lse is +inf for a row without keys, where
flashomp.attention() has -inf. A gradient of alibi_slopes is not computed. Rows of packed tensors beyond
cu_seqlens[-1] take no part: out and the gradients are 0 there, which flash-attention leaves unwritten; code that
torch.compile compiled refuses them. There are no flash_attn_with_kvcache and block_table yet.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from . import _core
from .torch._attention import attention, described

__all__ = ["flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
           "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func"]


def _in_use(packed: Tensor, starts: Tensor) -> Tensor:
    """The rows of a packed tensor that its sequences have; all where an argument is not as it must be, which the library
    says, and where PyTorch traces, which cannot look at numbers."""
    if (torch.compiler.is_compiling() or type(starts) is not Tensor or not isinstance(packed, Tensor) or starts.dim() != 1
            or starts.numel() == 0 or packed.dim() == 0):
        return packed
    end = int(starts[-1])
    return packed[:end] if 0 <= end < packed.size(0) else packed


def _attention(q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float | None, causal: bool,
               window_size: tuple[int, int], softcap: float, alibi_slopes: Tensor | None, return_attn_probs: bool,
               cu_seqlens_q: Tensor | None = None, cu_seqlens_k: Tensor | None = None) -> Any:
    # flash-attention takes any negative number for "unbounded" and any softcap <= 0 for "off".
    left, right = (-1 if bound < 0 else bound for bound in window_size)
    if isinstance(alibi_slopes, Tensor):
        alibi_slopes = alibi_slopes.detach()  # flash-attention takes those that require a gradient, and computes none
    behind = 0
    if isinstance(cu_seqlens_q, Tensor) and isinstance(cu_seqlens_k, Tensor):
        cu_seqlens_q, cu_seqlens_k = cu_seqlens_q.cpu(), cu_seqlens_k.cpu()
        used = _in_use(q, cu_seqlens_q)
        if used is not q:
            q, behind = used, q.size(0) - used.size(0)
        k, v = _in_use(k, cu_seqlens_k), _in_use(v, cu_seqlens_k)
    o, lse = attention(q, k, v, scale=softmax_scale, causal="bottom_right" if causal else "none", window=(left, right),
                       softcap=max(softcap, 0.0), alibi_slopes=alibi_slopes, cu_seqlens_q=cu_seqlens_q,
                       cu_seqlens_k=cu_seqlens_k, dropout=dropout_p, return_lse=True)
    if behind:
        o = torch.nn.functional.pad(o, (0, 0, 0, 0, 0, behind))
        lse = torch.nn.functional.pad(lse, (0, behind), value=-math.inf)
    # As flash-attention: +inf for a row without keys, so that exp(score - lse) is 0 there, and for one with a NaN.
    return (o, torch.where(lse > -math.inf, lse, math.inf), None) if return_attn_probs else o


def _unpacked(tensor: Tensor, axis: int, parts: int, name: str) -> tuple[Tensor, ...]:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} was {described(tensor)}; it must be a tensor of PyTorch.")
    if tensor.dim() <= -axis or tensor.size(axis) != parts:
        raise _core.Error(f"{name} has shape {list(tensor.shape)}; its axis before heads and head_dim must have {parts} "
                          "elements.")
    return tensor.unbind(axis)


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                    causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                    alibi_slopes: Tensor | None = None, deterministic: bool = False,
                    return_attn_probs: bool = False) -> Any:
    """q: [B, Nq, Hq, D]; k, v: [B, Nk, Hkv, D]. Returns out, or (out, softmax_lse [B, Hq, Nq], None)."""
    return _attention(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs)


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                             causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                             alibi_slopes: Tensor | None = None, deterministic: bool = False,
                             return_attn_probs: bool = False) -> Any:
    """q: [B, Nq, Hq, D]; kv: [B, Nk, 2, Hkv, D]. Returns as flash_attn_func() does."""
    k, v = _unpacked(kv, -3, 2, "kv")
    return _attention(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs)


def flash_attn_qkvpacked_func(qkv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                              causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                              alibi_slopes: Tensor | None = None, deterministic: bool = False,
                              return_attn_probs: bool = False) -> Any:
    """qkv: [B, N, 3, H, D]. Returns as flash_attn_func() does."""
    q, k, v = _unpacked(qkv, -3, 3, "qkv")
    return _attention(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs)


def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                           max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
                           softmax_scale: float | None = None, causal: bool = False,
                           window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                           alibi_slopes: Tensor | None = None, deterministic: bool = False,
                           return_attn_probs: bool = False, block_table: Tensor | None = None) -> Any:
    """q: [total_q, Hq, D]; k, v: [total_k, Hkv, D]; cu_seqlens: int32 [B+1]. flashomp needs no max_seqlen.
    Returns out, or (out, softmax_lse [Hq, total_q], None)."""
    if block_table is not None:
        raise _core.NotBuilt("block_table was given, but flashomp has no paged caches yet; it must be None.")
    return _attention(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs,
                      cu_seqlens_q, cu_seqlens_k)


def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                                    max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
                                    softmax_scale: float | None = None, causal: bool = False,
                                    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                                    alibi_slopes: Tensor | None = None, deterministic: bool = False,
                                    return_attn_probs: bool = False) -> Any:
    """q: [total_q, Hq, D]; kv: [total_k, 2, Hkv, D]. Returns as flash_attn_varlen_func() does."""
    k, v = _unpacked(kv, -3, 2, "kv")
    return _attention(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs,
                      cu_seqlens_q, cu_seqlens_k)


def flash_attn_varlen_qkvpacked_func(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = 0.0,
                                     softmax_scale: float | None = None, causal: bool = False,
                                     window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                                     alibi_slopes: Tensor | None = None, deterministic: bool = False,
                                     return_attn_probs: bool = False) -> Any:
    """qkv: [total, 3, H, D]; cu_seqlens: int32 [B+1]. Returns as flash_attn_varlen_func() does."""
    q, k, v = _unpacked(qkv, -3, 3, "qkv")
    return _attention(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs,
                      cu_seqlens, cu_seqlens)
