"""Which rows of the whole sequence each rank holds, and which pairs of rows a mask leaves.

Every rank works out the same for all ranks, so that nothing of this is ever sent.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Iterable, Literal, NamedTuple, Sequence

Layout = Literal["contiguous", "zigzag"]


class Segment(NamedTuple):
    """Rows that follow one another in a sequence: first, first + 1, ..., first + length - 1."""

    sequence: int
    first: int
    length: int


class Piece(NamedTuple):
    """Rows of a tensor in memory that are one or two stretches of one sequence: what a single call takes."""

    sequence: int
    rows: slice
    stretches: tuple[tuple[int, int], ...]


def canonical(layout: Layout, rank: int, ranks: int, length: int) -> list[tuple[int, int]]:
    """The stretches (first, count) that a rank holds of `length` rows.

    "contiguous": one of `ranks` chunks. "zigzag": chunks `rank` and 2·ranks - 1 - rank of 2·ranks, so that under a causal
    mask every rank has as many pairs to compute (Brandon et al. 2023, Striped Attention, have the argument). Chunk c of C
    is [c·length/C, (c+1)·length/C), rounded down.
    """
    chunks = ranks if layout == "contiguous" else 2 * ranks
    mine = [rank] if layout == "contiguous" else [rank, chunks - 1 - rank]
    ends = [chunk * length // chunks for chunk in range(chunks + 1)]
    return [(ends[chunk], ends[chunk + 1] - ends[chunk]) for chunk in mine]


def segments_of(layout: Layout, rank: int, rows: Sequence[int], sequence: int = 0) -> list[Segment]:
    """The segments of a rank's rows of one sequence, where rank r has rows[r] of them."""
    if layout == "contiguous":
        return [Segment(sequence, sum(rows[:rank]), rows[rank])]
    return [Segment(sequence, *stretch) for stretch in canonical(layout, rank, len(rows), sum(rows))]


def cut(segments: Iterable[Segment], starts: Sequence[int]) -> list[Segment]:
    """Segments of a packed tensor as segments of its sequences, of which sequence b is rows [starts[b], starts[b+1])."""
    result = []
    for _, first, count in segments:
        for sequence, (start, end) in enumerate(zip(starts[:-1], starts[1:])):
            low, high = max(first, start), min(first + count, end)
            if low < high:
                result.append(Segment(sequence, low - start, high - low))
    return result


class Place(NamedTuple):
    """Where rows lie in the tensor of a member, and where in that of all members."""

    member: int
    there: slice
    here: slice


def joined(segments: Sequence[Sequence[Segment]]) -> tuple[list[Place], list[Segment]]:
    """How the rows of several members lie in one tensor, sorted by sequence and position."""
    found = []
    for member, own in enumerate(segments):
        begins = accumulate((segment.length for segment in own), initial=0)
        found += [(segment, member, begin) for segment, begin in zip(own, begins) if segment.length]
    places, here = [], 0
    for segment, member, begin in sorted(found):
        places.append(Place(member, slice(begin, begin + segment.length), slice(here, here + segment.length)))
        here += segment.length
    return places, [segment for segment, _, _ in sorted(found)]


def pieces_of(segments: Sequence[Segment], most_stretches: int) -> list[Piece]:
    """A tensor's rows in pieces of at most so many stretches."""
    merged: list[Segment] = []
    for segment in segments:
        last = merged[-1] if merged else None
        if last and last.sequence == segment.sequence and last.first + last.length == segment.first:
            merged[-1] = last._replace(length=last.length + segment.length)
        elif segment.length:
            merged.append(segment)
    pieces: list[Piece] = []
    begin = 0
    for segment in merged:
        rows, stretch = slice(begin, begin + segment.length), (segment.first, segment.length)
        last_piece = pieces[-1] if pieces else None
        if last_piece and last_piece.sequence == segment.sequence and len(last_piece.stretches) < most_stretches:
            pieces[-1] = Piece(segment.sequence, slice(last_piece.rows.start, rows.stop), (*last_piece.stretches, stretch))
        else:
            pieces.append(Piece(segment.sequence, rows, (stretch,)))
        begin = rows.stop
    return pieces


class Band(NamedTuple):
    """The keys that a causal mask and a window leave to a query, by positions."""

    causal: str
    window: tuple[int, int]
    lengths_q: tuple[int, ...]  # of each sequence
    lengths_k: tuple[int, ...]

    def sees(self, q: Piece, k: Piece) -> bool:
        """Whether any query of q sees any key of k, which are of one sequence."""
        delta = self.lengths_k[q.sequence] - self.lengths_q[q.sequence]
        left, right = self.window
        # Query i sees keys [i + low, i + high]; the union over a stretch of queries is an interval, too.
        low = -self.lengths_q[q.sequence] if left < 0 else delta - left
        highs = [self.lengths_k[q.sequence]] if right < 0 else [delta + right]
        if self.causal != "none":
            highs.append(0 if self.causal == "top_left" else delta)
        high = min(highs)
        return low <= high and any(
            first_k <= first_q + count_q - 1 + high and first_q + low <= first_k + count_k - 1
            for first_q, count_q in q.stretches for first_k, count_k in k.stretches)

    def pairs(self, q: Sequence[Piece], k: Sequence[Piece]) -> list[tuple[Piece, Piece]]:
        """The pairs of pieces that have something to compute, in a fixed order."""
        of_sequence: dict[int, list[Piece]] = {}
        for piece in k:
            of_sequence.setdefault(piece.sequence, []).append(piece)
        return [(one, other) for one in q for other in of_sequence.get(one.sequence, ()) if self.sees(one, other)]
