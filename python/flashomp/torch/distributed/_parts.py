"""A block's part of the result: calls of flashomp on pieces of rows, merged and summed in float32."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterator, Sequence

import torch
from torch import Tensor

from ... import _calls
from .._operators import _unit_stride
from ._layout import Band, Piece
from ._ring import Block

Stretches = Sequence[tuple[int, int]]


@dataclass
class Part:
    """What all calls of a rank share. Tensors have this rank's heads and rows of queries, and all keys; where sequences are
    packed, all rows of the longest one, too.

    heads: of q and of k, for each call; first_head: the number of this rank's first query head among all; packed: whether
    sequences lie in one tensor, one after the other.
    """

    options: dict[str, Any]
    band: Band
    heads: Sequence[tuple[slice, slice]]
    first_head: int
    pieces: Sequence[Piece]
    packed: bool
    alibi_slopes: Tensor | None = None
    bias: Tensor | None = None
    key_padding_mask: Tensor | None = None
    mask: Tensor | None = None
    sink: Tensor | None = None
    # Which pieces and heads have had a call, in this pass. One call of those that are put together gets the sink.
    met: set[tuple[int, int]] = field(default_factory=set)

    def first(self, piece: Piece, heads: slice) -> bool:
        """Whether these rows and heads meet keys for the first time."""
        key = (piece.rows.start, heads.start)
        is_first = key not in self.met
        self.met.add(key)
        return is_first

    def call_options(self, q: Piece, k: Piece, heads: slice, with_sink: bool) -> dict[str, Any]:
        options = dict(self.options, first_sequence=q.sequence, first_head=self.first_head + heads.start)
        for name, piece, length in (("positions_q", q, self.band.lengths_q[q.sequence]),
                                    ("positions_k", k, self.band.lengths_k[k.sequence])):
            if piece.stretches != ((0, length),):
                options[name] = (length, list(piece.stretches))
        if self.alibi_slopes is not None:
            slopes = self.alibi_slopes[..., heads]
            options["alibi_slopes"] = slopes[q.sequence:q.sequence + 1] if self.packed and slopes.dim() == 2 else slopes
        if self.key_padding_mask is not None:
            options["key_padding_mask"] = _select(self._of_sequence(self.key_padding_mask, q), 1, k.stretches)
        if self.mask is not None:
            options["mask"] = self.part_of(self.mask, q, k, heads)
        if self.bias is not None:
            # In float32, so that its gradient is: parts of it are summed.
            options["bias"] = _unit_stride(self.part_of(self.bias, q, k, heads).float())
        if with_sink and self.sink is not None:
            options["sink"] = self.sink[heads]
        return options

    def _of_sequence(self, x: Tensor, q: Piece) -> Tensor:
        """Of packed sequences, that of a piece; x itself where one is for all."""
        return x[q.sequence:q.sequence + 1] if self.packed and x.size(0) > 1 else x

    def _rows(self, q: Piece) -> Stretches:
        """A piece's rows in a bias: those of its tensor, and where sequences are packed their positions."""
        return q.stretches if self.packed else ((q.rows.start, q.rows.stop - q.rows.start),)

    def part_of(self, x: Tensor, q: Piece, k: Piece, heads: slice) -> Tensor:
        """The part of a bias or mask [1|B, 1|heads, 1|rows, 1|keys] that a call sees."""
        x = self._of_sequence(x, q)
        x = x if x.size(1) == 1 else x[:, heads]
        return _select(_select(x, 2, self._rows(q)), 3, k.stretches)

    def add_part(self, x: Tensor, part: Tensor, q: Piece, k: Piece, heads: slice) -> None:
        """Adds to what part_of() gives."""
        x = self._of_sequence(x, q)
        x = x if x.size(1) == 1 else x[:, heads]
        for rows, rows_of_part in _places(self._rows(q), x.size(2)):
            for keys, keys_of_part in _places(k.stretches, x.size(3)):
                x[:, :, rows, keys] += part[:, :, rows_of_part, keys_of_part]


