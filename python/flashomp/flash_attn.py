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
torch.compile compiled refuses them. Calls on a key/value cache record no gradient, and pages may have any size. Tables in
CUDA memory are copied to the host, which checks them.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from . import _calls, _core
from .torch._attention import attention, described

__all__ = ["flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
           "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache"]


def _window(window_size: tuple[int, int]) -> tuple[int, int]:
    # flash-attention takes any negative number for "unbounded", and any softcap <= 0 for "off".
    left, right = (-1 if bound < 0 else bound for bound in window_size)
    return left, right


def _tensor(name: str, given: Any) -> Tensor:
    """What was given, without its gradient: calls on a cache record none."""
    if not isinstance(given, Tensor):
        raise TypeError(f"{name} was {described(given)}; it must be a tensor of PyTorch.")
    return given.detach()


def _table(name: str, given: Any) -> Tensor:
    """A table or lengths where the host reads them."""
    return _tensor(name, given).cpu().contiguous()


def _slopes(given: Any) -> Any:
    """flash-attention takes slopes that require a gradient, and computes none."""
    return given.detach() if isinstance(given, Tensor) else given


def _lse(lse: Tensor) -> Tensor:
    """As flash-attention: +inf for a row without keys, so that exp(score - lse) is 0 there, and for one with a NaN."""
    return torch.where(lse > -math.inf, lse, math.inf)


def _in_use(packed: Tensor, starts: Tensor) -> Tensor:
    """The rows of a packed tensor that its sequences have; all where an argument is not as it must be, which the library
    says, and where PyTorch traces, which cannot look at numbers."""
    if (torch.compiler.is_compiling() or type(starts) is not Tensor or not isinstance(packed, Tensor) or starts.dim() != 1
            or starts.numel() == 0 or packed.dim() == 0):
        return packed
    end = int(starts[-1])
    return packed[:end] if 0 <= end < packed.size(0) else packed


