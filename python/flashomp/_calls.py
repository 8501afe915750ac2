"""The library's calls on tensors of any framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from . import _core
from ._options import Options, takes_options

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Gradients(NamedTuple):
    """Gradients of a call; dbias and dsink are None unless asked for."""

    dq: Any
    dk: Any
    dv: Any
    dbias: Any = None
    dsink: Any = None


def _wanted(gradient: Any) -> Any:
    """dbias or dsink as _core takes it: None for a new tensor, False for none, or the tensor to write to."""
    return None if gradient is True else False if gradient is None else gradient


def _asked(name: str, asked: Any) -> Any:
    """The same where a call is prepared, which has no tensors to write to."""
    if asked is not True and asked is not False and asked is not None:
        raise _core.Error(f"{name} was a {type(asked).__name__}; prepare_backward() takes True or False, and run() takes "
                          "the tensor to write to.")
    return _wanted(asked)


@takes_options()
def attention(q: Any, k: Any, v: Any, *, out: Any = None, lse: Any = None, return_lse: bool = False,
              return_report: bool = False, **options: Unpack[Options]) -> Any:
    """o = softmax(scale·q·kᵀ, masked)·v, exactly, without storing an Nq x Nk matrix.

    q: [B, Nq, Hq, head_dim]; k: [B, Nk, Hkv, head_dim]; v: [B, Nk, Hkv, head_dim_v]; Hkv divides Hq. All three are
    float32, bfloat16, float16 or, on Hopper GPUs, float8_e4m3; k and v may be a key/value cache of float8_e4m3 or int8
    beside a q of more bits. Any strides are allowed if the last is 1 and none is
    negative.
    out: the tensor that o is written to, [B, Nq, Hq, head_dim_v] in the dtype of q; a new one of the framework of q.
    lse: the tensor that the log-sum-exp of each row is written to, float32 [B, Hq, Nq]; -inf for a row without keys.
    return_lse: returns (o, lse); return_report: adds a dictionary that says what ran where.
    dropout: seed and offset are 0 where they are not given, so that such calls all draw the same mask.

    Raises Error (a ValueError), with nothing written, when an argument is not as documented; TypeError for what is no
    tensor; RunFailure (a RuntimeError) when the machine fails. Records no gradient: see flashomp.torch.attention. Calls
    release the GIL.
    """
    return _core.attention(q, k, v, out, lse, return_lse, return_report, True, options)


@takes_options()
def attention_backward(q: Any, k: Any, v: Any, o: Any, lse: Any, dout: Any, *, dq: Any = None, dk: Any = None,
                       dv: Any = None, dbias: Any = False, dsink: Any = False, return_report: bool = False,
                       **options: Unpack[Options]) -> Any:
    """Gradients of attention() with respect to q, k and v, as Gradients(dq, dk, dv, dbias, dsink).

    q, k, v, o, lse: what attention() was given and wrote, with the same options; dout: the gradient of o, as o.
    dq, dk, dv: tensors to write to, as q, k and v; new ones where they are not given.
    dbias, dsink: True, or a tensor to write to, for the gradients of bias and sink.
    return_report: returns (gradients, report). Deterministic: the same inputs give the same bits.

    Raises as attention() does.
    """
    gradients = (dq, dk, dv, _wanted(dbias), _wanted(dsink))
    result = _core.attention_backward((q, k, v, o, lse, dout), gradients, return_report, True, options)
    return (Gradients(*result[0]), result[1]) if return_report else Gradients(*result)


def _only(function: str, allowed: tuple[str, ...], options: Any) -> None:
    for name in options:
        if name not in allowed:
            raise TypeError(f"{function}() has no option {name!r}; its options are {', '.join(allowed)}.")


_MERGE_OPTIONS = ("layout", "backend", "machine", "device", "threads", "stream")


@takes_options(_MERGE_OPTIONS)
def merge(o_a: Any, lse_a: Any, o_b: Any, lse_b: Any, *, out: Any = None, lse_out: Any = None,
          **options: Unpack[Options]) -> tuple[Any, Any]:
    """(o, lse) of attention over the union of two disjoint sets of keys, from the results for each.

    o_a, o_b: [B, Nq, Hq, head_dim_v], float32 or the dtype of the inputs; lse_a, lse_b: float32 [B, Hq, Nq].
    out, lse_out: tensors to write to; they may be those of part a or b themselves.
    Of the options, only those of the signature exist here: the parts have been computed with the others.
    Raises as attention() does.
    """
    _only("merge", _MERGE_OPTIONS, options)
    return _core.merge(o_a, lse_a, o_b, lse_b, out, lse_out, options)


_APPEND_OPTIONS = ("causal", "window", "cu_seqlens_q", "cu_seqlens_k", "cache_seqlens", "cache_batch_index", "block_table",
                   "kv_indptr", "kv_indices", "kv_last_page_len", "k_scale", "v_scale", "layout", "backend", "device",
                   "threads", "stream")


@takes_options(_APPEND_OPTIONS)
def append(k: Any, v: Any, k_cache: Any, v_cache: Any, *, q: Any = None, q_out: Any = None, rotary_cos: Any = None,
           rotary_sin: Any = None, rotary_interleaved: bool = True, **options: Unpack[Options]) -> Any:
    """Writes new keys and values behind those that each sequence has in a cache.

    k, v: [B, N, Hkv, head_dim], or packed [total, Hkv, head_dim] with cu_seqlens_k; k_cache, v_cache: the cache, in the
    forms that attention() takes, written in place. Row i goes to place cache_seqlens[b] + i, where cache_seqlens counts
    the keys before the call; the compressed form counts those after the call. Raising cache_seqlens is the caller's.
    v and v_cache may both be None: the values are then a view of k_cache, as in a latent cache, and k alone is written.
    Where such a cache has 8 bits, attention() needs its scales as k_scale and as v_scale.
    rotary_cos, rotary_sin: [positions, rotary_dim/2], float32 or the dtype of k: k turns on the way, by the angles of its
    place, in pairs of neighbours (rotary_interleaved) or of element i and i + rotary_dim/2.
    k_scale, v_scale: of a cache of float8_e4m3 or int8, whose elements become new rows divided by them, rounded to
    nearest even, and at most the largest number of the type.
    q: [B, Nq, Hq, head_dim]: turns too, row i as new row i with causal or window, else all rows as new row 0. Returns
    the turned q, written to q_out where that is given (q itself, too), or None.
    Raises as attention() does: nothing is written where a table points outside, or two sequences share what is written.
    """
    _only("append", _APPEND_OPTIONS, options)
    if q is None and q_out is not None:
        raise _core.Error("q_out was given without q; allowed is q_out with q.")
    return _core.append((k, v, k_cache, v_cache, rotary_cos, rotary_sin, q, q_out), rotary_interleaved, options)


def dropout_mask(shape: tuple[int, int, int, int] | None = None, *, dropout: float, seed: int = 0, offset: int = 0,
                 out: Any = None) -> Any:
    """The mask that a call with this dropout draws: bool [B, Hq, Nq, Nk], True where a probability is kept.

    shape: of the mask, a NumPy array then; out: a tensor to write to instead.
    Raises Error when an argument is not as documented.
    """
    if (shape is None) == (out is None):
        raise _core.Error("dropout_mask() takes a shape or out; exactly one of them must be given.")
    if out is None:
        import numpy

        try:
            out = numpy.empty(shape, dtype=bool)
        except (TypeError, ValueError):
            raise _core.Error(f"shape was {shape!r}; it must be (B, Hq, Nq, Nk), four integers of 0 or more.") from None
    _core.dropout_mask(out, {"dropout": dropout, "seed": seed, "offset": offset})
    return out


class PreparedForward:
    """A forward call that is decided once and run many times; made by prepare().

    One thread at a time may run a prepared call; another gets an Error. Runs on several CUDA streams have a workspace
    each, so that they may overlap; the first run on a stream allocates it.
    """

    def __init__(self, core: _core.PreparedForward) -> None:
        self._core = core

    def run(self, q: Any, k: Any, v: Any, *, out: Any = None, lse: Any = None, return_lse: bool = False,
            return_report: bool = False, **options: Unpack[Options]) -> Any:
        """What attention() returns, with the same bits, for tensors of the prepared shapes, strides and dtypes.

        options: tensors at other addresses, or another seed and offset; all other options are as prepared. The values
        of cu_seqlens are those that prepare() read.
        """
        return self._core.run(q, k, v, out, lse, return_lse, return_report, options)

    @property
    def workspace_bytes(self) -> int:
        """Bytes that the call keeps for its runs, once for each CUDA stream that it ran on."""
        return self._core.workspace_bytes


class PreparedBackward:
    """A backward call that is decided once and run many times; made by prepare_backward()."""

    def __init__(self, core: _core.PreparedBackward, gradients: tuple[Any, Any]) -> None:
        self._core = core
        self._gradients = gradients  # dbias and dsink, as prepared

    def run(self, q: Any, k: Any, v: Any, o: Any, lse: Any, dout: Any, *, dq: Any = None, dk: Any = None,
            dv: Any = None, dbias: Any = None, dsink: Any = None, return_report: bool = False,
            **options: Unpack[Options]) -> Any:
        """What attention_backward() returns, for tensors of the prepared shapes. dbias, dsink: tensors to write to, or
        True for new ones, as they are where prepare_backward() was asked for them."""
        gradients = (dq, dk, dv, *(asked if given is None else _wanted(given)
                                   for asked, given in zip(self._gradients, (dbias, dsink))))
        result = self._core.run((q, k, v, o, lse, dout), gradients, return_report, options)
        return (Gradients(*result[0]), result[1]) if return_report else Gradients(*result)

    @property
    def workspace_bytes(self) -> int:
        """Bytes that the call keeps for its runs, once for each CUDA stream that it ran on."""
        return self._core.workspace_bytes


@takes_options()
def prepare(q: Any, k: Any, v: Any, **options: Unpack[Options]) -> PreparedForward:
    """Decides a forward call for tensors like q, k and v, and allocates its workspace.

    Raises Error when an argument is not as documented.
    """
    return PreparedForward(_core.prepare(q, k, v, options))


@takes_options()
def prepare_backward(q: Any, k: Any, v: Any, o: Any, lse: Any, dout: Any, *, dbias: bool = False, dsink: bool = False,
                     **options: Unpack[Options]) -> PreparedBackward:
    """Decides a backward call for tensors like these, and allocates its workspace; dbias, dsink: also their gradients.

    Raises Error when an argument is not as documented.
    """
    asked = (_asked("dbias", dbias), _asked("dsink", dsink))
    return PreparedBackward(_core.prepare_backward((q, k, v, o, lse, dout), (None, None, None, *asked), options), asked)
