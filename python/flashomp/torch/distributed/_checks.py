"""Checks of arguments: by each rank alone, and of what the ranks have told one another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

import torch
from torch import Tensor

from ... import _calls, _core
from .. import _attention as whole

if TYPE_CHECKING:
    from ._given import Given


def check(given: Given) -> None:
    """Raises Error, or TypeError for what is no tensor, where this rank's arguments are not as documented. The tensors have
    autocast's dtype from here on."""
    for name in ("scale", "softcap", "dropout"):
        if isinstance(getattr(given, name), Tensor):
            raise _core.Error(f"{name} is a tensor, for which flashomp computes no gradient; give float({name}).")
    optional = {name: getattr(given, name) for name in ("bias", "key_padding_mask", "mask", "alibi_slopes", "sink",
                                                        "cu_seqlens_q", "cu_seqlens_k")}
    whole._check(given.q, given.k, given.v, given.window, "bshd", **optional)
    given.q, given.k, given.v = whole.autocast(given.q, given.k, given.v)
    given.bias = whole.autocast_bias(given.bias, given.q)
    if given.alibi_slopes is not None and given.alibi_slopes.requires_grad and torch.is_grad_enabled():
        raise _core.Error("alibi_slopes requires a gradient, which flashomp does not compute; give "
                          "alibi_slopes.detach().")
    packed = given.cu_seqlens_q is not None
    if packed != (given.cu_seqlens_k is not None):
        raise _core.Error("Of cu_seqlens_q and cu_seqlens_k one was given; packed sequences need both.")
    for name in ("q", "k", "v"):
        axes = getattr(given, name).dim()
        if axes != (3 if packed else 4):
            raise _core.Error(f"{name} has {axes} axes; it must have 4, or 3 and cu_seqlens where sequences are packed.")
    axis = 0 if packed else 1
    if given.k.size(axis) != given.v.size(axis):
        raise _core.Error(f"v has {given.v.size(axis)} rows but k has {given.k.size(axis)}; they must be equal.")
    if packed:
        _check_packed(given)
    heads_ranks = given.heads_ranks or 1
    if heads_ranks > given.q.size(-2):
        raise _core.Error(f"q has {given.q.size(-2)} heads, which {heads_ranks} ranks cannot share out; give a scheme with at "
                          "most as many ranks for heads.")
    for name in ("bias", "mask"):
        x = getattr(given, name)
        if x is not None and x.dim() != 4:
            raise _core.Error(f"{name} has {x.dim()} axes; it must have 4, [1|B, 1|Hq, 1|Nq of this rank, 1|Nk].")
    if given.mask is not None and given.mask.dtype != torch.bool:
        raise _core.Error(f"mask is {given.mask.dtype}; over several ranks it must be torch.bool.")
    _trial(given)


def _check_packed(given: Given) -> None:
    counts = []
    for name, x in (("q", given.q), ("k", given.k)):
        starts = getattr(given, f"cu_seqlens_{name}")
        if starts.dim() != 1 or starts.dtype != torch.int32 or starts.numel() == 0:
            raise _core.Error(f"cu_seqlens_{name} is {starts.dtype} of shape {list(starts.shape)}; it must be torch.int32 of "
                              "shape [sequences + 1].")
        values = starts.tolist()
        if values[0] != 0 or any(end < start for start, end in zip(values[:-1], values[1:])):
            raise _core.Error(f"cu_seqlens_{name} was {whole.described(values)}; it must begin at 0 and not descend.")
        if given.cu_seqlens_are == "local" and values[-1] != x.size(0):
            raise _core.Error(f"cu_seqlens_{name} ends at {values[-1]} but {name} has {x.size(0)} rows; they must be equal.")
        counts.append(len(values) - 1)
    if counts[0] != counts[1]:
        raise _core.Error(f"cu_seqlens_k has {counts[1]} sequences but cu_seqlens_q has {counts[0]}; they must be equal.")
    for name, allowed in (("alibi_slopes", (counts[0],)), ("key_padding_mask", (counts[0],)), ("bias", (1, counts[0])),
                          ("mask", (1, counts[0]))):
        x = getattr(given, name)
        if x is not None and x.dim() > 1 and x.size(0) not in allowed:
            raise _core.Error(f"{name} has {x.size(0)} sequences but cu_seqlens_q has {counts[0]}; they must be equal.")


