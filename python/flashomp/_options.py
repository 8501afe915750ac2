"""The options of a call: names, defaults and types, once for all functions that take them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Callable, Literal, Mapping, Sequence, TypedDict, TypeVar

if TYPE_CHECKING:
    from typing import Union

    Device = Union[Literal["auto", "host"], int]

Function = TypeVar("Function", bound=Callable[..., Any])


class Options(TypedDict, total=False):
    """Keywords that every call takes; None stands for "not given". Tensors are of the framework and on the device of q.

    scale: multiplies q·k; default 1/sqrt(head_dim).
    causal: "none", "top_left" (query i sees keys j <= i) or "bottom_right" (j <= i + Nk - Nq).
    window: (left, right): query i sees keys from i + Nk - Nq - left to i + Nk - Nq + right; -1 is unbounded.
    softcap: c > 0: scores become c·tanh(score/c); 0 is off.
    alibi_slopes: float32 [Hq] or [B, Hq]: score -= slope·|i + Nk - Nq - j|.
    bias: float32 or the dtype of q, [1|B, 1|Hq, 1|Nq, 1|Nk]: added to the scores.
    key_padding_mask: bool [B, Nk]: False hides the key.
    mask: bool [1|B, 1|Hq, 1|Nq, 1|Nk] of any strides: False hides the pair. Or uint8 [1|B, 1|Hq, 1|Nq, ceil(Nk/8)], a bit
        a pair, as numpy.packbits(mask, axis=-1, bitorder="little") makes it.
    block_mask: a BlockMask of [1|B, 1|Hq, Nq, Nk], whose hidden blocks are neither loaded nor computed.
    positions_q, positions_k: (whole, [(first, count), ...]): the rows of q, or of k and v, are one or two stretches of a
        sequence of `whole` rows, in order; masks, ALiBi and dropout go by positions in it, so that the results of all
        shards of the keys, put together by merge(), are those of one call. Backward takes the merged o and lse.
    first_sequence, first_head: of some sequences and query heads of a larger call, the numbers of their first ones there, so
        that dropout draws what it draws there.
    cu_seqlens_q, cu_seqlens_k: int32 [B+1], on the CPU: q is packed [total_q, Hq, head_dim], k and v [total_k, Hkv, ...].
    sink: float32 [Hq]: a logit in the denominator and the LSE only.
    cache_seqlens: int32 [B], on the CPU: k and v are a key/value cache, of which sequence b has so many keys.
    cache_batch_index: int32 [B], on the CPU: k and v are [caches, Nk, Hkv, ...], and sequence b has this one.
    block_table: int32 [B, max_pages], on the CPU: k and v are pages [pages, page_size, Hkv, ...], these each sequence's.
    kv_indptr, kv_indices, kv_last_page_len: int32 [B+1], [indices], [B], on the CPU: the same in the compressed form.
    q_scale, k_scale, v_scale: float32 [heads] or [B, heads], for float8_e4m3 only: factors of the elements. k_scale and
    v_scale also for a key/value cache of float8_e4m3 or int8 beside a q of more bits: [Hkv] or [k.shape[0], Hkv], of
    each sequence, cache or page.
    dropout: chance that a probability is dropped, in [0, 1); the mask depends on seed and offset, integers below 2^64.
    layout: "bshd" ([batch, seqlen, heads, head_dim]) or "bhsd", of all tensors with these four axes.
    backend: "auto", "openmp", "reference" (slow, float64) or "cuda".
    machine: "auto", "host", "plain", "tensor" or "hopper".
    device: "auto", "host", or the number of a GPU. Tensors in CUDA memory run where they are.
    threads: threads of the host; 0 takes OMP_NUM_THREADS.
    stream: address of the CUDA stream, as an integer; PyTorch's current stream where it is not given.
    tiling: {"resident_rows": 0, "stream_rows": 0, "teams": 0, "team_threads": 0, "global_memory": False}, for tests.
    """

    scale: float | None
    causal: Literal["none", "top_left", "bottom_right"]
    window: tuple[int, int]
    softcap: float
    alibi_slopes: Any
    bias: Any
    key_padding_mask: Any
    mask: Any
    block_mask: Any
    positions_q: tuple[int, Sequence[tuple[int, int]]]
    positions_k: tuple[int, Sequence[tuple[int, int]]]
    first_sequence: int
    first_head: int
    cu_seqlens_q: Any
    cu_seqlens_k: Any
    sink: Any
    q_scale: Any
    k_scale: Any
    v_scale: Any
    cache_seqlens: Any
    cache_batch_index: Any
    block_table: Any
    kv_indptr: Any
    kv_indices: Any
    kv_last_page_len: Any
    dropout: float
    seed: int
    offset: int
    layout: Literal["bshd", "bhsd"]
    backend: Literal["auto", "openmp", "reference", "cuda"]
    machine: Literal["auto", "host", "plain", "tensor", "hopper"]
    device: Device
    threads: int
    stream: int | None
    tiling: Mapping[str, int]


#: What each option is where it is not given.
DEFAULTS: dict[str, Any] = {
    "scale": None, "causal": "none", "window": (-1, -1), "softcap": 0.0, "alibi_slopes": None, "bias": None,
    "key_padding_mask": None, "mask": None, "block_mask": None, "positions_q": None, "positions_k": None,
    "first_sequence": 0, "first_head": 0, "cu_seqlens_q": None, "cu_seqlens_k": None, "sink": None, "q_scale": None,
    "k_scale": None, "v_scale": None, "cache_seqlens": None, "cache_batch_index": None, "block_table": None,
    "kv_indptr": None, "kv_indices": None, "kv_last_page_len": None, "dropout": 0.0, "seed": 0, "offset": 0,
    "layout": "bshd", "backend": "auto", "machine": "auto", "device": "auto", "threads": 0, "stream": None, "tiling": None,
}


def takes_options(names: Sequence[str] | None = None) -> Callable[[Function], Function]:
    """Shows the options in a function's signature and documentation, in place of its **options."""
    shown = list(DEFAULTS) if names is None else names

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        options = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=DEFAULTS[name],
                                     annotation=Options.__annotations__[name]) for name in shown]
        function.__signature__ = signature.replace(parameters=own + options)  # type: ignore[attr-defined]
        function.__doc__ = inspect.cleandoc(function.__doc__ or "") + "\n\n" + inspect.cleandoc(Options.__doc__ or "")
        return function

    return decorate
