"""shard() and unshard(): a tensor that one process has, and the shards of it that ranks have."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from ... import _core
from .._attention import described
from ._exchange import Group, Messages, agree, guarded
from ._layout import Layout, canonical, joined, segments_of


def check_layout(layout: object) -> None:
    if layout not in ("contiguous", "zigzag"):
        raise _core.Error(f"layout was {described(layout)}; allowed are 'contiguous', 'zigzag'.")


def shard(tensor: Tensor, dim: int = 1, layout: Layout = "contiguous", group: Group = None) -> Tensor:
    """This rank's rows of a tensor that every rank has. Nothing is sent, and gradients flow through.

    tensor: of any dtype and shape; dim: its axis of rows, 1 in [B, N, heads, head_dim].
    layout: "contiguous": rank r of R has rows [r·N/R, (r+1)·N/R); "zigzag": chunks r and 2R - 1 - r of 2R chunks, chunk c
    being rows [c·N/(2R), (c+1)·N/(2R)). N need not be divisible by anything.
    Raises flashomp.Error for another layout.
    """
    check_layout(layout)
    stretches = canonical(layout, dist.get_rank(group), dist.get_world_size(group), tensor.size(dim))
    return torch.cat([tensor.narrow(dim, first, count) for first, count in stretches], dim)


def unshard(tensor: Tensor, dim: int = 1, layout: Layout = "contiguous", group: Group = None) -> Tensor:
    """The whole of which the ranks have shards, on every rank. Collective; no gradient is recorded.

    tensor: this rank's rows, as shard() makes them; contiguous shards may be of any lengths.
    Raises flashomp.Error on all ranks where the shards do not fit together or one of them requires a gradient.
    """
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)

    def shape() -> tuple[int, list[int]]:
        check_layout(layout)
        if tensor.requires_grad and torch.is_grad_enabled():
            raise _core.Error("tensor requires a gradient, which unshard() does not record; give tensor.detach().")
        axes = list(tensor.shape)
        return axes.pop(dim), axes

    found, error = guarded(shape)
    here, axes = found or (0, [])
    same: dict[str, object] = {"layout": layout, "dim": dim, "the dtype": str(getattr(tensor, "dtype", None)),
                               "the shape of a row": axes}
    rows: list[int] = agree(group, same, here, error)
    check_rows("tensor", layout, rows)
    moved = tensor.detach().movedim(dim, 0).contiguous()
    messages = Messages(group)
    parts = [moved if peer == rank else moved.new_empty((rows[peer], *moved.shape[1:])) for peer in range(ranks)]
    for peer in range(ranks):
        if peer != rank:
            messages.send(moved, peer)
            messages.receive(parts[peer], peer)
    messages.start()
    messages.wait()
    places, _ = joined([segments_of(layout, peer, rows) for peer in range(ranks)])
    return torch.cat([parts[place.member][place.there] for place in places] or [moved]).movedim(0, dim)


def check_rows(name: str, layout: Layout, rows: list[int]) -> None:
    """Raises Error unless the ranks' rows are those of the layout. Every rank finds the same."""
    if layout == "contiguous":
        return
    for rank, here in enumerate(rows):
        wanted = sum(count for _, count in canonical(layout, rank, len(rows), sum(rows)))
        if here != wanted:
            raise _core.Error(f"{name} has {here} rows on rank {rank}; of {sum(rows)} rows over {len(rows)} ranks a zigzag "
                              f"layout has {wanted} there, as shard() makes them.")