def _with_rows_behind(o: Tensor, lse: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Packed o and lse with the rows of q that no sequence has."""
    if rows:
        o = torch.nn.functional.pad(o, (0, 0, 0, 0, 0, rows))
        lse = torch.nn.functional.pad(lse, (0, rows), value=-math.inf)
    return o, lse


def _attention(q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float | None, causal: bool,
               window_size: tuple[int, int], softcap: float, alibi_slopes: Tensor | None, return_attn_probs: bool,
               cu_seqlens_q: Tensor | None = None, cu_seqlens_k: Tensor | None = None) -> Any:
    left, right = _window(window_size)
    behind = 0
    if isinstance(cu_seqlens_q, Tensor) and isinstance(cu_seqlens_k, Tensor):
        cu_seqlens_q, cu_seqlens_k = cu_seqlens_q.cpu(), cu_seqlens_k.cpu()
        used = _in_use(q, cu_seqlens_q)
        if used is not q:
            q, behind = used, q.size(0) - used.size(0)
        k, v = _in_use(k, cu_seqlens_k), _in_use(v, cu_seqlens_k)
    o, lse = attention(q, k, v, scale=softmax_scale, causal="bottom_right" if causal else "none", window=(left, right),
                       softcap=max(softcap, 0.0), alibi_slopes=_slopes(alibi_slopes), cu_seqlens_q=cu_seqlens_q,
                       cu_seqlens_k=cu_seqlens_k, dropout=dropout_p, return_lse=True)
    o, lse = _with_rows_behind(o, lse, behind)
    return (o, _lse(lse), None) if return_attn_probs else o


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
    block_table: int32 [B, pages]: k and v are pages [pages, page_size, Hkv, D], and cu_seqlens_k says how long sequences are.
    Returns out, or (out, softmax_lse [Hq, total_q], None)."""
    if block_table is not None:
        starts_q, starts_k = _table("cu_seqlens_q", cu_seqlens_q), _table("cu_seqlens_k", cu_seqlens_k)
        rows = _in_use(_tensor("q", q), starts_q)
        left, right = _window(window_size)
        seed = int(torch.randint(0, 2**63 - 1, (), device="cpu")) if dropout_p > 0.0 else 0
        o, lse = _calls.attention(rows, _tensor("k", k), _tensor("v", v), scale=softmax_scale,
                                  causal="bottom_right" if causal else "none", window=(left, right),
                                  softcap=max(softcap, 0.0), alibi_slopes=_slopes(alibi_slopes), dropout=dropout_p,
                                  seed=seed, cu_seqlens_q=starts_q, cache_seqlens=starts_k[1:] - starts_k[:-1],
                                  block_table=_table("block_table", block_table), return_lse=True)
        o, lse = _with_rows_behind(o, lse, q.size(0) - rows.size(0))
        return (o, _lse(lse), None) if return_attn_probs else o
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


def _mask_of_leftpad(leftpad: Any, q: Tensor, k_cache: Tensor, block_table: Tensor | None) -> Tensor:
    """Hides the rows before each sequence's first: neither causal masks nor windows nor ALiBi see a difference to a cache
    that begins there, since all of them count from the last key."""
    first = _table("cache_leftpad", leftpad)
    if first.dtype not in (torch.int32, torch.int64) or first.shape != q.shape[:1]:
        raise _core.Error(f"cache_leftpad is {first.dtype} of shape {list(first.shape)}; it must be torch.int32 of shape "
                          f"{list(q.shape[:1])}.")
    keys = k_cache.shape[1] * (1 if block_table is None else block_table.shape[1])
    if first.numel() and not 0 <= int(first.min()) <= int(first.max()) <= keys:
        raise _core.Error(f"cache_leftpad is {int(first.min())} to {int(first.max())}; allowed are 0 to {keys}, the rows of "
                          "a sequence's cache.")
    return (torch.arange(keys) >= first[:, None]).to(q.device)


def flash_attn_with_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None,
                            v: Tensor | None = None, rotary_cos: Tensor | None = None,
                            rotary_sin: Tensor | None = None, cache_seqlens: int | Tensor | None = None,
                            cache_batch_idx: Tensor | None = None, cache_leftpad: Tensor | None = None,
                            block_table: Tensor | None = None, softmax_scale: float | None = None,
                            causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                            rotary_interleaved: bool = True, alibi_slopes: Tensor | None = None, num_splits: int = 0,
                            return_softmax_lse: bool = False) -> Any:
    """q: [B, Nq, Hq, D]; k_cache, v_cache: [caches, Nk, Hkv, D], or pages [pages, page_size, Hkv, D] with block_table
    int32 [B, max_pages]; cache_seqlens: int32 [B] or a number.

    k, v: [B, N, Hkv, D] are written to the caches first, behind cache_seqlens keys, k and q turned by rotary_cos and
    rotary_sin [positions, rotary_dim/2]. cache_leftpad: int32 [B], the rows of its cache at which each sequence begins;
    those before are hidden, and places and positions are counted from the cache's first row. flashomp splits keys by
    itself, and num_splits changes nothing. Returns out, or (out, softmax_lse [B, Hq, Nq]). Records no gradient.
    """
    if (k is None) != (v is None):
        raise _core.Error("k and v must be given together.")
    if k is None and rotary_cos is not None:
        raise _core.Error("rotary_cos was given without k and v; it turns new keys.")
    q, k_cache, v_cache = _tensor("q", q), _tensor("k_cache", k_cache), _tensor("v_cache", v_cache)
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache.dtype != q.dtype:
            raise _core.Error(f"{name} is {cache.dtype}, but q is {q.dtype}; they must have one dtype here, where no scale can be "
                              "given. flashomp.append() and flashomp.attention() take caches of 8 bits.")
    left, right = _window(window_size)
    alignment: Literal["none", "bottom_right"] = "bottom_right" if causal else "none"
    lengths = None
    if isinstance(cache_seqlens, Tensor):
        lengths = _table("cache_seqlens", cache_seqlens)
    elif cache_seqlens is not None:
        lengths = torch.full((q.shape[0],), cache_seqlens, dtype=torch.int32)
    tables: dict[str, Any] = {"cache_batch_index": cache_batch_idx, "block_table": block_table}
    tables = {name: None if table is None else _table(name, table) for name, table in tables.items()}
    options: dict[str, Any] = {"scale": softmax_scale, "causal": alignment, "window": (left, right),
                               "softcap": max(softcap, 0.0), "alibi_slopes": _slopes(alibi_slopes)}
    if cache_leftpad is not None:
        options["key_padding_mask"] = _mask_of_leftpad(cache_leftpad, q, k_cache, tables["block_table"])
    if k is not None and v is not None:
        if lengths is None:
            raise _core.Error("cache_seqlens was not given; new keys need the lengths that the caches have.")
        # Without queries, so that what attention refuses is refused before the caches change.
        _calls.attention(q[:, :0], k_cache, v_cache, cache_seqlens=lengths, **options, **tables)
        turned = _calls.append(_tensor("k", k), _tensor("v", v), k_cache, v_cache, q=None if rotary_cos is None else q,
                               rotary_cos=rotary_cos, rotary_sin=rotary_sin, rotary_interleaved=rotary_interleaved,
                               causal=alignment, window=(left, right), cache_seqlens=lengths, **tables)
        q = q if turned is None else turned
        lengths = lengths + k.shape[1]
    o, lse = _calls.attention(q, k_cache, v_cache, cache_seqlens=lengths, **options, **tables, return_lse=True)
    return (o, _lse(lse)) if return_softmax_lse else o
