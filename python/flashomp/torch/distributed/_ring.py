"""How keys and values reach the queries of other ranks, and how their gradients come home.

A route yields blocks of K and V, and takes float32 dK and dV of each back. Sums are made in an order that depends on the
number of ranks and on nothing else, so that every run gives the same bits.
"""

from __future__ import annotations

from typing import Iterator, NamedTuple, Protocol, Sequence

import torch
from torch import Tensor

from ._exchange import Group, Messages
from ._layout import Piece, Segment, joined, pieces_of


class Block(NamedTuple):
    """Keys and values of one rank or of several: k [B, rows, Hkv, head_dim], v [B, rows, Hkv, head_dim_v]."""

    pieces: Sequence[Piece]
    k: Tensor
    v: Tensor


Pair = tuple[Tensor, Tensor]


class Home(Protocol):
    """Gathers dK and dV of a rank's own keys."""

    def hand_on(self, step: int, mine: Pair | None) -> None:
        """Takes float32 dK and dV of the block of a step; None where the rank got no block to compute."""

    def result(self) -> Pair | None:
        """dK and dV of this rank's keys, float32; None where no query sees any of them."""


class Stations(NamedTuple):
    """The ranks of a ring, or of a gather.

    ranks: of the group, in order; me: this rank's place among them; segments: what keys each has; needs[a][b]: whether the
    queries of a see any key of b; pieces: of each, for calls of at most most_stretches stretches.
    """

    group: Group
    ranks: Sequence[int]
    me: int
    segments: Sequence[Sequence[Segment]]
    needs: Sequence[Sequence[bool]]
    most_stretches: int

    def rows(self, station: int) -> int:
        return sum(segment.length for segment in self.segments[station])

    def like(self, x: Tensor, station: int, dtype: torch.dtype | None = None) -> Tensor:
        """Room for what is x here and comes from, or goes to, another station."""
        return x.new_empty((x.size(0), self.rows(station), *x.shape[2:]), dtype=dtype)


class Ring:
    """Ring attention (Liu et al. 2023): block b goes from station b to b + 1 and on, as far as somebody needs it, while
    the block before is computed."""

    def __init__(self, stations: Stations) -> None:
        self._stations = stations
        size = len(stations.ranks)
        self._reach = [max((step for step in range(size) if stations.needs[(block + step) % size][block]), default=0)
                       for block in range(size)]

    def travel(self, k: Tensor, v: Tensor) -> Iterator[Block | None]:
        """Yields the block of each step, or None where the rank only passes it on or has none."""
        stations, size, me = self._stations, len(self._stations.ranks), self._stations.me
        current: Pair | None = (k, v)
        for step in range(size):
            source, coming = (me - step) % size, (me - 1 - step) % size
            messages = Messages(stations.group)
            if current is not None and step < self._reach[source]:
                for tensor in current:
                    messages.send(tensor, stations.ranks[(me + 1) % size])
            following: Pair | None = None
            if step < self._reach[coming]:
                following = (stations.like(k, coming), stations.like(v, coming))
                for tensor in following:
                    messages.receive(tensor, stations.ranks[(me - 1) % size])
            messages.start()
            if current is not None and stations.needs[me][source]:
                yield Block(pieces_of(stations.segments[source], stations.most_stretches), *current)
            else:
                yield None
            messages.wait()
            current = following

    def home(self, k: Tensor, v: Tensor) -> Home:
        return _RingHome(self._stations, self._reach, k, v)