def _select(x: Tensor, axis: int, stretches: Stretches) -> Tensor:
    """The rows or keys of a piece; x itself where one is for all."""
    if x.size(axis) == 1:
        return x
    found = [x.narrow(axis, first, count) for first, count in stretches]
    return found[0] if len(found) == 1 else torch.cat(found, axis)


def _places(stretches: Stretches, extent: int) -> Iterator[tuple[slice, slice]]:
    """Where each stretch lies in a tensor, and in what _select() makes of the tensor."""
    begin = 0
    for first, count in stretches if extent > 1 else ((0, 1),):
        yield slice(first, first + count), slice(begin, begin + count)
        begin += count


def forward_block(part: Part, q: Tensor, block: Block, o: Tensor, lse: Tensor) -> None:
    """Merges attention over the keys of a block into o, float32 [B, rows, Hq, head_dim_v], and lse [B, Hq, rows]."""
    threads = part.options["threads"]
    for piece, keys in part.band.pairs(part.pieces, block.pieces):
        for heads_q, heads_k in part.heads:
            first = part.first(piece, heads_q)
            into, into_lse = o[:, piece.rows, heads_q], lse[:, heads_q, piece.rows]
            options = part.call_options(piece, keys, heads_q, with_sink=first)
            inputs = (q[:, piece.rows, heads_q], block.k[:, keys.rows, heads_k], block.v[:, keys.rows, heads_k])
            if first:
                _calls.attention(*inputs, out=into, lse=into_lse, **options)
            else:
                other = torch.empty(into.shape, dtype=torch.float32, device=into.device)
                other, other_lse = _calls.attention(*inputs, out=other, return_lse=True, **options)
                _calls.merge(into, into_lse, other, other_lse, out=into, lse_out=into_lse, threads=threads)


def sink_alone(part: Part, lse: Tensor) -> None:
    """The LSE of rows that no call has met: they see no key, and o is 0."""
    if part.sink is None:
        return
    for piece in part.pieces:
        for heads, _ in part.heads:
            if part.first(piece, heads):
                lse[:, heads, piece.rows] = part.sink[heads, None]


@dataclass
class Sums:
    """Float32 sums of backward: dq [B, rows, Hq, head_dim], and dbias and dsink as bias and sink, or None."""

    dq: Tensor
    dbias: Tensor | None
    dsink: Tensor | None


def backward_block(part: Part, q: Tensor, block: Block, o: Tensor, lse: Tensor, dout: Tensor,
                   sums: Sums) -> tuple[Tensor, Tensor]:
    """Adds to the sums what the keys of a block give, and returns their dK and dV, float32."""
    dk, dv = (torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (block.k, block.v))
    for piece, keys in part.band.pairs(part.pieces, block.pieces):
        for heads_q, heads_k in part.heads:
            # Whether or not dsink is asked for: a call that sees whole rows repairs them by the sink.
            with_sink = part.sink is not None and part.first(piece, heads_q)
            wants_dsink = with_sink and sums.dsink is not None
            rows, columns = (slice(None), piece.rows, heads_q), (slice(None), keys.rows, heads_k)
            options = part.call_options(piece, keys, heads_q, with_sink)
            given = (q[rows], block.k[columns], block.v[columns], o[rows], lse[:, heads_q, piece.rows], dout[rows])
            wide = [torch.empty(x.shape, dtype=torch.float32, device=x.device) for x in given[:3]]
            gradients = _calls.attention_backward(*given, dq=wide[0], dk=wide[1], dv=wide[2],
                                                  dbias=sums.dbias is not None, dsink=wants_dsink, **options)
            sums.dq[rows] += gradients.dq
            dk[columns] += gradients.dk
            dv[columns] += gradients.dv
            if sums.dbias is not None:
                part.add_part(sums.dbias, gradients.dbias, piece, keys, heads_q)
            if wants_dsink and sums.dsink is not None:
                sums.dsink[heads_q] += gradients.dsink
    return dk, dv
