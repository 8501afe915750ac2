"""What a rank gives to attention(): checked alone, agreed on with the others, and made a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Sequence

import torch
from torch import Tensor

from ... import _core
from .. import _attention as whole
from ._checks import check, has_rows, key_extents, what_must_agree
from ._exchange import Group
from ._function import Plan
from ._heads import Heads, Members
from ._layout import Band, Layout, Segment, cut, joined, pieces_of, segments_of
from ._ring import Gather, Ring, Stations
from ._shards import check_layout, check_rows

Scheme = Literal["ring", "all_gather", "ulysses", "grid"]


@dataclass
class Own:
    """What a rank tells the others of itself."""

    rows_q: int
    rows_k: int
    starts_q: list[int] | None  # local cu_seqlens
    starts_k: list[int] | None
    bias_rows: int | None
    mask_rows: int | None
    seed: list[int] | None


@dataclass
class Given:
    """The arguments of attention() on this rank."""

    q: Tensor
    k: Tensor
    v: Tensor
    layout: Layout
    scheme: Scheme
    heads_ranks: int | None
    scale: float | None
    causal: str
    window: tuple[int, int]
    softcap: float
    alibi_slopes: Tensor | None
    bias: Tensor | None
    key_padding_mask: Tensor | None
    mask: Tensor | None
    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    cu_seqlens_are: str
    sink: Tensor | None
    dropout: float
    seed: Any

    def check_sharding(self, ranks: int) -> None:
        """Raises Error unless layout, scheme and heads_ranks are as documented; heads_ranks is a number from here on."""
        check_layout(self.layout)
        if self.scheme not in ("ring", "all_gather", "ulysses", "grid"):
            raise _core.Error(f"scheme was {whole.described(self.scheme)}; allowed are 'ring', 'all_gather', 'ulysses', "
                              "'grid'.")
        if self.cu_seqlens_are not in ("whole", "local"):
            raise _core.Error(f"cu_seqlens_are was {whole.described(self.cu_seqlens_are)}; allowed are 'whole', 'local'.")
        if self.scheme != "grid":
            if self.heads_ranks is not None:
                raise _core.Error(f"heads_ranks was {whole.described(self.heads_ranks)}; only scheme 'grid' takes it.")
            self.heads_ranks = ranks if self.scheme == "ulysses" else 1
        elif type(self.heads_ranks) is not int or self.heads_ranks < 1 or ranks % self.heads_ranks:
            raise _core.Error(f"heads_ranks was {whole.described(self.heads_ranks)}; with scheme 'grid' it must be a divisor "
                              f"of the {ranks} ranks.")

    def prepared(self, ranks: int) -> dict[str, Any]:
        """Checks all that this rank can check alone, and returns what must be the same on all ranks."""
        self.check_sharding(ranks)
        check(self)
        return what_must_agree(self)

    def own(self) -> Own:
        local = self.cu_seqlens_q is not None and self.cu_seqlens_are == "local"
        axis = 0 if self.cu_seqlens_q is not None else 1
        seed = None
        if self.dropout != 0.0:
            seed = (whole.new_seed() if self.seed is None else whole._seed_of(self.seed)).tolist()
        return Own(self.q.size(axis), self.k.size(axis), _list(self.cu_seqlens_q) if local else None,
                   _list(self.cu_seqlens_k) if local else None, None if self.bias is None else self.bias.size(2),
                   None if self.mask is None else self.mask.size(2), seed)

    def plan(self, group: Group, rank: int, answers: Sequence[Own]) -> Plan:
        """Every rank makes the same decisions, and finds the same errors."""
        ranks, layout, heads_ranks = len(answers), self.layout, self.heads_ranks or 1
        packed = self.cu_seqlens_q is not None
        segments_q, lengths_q = _segments("q", layout, [own.rows_q for own in answers], [own.starts_q for own in answers],
                                          _list(self.cu_seqlens_q))
        segments_k, lengths_k = _segments("k", layout, [own.rows_k for own in answers], [own.starts_k for own in answers],
                                          _list(self.cu_seqlens_k))
        key_extents(self, max(lengths_k, default=0))
        rows_q, longest = [own.rows_q for own in answers], max(lengths_q, default=0) if packed else None
        bias_has_rows = has_rows("bias", [own.bias_rows for own in answers], rows_q, longest)
        mask_has_rows = has_rows("mask", [own.mask_rows for own in answers], rows_q, longest)

        band = Band(self.causal, (int(self.window[0]), int(self.window[1])), lengths_q, lengths_k)
        station, me = divmod(rank, heads_ranks)
        neighbours = [range(first, first + heads_ranks) for first in range(0, ranks, heads_ranks)]
        # A GPU's tensor machines take one stretch; there two calls and a merge are faster than one call.
        most = 2 if self.q.device.type == "cpu" else 1
        of_stations = [[joined([own[member] for member in members])[1] for members in neighbours]
                       for own in (segments_q, segments_k)]
        pieces_q, pieces_k = ([pieces_of(segments, most) for segments in own] for own in of_stations)
        needs = [[bool(band.pairs(q, k)) for k in pieces_k] for q in pieces_q]
        stations = Stations(group, [members[me] for members in neighbours], station, of_stations[1], needs, most)
        members = list(neighbours[station])
        return Plan(group, me, Heads(self.q.size(-2), self.k.size(-2), heads_ranks),
                    Members(group, members, me, [segments_q[member] for member in members]),
                    Members(group, members, me, [segments_k[member] for member in members]),
                    Gather(stations) if self.scheme == "all_gather" else Ring(stations), pieces_q[station], band,
                    self.options(answers[0].seed), packed, bias_has_rows, mask_has_rows)

    def options(self, seed: Sequence[int] | None) -> dict[str, Any]:
        """What is no tensor, as the library takes it."""
        options: dict[str, Any] = {"scale": self.scale, "causal": self.causal, "window": self.window,
                                   "softcap": self.softcap, "dropout": self.dropout, "threads": torch.get_num_threads()}
        if seed is not None:
            # A tensor of PyTorch is signed; flashomp's seed is not.
            options["seed"], options["offset"] = (number & 0xFFFFFFFFFFFFFFFF for number in seed)
        return options


def _list(starts: Tensor | None) -> list[int] | None:
    return None if starts is None else [int(start) for start in starts.tolist()]


def _segments(name: str, layout: Layout, rows: list[int], local: Sequence[list[int] | None],
              starts: list[int] | None) -> tuple[list[list[Segment]], tuple[int, ...]]:
    """The segments of each rank, and the lengths of whole sequences."""
    ranks = range(len(rows))
    if starts is None:
        check_rows(name, layout, rows)
        return [segments_of(layout, rank, rows) for rank in ranks], (sum(rows),)
    if local[0] is None:
        check_rows(name, layout, rows)
        if starts[-1] != sum(rows):
            raise _core.Error(f"cu_seqlens_{name} ends at {starts[-1]}, but {name} has {sum(rows)} rows on all ranks "
                              "together; they must be equal.")
        return ([cut(segments_of(layout, rank, rows), starts) for rank in ranks],
                tuple(end - start for start, end in zip(starts[:-1], starts[1:])))
    segments: list[list[Segment]] = [[] for _ in ranks]
    lengths = []
    for sequence in range(len(starts) - 1):
        here = [(own or starts)[sequence + 1] - (own or starts)[sequence] for own in local]
        check_rows(f"sequence {sequence} of {name}", layout, here)
        for rank in ranks:
            segments[rank] += segments_of(layout, rank, here, sequence)
        lengths.append(sum(here))
    return segments, tuple(lengths)