class _RingHome:
    """dK and dV of a block follow it a step behind, and go home from the last station that it reaches. The home station
    keeps its own part, and adds the others' sum to it."""

    def __init__(self, stations: Stations, reach: Sequence[int], k: Tensor, v: Tensor) -> None:
        self._stations, self._reach, self._like = stations, reach, (k, v)
        self._messages = Messages(stations.group)
        self._incoming: Pair | None = None
        self._own: Pair | None = None
        self._others: Pair | None = None

    def _computed(self, block: int, step: int) -> bool:
        """Whether a station that the block has reached by this step, other than its home, has computed something."""
        size = len(self._stations.ranks)
        return any(self._stations.needs[(block + before) % size][block] for before in range(1, step + 1))

    def _receive(self, messages: Messages, station: int, source: int) -> Pair:
        """Room for dK and dV of a station's keys, which come from another."""
        k, v = (messages.receive(self._stations.like(x, station, torch.float32), self._stations.ranks[source])
                for x in self._like)
        return k, v

    def hand_on(self, step: int, mine: Pair | None) -> None:
        stations, size, me = self._stations, len(self._stations.ranks), self._stations.me
        if step == 0:
            self._own = mine
            return
        self._messages.wait()
        total = _sum(self._incoming, mine)
        source, coming = (me - step) % size, (me - 1 - step) % size
        messages = self._messages = Messages(stations.group)
        if total is not None:
            goal = (me + 1) % size if step < self._reach[source] else source
            for tensor in total:
                messages.send(tensor, stations.ranks[goal])
        self._incoming = None
        if step < self._reach[coming] and self._computed(coming, step):
            self._incoming = self._receive(messages, coming, (me - 1) % size)
        if step == self._reach[me]:
            self._others = self._receive(messages, me, (me + step) % size)
        messages.start()

    def result(self) -> Pair | None:
        self._messages.wait()
        return _sum(self._own, self._others)


def _sum(one: Pair | None, other: Pair | None) -> Pair | None:
    if one is None or other is None:
        return one or other
    for into, part in zip(one, other):
        into += part
    return one


class Gather:
    """Every rank gets all blocks that it needs at once, as one block: most memory, fewest steps, and no merges."""

    def __init__(self, stations: Stations) -> None:
        self._stations = stations
        me = stations.me
        self.sources = [source for source, needed in enumerate(stations.needs[me]) if needed]
        self.takers = [taker for taker, needs in enumerate(stations.needs) if needs[me]]
        self.places, self._segments = joined([stations.segments[source] for source in self.sources])

    def travel(self, k: Tensor, v: Tensor) -> Iterator[Block | None]:
        stations = self._stations
        messages = Messages(stations.group)
        for taker in self.takers:
            if taker != stations.me:
                messages.send(k, stations.ranks[taker])
                messages.send(v, stations.ranks[taker])
        parts = []
        for source in self.sources:
            if source == stations.me:
                parts.append((k, v))
                continue
            part = (stations.like(k, source), stations.like(v, source))
            for tensor in part:
                messages.receive(tensor, stations.ranks[source])
            parts.append(part)
        messages.start()
        messages.wait()
        if not self.places:
            yield None
            return
        whole_k, whole_v = (torch.cat([parts[place.member][which][:, place.there] for place in self.places], 1)
                            for which in (0, 1))
        yield Block(pieces_of(self._segments, stations.most_stretches), whole_k, whole_v)

    def home(self, k: Tensor, v: Tensor) -> Home:
        return _GatherHome(self, self._stations, k, v)


class _GatherHome:
    """Each rank sends the parts of dK and dV to their owners, who sum them in the order of ranks."""

    def __init__(self, gather: Gather, stations: Stations, k: Tensor, v: Tensor) -> None:
        self._gather, self._stations, self._like = gather, stations, (k, v)
        self._result: Pair | None = None

    def hand_on(self, step: int, mine: Pair | None) -> None:
        stations, gather = self._stations, self._gather
        messages = Messages(stations.group)
        kept: list[Tensor] = []
        if mine is not None:
            for member, source in enumerate(gather.sources):
                for whole in mine:
                    rows = [whole[:, place.here] for place in gather.places if place.member == member]
                    part = torch.cat(rows, 1) if rows else whole[:, :0]
                    if source == stations.me:
                        kept.append(part)
                    else:
                        messages.send(part, stations.ranks[source])
        parts: list[list[Tensor]] = []
        for taker in gather.takers:
            if taker == stations.me:
                parts.append(kept)
                continue
            parts.append([messages.receive(stations.like(x, stations.me, torch.float32), stations.ranks[taker])
                          for x in self._like])
        messages.start()
        messages.wait()
        for dk, dv in parts:
            self._result = _sum(self._result, (dk, dv))

    def result(self) -> Pair | None:
        return self._result