def _trial(given: Given) -> None:
    """A call without rows: the library checks all that does not depend on lengths, and computes nothing."""
    q, k, v = (x.detach() for x in (given.q, given.k, given.v))
    packed = given.cu_seqlens_q is not None
    if packed:
        q, k, v = q[None], k[None], v[None]
    tensors: dict[str, Any] = {}
    for name, lengths in (("bias", 2), ("mask", 2), ("key_padding_mask", 1), ("alibi_slopes", 0), ("sink", 0)):
        x = getattr(given, name)
        if x is not None:
            of_one = x.detach()[:1] if packed and name != "sink" and x.dim() > 1 else x.detach()
            tensors[name] = of_one[(..., *(slice(0, 0),) * lengths)]
    seed = None if given.seed is None else whole._seed_of(given.seed).tolist()
    _calls.attention(q[:, :0], k[:, :0], v[:, :0], **tensors, **given.options(seed))


def what_must_agree(given: Given) -> dict[str, Any]:
    """Names and values that ranks compare, before anything moves."""
    batch = {} if given.cu_seqlens_q is not None else {"the batch of q": given.q.size(0)}
    same: dict[str, Any] = {"layout": given.layout, "scheme": given.scheme, "heads_ranks": given.heads_ranks,
                            "whether sequences are packed": given.cu_seqlens_q is not None, **batch}
    for name in ("q", "k", "v"):
        x = getattr(given, name)
        same[f"{name}'s dtype"] = str(x.dtype)
        same[f"{name}'s device"] = x.device.type
        same[f"{name}'s heads and head_dim"] = list(x.shape[-2:])
    for name in ("scale", "causal", "softcap", "dropout", "cu_seqlens_are"):
        same[name] = getattr(given, name)
    same["window"] = [int(bound) for bound in given.window]
    same["seed"] = None if given.seed is None else whole._seed_of(given.seed).tolist()
    # Extents, since a rank's values may be its own; of bias and mask those axes that are whole on every rank.
    for name in ("bias", "mask", "key_padding_mask", "alibi_slopes", "sink"):
        x = getattr(given, name)
        extents = [] if x is None else list(x.shape)
        if name in ("bias", "mask") and x is not None and given.cu_seqlens_q is None:
            del extents[2]
        same[name] = None if x is None else [str(x.dtype), *extents]
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        x = getattr(given, name)
        values = None if x is None else x.tolist()
        same[name] = len(values) - 1 if values and given.cu_seqlens_are == "local" else values
    # A rank alone in its backward pass would wait for ever.
    watched = ("q", "k", "v", "bias", "sink")
    same["which of q, k, v, bias, sink require gradients"] = [
        name for name in watched if torch.is_grad_enabled() and getattr(given, name) is not None
        and getattr(given, name).requires_grad]
    return same


def has_rows(name: str, extents: Sequence[int | None], rows: Sequence[int], longest: int | None) -> bool:
    """Whether a bias or mask has the rows of each rank, and not one row for all, or where sequences are packed those of the
    longest sequence. Every rank finds the same."""
    if extents[0] is None:
        return False
    if longest is not None:
        if extents[0] not in (1, longest):
            raise _core.Error(f"{name} has {extents[0]} rows; it must have 1 or {longest}, those of the longest sequence.")
        return False
    if all(extent == 1 for extent in extents) and any(here != 1 for here in rows):
        return False
    for rank, (extent, here) in enumerate(zip(extents, rows)):
        if extent != here:
            raise _core.Error(f"{name} has {extent} rows on rank {rank} but q has {here} there; they must be equal, or 1 on "
                              "all ranks.")
    return True


def key_extents(given: Given, keys: int) -> None:
    """Raises Error where options do not have all keys of the whole sequence, or of the longest one. Every rank finds the
    same."""
    for name, allowed in (("bias", (1, keys)), ("mask", (1, keys)), ("key_padding_mask", (keys,))):
        x = getattr(given, name)
        if x is not None and x.size(-1) not in allowed:
            whose = "all ranks together" if given.cu_seqlens_q is None else "the longest sequence"
            wanted = " or ".join(map(str, allowed))
            raise _core.Error(f"{name} has {x.size(-1)} keys; it must have {wanted}, those of {whose}.")
