"""Heads shared out by all-to-all (Jacobs et al. 2023, DeepSpeed Ulysses): rows of all heads become heads of all rows.

Query head h belongs to the rank whose range has it; a key head goes to every rank that has a query head of its group, so
that there may be fewer key heads than ranks.
"""

from __future__ import annotations

from typing import Sequence

import torch
from torch import Tensor

from ._exchange import Group, Messages
from ._layout import Segment, joined


class Members:
    """The ranks that share out the heads of their rows.

    ranks: of the group; me: this rank's place among them; segments: what rows each has. All tensors here are
    [B, rows, heads, any]; `heads` says which heads each member has.
    """

    def __init__(self, group: Group, ranks: Sequence[int], me: int, segments: Sequence[Sequence[Segment]]) -> None:
        self._group, self._ranks, self._me = group, ranks, me
        self._rows = [sum(segment.length for segment in own) for own in segments]
        self._places, _ = joined(segments)

    def to_heads(self, x: Tensor, heads: Sequence[slice]) -> Tensor:
        """This rank's heads of all members' rows, sorted by position, from all heads of its own rows."""
        if len(self._ranks) == 1:
            return x
        mine = x[:, :, heads[self._me]]
        messages = Messages(self._group)
        parts = []
        for member, rank in enumerate(self._ranks):
            if member == self._me:
                parts.append(mine)
                continue
            messages.send(x[:, :, heads[member]], rank)
            parts.append(messages.receive(x.new_empty((x.size(0), self._rows[member], *mine.shape[2:])), rank))
        messages.start()
        messages.wait()
        result = x.new_empty((x.size(0), sum(self._rows), *mine.shape[2:]))
        for place in self._places:
            result[:, place.here] = parts[place.member][:, place.there]
        return result

    def to_rows(self, x: Tensor, heads: Sequence[slice], all_heads: int) -> Tensor:
        """All heads of this rank's rows; heads that several members have are summed in the order of members."""
        if len(self._ranks) == 1:
            return x
        messages = Messages(self._group)
        parts = []
        for member, rank in enumerate(self._ranks):
            theirs = x.new_empty((x.size(0), self._rows[member], *x.shape[2:]))
            for place in self._places:
                if place.member == member:
                    theirs[:, place.there] = x[:, place.here]
            if member == self._me:
                parts.append(theirs)
                continue
            messages.send(theirs, rank)
            count = heads[member].stop - heads[member].start
            parts.append(messages.receive(x.new_empty((x.size(0), self._rows[self._me], count, *x.shape[3:])), rank))
        messages.start()
        messages.wait()
        result = x.new_zeros((x.size(0), self._rows[self._me], all_heads, *x.shape[3:]))
        for part, range_ in zip(parts, heads):
            result[:, :, range_] += part
        return result


class Heads:
    """Which heads each member has: ranges of query heads as even as can be, and the key heads that these use."""

    def __init__(self, heads_q: int, heads_k: int, members: int) -> None:
        self.all_q, self.all_k = heads_q, heads_k
        self._group = max(heads_q // max(heads_k, 1), 1)
        ends = [member * heads_q // members for member in range(members + 1)]
        self.q = [slice(start, end) for start, end in zip(ends[:-1], ends[1:])]
        self.k = [slice(own.start // self._group, -(-own.stop // self._group)) for own in self.q]

    def calls(self, member: int) -> list[tuple[slice, slice]]:
        """Heads of q and of k for each call, numbered as the member has them: one call, or one for each key head where the
        member's range cuts through groups, since a call takes groups of equal size."""
        q, k = self.q[member], self.k[member]
        if k.stop - k.start <= 1 or (q.start % self._group == 0 and q.stop % self._group == 0):
            return [(slice(0, q.stop - q.start), slice(0, k.stop - k.start))]
        result = []
        for head in range(k.start, k.stop):
            low, high = max(q.start, head * self._group), min(q.stop, (head + 1) * self._group)
            result.append((slice(low - q.start, high - q.start), slice(head - k.start, head - k.start + 1)))
        return result


def head_range(heads: Sequence[slice], size: int) -> list[slice]:
    """The heads of a bias or a mask, which may have one for all."""
    return [slice(0, 1)] * len(heads) if size == 1 else list(heads)


def with_heads_inside(x: Tensor) -> Tensor:
    """[B, heads, rows, any] as [B, rows, heads, any], or back."""
    return torch.transpose(x, 1, 2)
