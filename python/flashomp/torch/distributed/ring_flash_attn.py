"""ring-flash-attention's functions (github.com/zhuzilin/ring-flash-attention) by name, argument and default.

    from flashomp.torch.distributed import zigzag_ring_flash_attn_func  # instead of: from ring_flash_attn import ...

Shapes: q [B, N_local, Hq, D], k and v [B, N_local, Hkv, D]; qkv [B, N_local, 3, H, D]; kv [B, N_local, 2, Hkv, D]. In the
varlen functions every sequence is shared out over the ranks by itself, and cu_seqlens, int32 [sequences + 1], are those of
this rank's rows: q [rows, Hq, D], k and v [rows, Hkv, D], qkv [rows, 3, H, D], kv [rows, 2, Hkv, D].

Beyond what these functions have there: lengths need not be divisible by anything, nor be equal; float32; causal=False also
with zigzag; window_size and alibi_slopes mean what they mean for one process; dropout draws the mask of one process. Not as
there: softmax_lse is [B, Hq, N_local] or [Hq, rows], and +inf for a row without keys; max_seqlen and deterministic change
nothing. The stripe functions are not here, since a shard is at most two stretches of a sequence: zigzag shares out the work
as evenly. Nor is llama3_flash_attn_varlen_func: attention() with scheme="all_gather" and cu_seqlens of the whole computes
what it does.
Raises as attention() does.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...flash_attn import _lse, _slopes, _unpacked, _window
from ._attention import attention
from ._exchange import Group, agree, guarded
from ._layout import Layout

__all__ = ["ring_flash_attn_func", "ring_flash_attn_kvpacked_func", "ring_flash_attn_qkvpacked_func",
           "ring_flash_attn_varlen_func", "ring_flash_attn_varlen_kvpacked_func",
           "ring_flash_attn_varlen_qkvpacked_func", "zigzag_ring_flash_attn_func",
           "zigzag_ring_flash_attn_kvpacked_func", "zigzag_ring_flash_attn_qkvpacked_func",
           "zigzag_ring_flash_attn_varlen_func", "zigzag_ring_flash_attn_varlen_kvpacked_func",
           "zigzag_ring_flash_attn_varlen_qkvpacked_func"]


def _arguments(tensors: tuple[Tensor, ...], window: tuple[int, int]) -> tuple[tuple[Tensor, ...], tuple[int, int]]:
    """q, k and v of (q, k, v), (q, kv) or (qkv,), and the window with -1 for unbounded."""
    if len(tensors) == 1:
        tensors = _unpacked(tensors[0], -3, 3, "qkv")
    elif len(tensors) == 2:
        tensors = (tensors[0], *_unpacked(tensors[1], -3, 2, "kv"))
    return tensors, _window(window)


def _call(layout: Layout, tensors: tuple[Tensor, ...], dropout_p: float, softmax_scale: float | None, causal: bool,
          window_size: tuple[int, int], alibi_slopes: Tensor | None, return_attn_probs: bool, group: Group,
          cu_seqlens: Tensor | None = None) -> Any:
    arguments, error = guarded(_arguments, tensors, window_size)
    if error is not None:
        agree(group, {}, None, error)  # raises, and so does attention() on the other ranks, which hear of the error there
    (q, k, v), window = arguments
    o, lse = attention(q, k, v, group=group, layout=layout, scale=softmax_scale, causal="bottom_right" if causal else "none",
                       window=window, alibi_slopes=_slopes(alibi_slopes), dropout=dropout_p,
                       cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens, cu_seqlens_are="local", return_lse=True)
    return (o, _lse(lse), None) if return_attn_probs else o


def ring_flash_attn_func(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                         causal: bool = False, window_size: tuple[int, int] = (-1, -1),
                         alibi_slopes: Tensor | None = None, deterministic: bool = False,
                         return_attn_probs: bool = False, group: Group = None) -> Any:
    """Ring attention over contiguous shards; returns out, or (out, softmax_lse, None)."""
    return _call("contiguous", (q, k, v), dropout_p, softmax_scale, causal, window_size, alibi_slopes,
                 return_attn_probs, group)


def ring_flash_attn_kvpacked_func(q: Tensor, kv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                                  causal: bool = False, window_size: tuple[int, int] = (-1, -1),
                                  alibi_slopes: Tensor | None = None, deterministic: bool = False,
                                  return_attn_probs: bool = False, group: Group = None) -> Any:
    """Ring attention over contiguous shards; returns out, or (out, softmax_lse, None)."""
    return _call("contiguous", (q, kv), dropout_p, softmax_scale, causal, window_size, alibi_slopes,
                 return_attn_probs, group)


def ring_flash_attn_qkvpacked_func(qkv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                                   causal: bool = False, window_size: tuple[int, int] = (-1, -1),
                                   alibi_slopes: Tensor | None = None, deterministic: bool = False,
                                   return_attn_probs: bool = False, group: Group = None) -> Any:
    """Ring attention over contiguous shards; returns out, or (out, softmax_lse, None)."""
    return _call("contiguous", (qkv,), dropout_p, softmax_scale, causal, window_size, alibi_slopes,
                 return_attn_probs, group)


def ring_flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seqlen: int,
                                dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
                                window_size: tuple[int, int] = (-1, -1), alibi_slopes: Tensor | None = None,
                                deterministic: bool = False, return_attn_probs: bool = False,
                                group: Group = None) -> Any:
    """Varlen ring attention over contiguous shards; returns out, or (out, softmax_lse, None)."""
    return _call("contiguous", (q, k, v), dropout_p, softmax_scale, causal, window_size, alibi_slopes,
                 return_attn_probs, group, cu_seqlens)


def ring_flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, cu_seqlens: Tensor, max_seqlen: int,
                                         dropout_p: float = 0.0, softmax_scale: float | None = None,
                                         causal: bool = False, window_size: tuple[int, int] = (-1, -1),
                                         alibi_slopes: Tensor | None = None, deterministic: bool = False,
                                         return_attn_probs: bool = False, group: Group = None) -> Any:
    """Varlen ring attention over contiguous shards; returns out, or (out, softmax_lse, None)."""
    return _call("contiguous", (q, kv), dropout_p, softmax_scale, causal, window_size, alibi_slopes,
                 return_attn_probs, group, cu_seqlens)


def ring_flash_attn_varlen_qkvpacked_func(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = 0.0,
                                          softmax_scale: float | None = None, causal: bool = False,
                                          window_size: tuple[int, int] = (-1, -1), alibi_slopes: Tensor | None = None,
                                          deterministic: bool = False, return_attn_probs: bool = False,
                                          group: Group = None) -> Any:
    """Varlen ring attention over contiguous shards; returns out, or (out, softmax_lse, None)."""
    return _call("contiguous", (qkv,), dropout_p, softmax_scale, causal, window_size, alibi_slopes,
                 return_attn_probs, group, cu_seqlens)


def zigzag_ring_flash_attn_func(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0,
                                softmax_scale: float | None = None, causal: bool = False,
                                window_size: tuple[int, int] = (-1, -1), alibi_slopes: Tensor | None = None,
                                deterministic: bool = False, return_attn_probs: bool = False,
                                group: Group = None) -> Any:
    """Ring attention over zigzag shards; returns out, or (out, softmax_lse, None)."""
    return _call("zigzag", (q, k, v), dropout_p, softmax_scale, causal, window_size, alibi_slopes,
                 return_attn_probs, group)


def zigzag_ring_flash_attn_kvpacked_func(q: Tensor, kv: Tensor, dropout_p: float = 0.0,
                                         softmax_scale: float | None = None, causal: bool = False,
                                         window_size: tuple[int, int] = (-1, -1), alibi_slopes: Tensor | None = None,
                                         deterministic: bool = False, return_attn_probs: bool = False,
                                         group: Group = None) -> Any:
    """Ring attention over zigzag shards; returns out, or (out, softmax_lse, None)."""
    return _call("zigzag", (q, kv), dropout_p, softmax_scale, causal, window_size, alibi_slopes,
                 return_attn_probs, group)


def zigzag_ring_flash_attn_qkvpacked_func(qkv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                                          causal: bool = False, window_size: tuple[int, int] = (-1, -1),
                                          alibi_slopes: Tensor | None = None, deterministic: bool = False,
                                          return_attn_probs: bool = False, group: Group = None) -> Any:
    """Ring attention over zigzag shards; returns out, or (out, softmax_lse, None)."""
    return _call("zigzag", (qkv,), dropout_p, softmax_scale, causal, window_size, alibi_slopes,
                 return_attn_probs, group)


def zigzag_ring_flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seqlen: int,
                                       dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
                                       window_size: tuple[int, int] = (-1, -1), alibi_slopes: Tensor | None = None,
                                       deterministic: bool = False, return_attn_probs: bool = False,
                                       group: Group = None) -> Any:
    """Varlen ring attention over zigzag shards; returns out, or (out, softmax_lse, None)."""
    return _call("zigzag", (q, k, v), dropout_p, softmax_scale, causal, window_size, alibi_slopes,
                 return_attn_probs, group, cu_seqlens)


def zigzag_ring_flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, cu_seqlens: Tensor, max_seqlen: int,
                                                dropout_p: float = 0.0, softmax_scale: float | None = None,
                                                causal: bool = False, window_size: tuple[int, int] = (-1, -1),
                                                alibi_slopes: Tensor | None = None, deterministic: bool = False,
                                                return_attn_probs: bool = False, group: Group = None) -> Any:
    """Varlen ring attention over zigzag shards; returns out, or (out, softmax_lse, None)."""
    return _call("zigzag", (q, kv), dropout_p, softmax_scale, causal, window_size, alibi_slopes,
                 return_attn_probs, group, cu_seqlens)


def zigzag_ring_flash_attn_varlen_qkvpacked_func(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int,
                                                 dropout_p: float = 0.0, softmax_scale: float | None = None,
                                                 causal: bool = False, window_size: tuple[int, int] = (-1, -1),
                                                 alibi_slopes: Tensor | None = None, deterministic: bool = False,
                                                 return_attn_probs: bool = False, group: Group = None) -> Any:
    """Varlen ring attention over zigzag shards; returns out, or (out, softmax_lse, None)."""
    return _call("zigzag", (qkv,), dropout_p, softmax_scale, causal, window_size, alibi_slopes,
                 return_attn_probs, group, cu_seqlens)
