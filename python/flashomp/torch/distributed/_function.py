"""The passes over all blocks, and their place in PyTorch's autograd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ._exchange import Group, expect_no_failure, guarded
from ._heads import Heads, Members, head_range, with_heads_inside
from ._layout import Band, Piece
from ._output import reads_float32, stand_in
from ._parts import Part, Sums, backward_block, forward_block, sink_alone
from ._ring import Gather, Ring


@dataclass
class Plan:
    """All that ranks have agreed on: who holds what, who shares out heads, and how keys travel."""

    group: Group
    me: int  # among those who share out heads
    heads: Heads
    members_q: Members
    members_k: Members
    route: Ring | Gather
    pieces: Sequence[Piece]  # of this rank's queries, after heads are shared out
    band: Band
    options: dict[str, Any]
    packed: bool
    bias_has_rows: bool
    mask_has_rows: bool

    def per_head(self, x: Tensor | None, has_rows: bool) -> Tensor | None:
        """A bias or mask [1|B, 1|Hq, 1|rows, 1|keys] with this rank's heads, and the rows of all who share out heads."""
        if x is None:
            return None
        heads = head_range(self.heads.q, x.size(1))
        if has_rows:
            return with_heads_inside(self.members_q.to_heads(with_heads_inside(x), heads))
        return x[:, heads[self.me]]

    def all_heads(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """The gradient of a bias of this shape, back from per_head(). Without rows it is this rank's part of a sum over
        ranks."""
        heads = head_range(self.heads.q, shape[1])
        if self.bias_has_rows:
            return with_heads_inside(self.members_q.to_rows(with_heads_inside(x), heads, shape[1]))
        result = x.new_zeros(shape)
        result[:, heads[self.me]] = x
        return result

    def part(self, bias: Tensor | None, sink: Tensor | None, alibi_slopes: Tensor | None, key_padding_mask: Tensor | None,
             mask: Tensor | None) -> Part:
        """bias and mask: as per_head() gives them; sink and alibi_slopes: of all heads."""
        own = self.heads.q[self.me]
        return Part(self.options, self.band, self.heads.calls(self.me), own.start, self.pieces, self.packed,
                    alibi_slopes=None if alibi_slopes is None else _unit(alibi_slopes[..., own]), bias=bias,
                    key_padding_mask=None if key_padding_mask is None else _unit(key_padding_mask), mask=mask,
                    sink=None if sink is None else _unit(sink[own]))


def _unit(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _zeros(x: Tensor) -> Tensor:
    return torch.zeros(x.shape, dtype=torch.float32, device=x.device)


class Sharded(torch.autograd.Function):
    """o and lse of this rank's rows; q, k, v are [B, rows, heads, head_dim]. Every rank must run both passes.

    An error in the middle is kept until the messages are through: a rank that left would leave the others waiting.
    """

    @staticmethod
    def forward(ctx: Any, plan: Plan, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sink: Tensor | None,
                alibi_slopes: Tensor | None, key_padding_mask: Tensor | None,
                mask: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.plan, ctx.bias_shape = plan, None if bias is None else bias.shape
        heads, all_q = plan.heads, plan.heads.all_q
        q = plan.members_q.to_heads(_unit(q), heads.q)
        k, v = (plan.members_k.to_heads(_unit(x), heads.k) for x in (k, v))
        bias, mask = plan.per_head(bias, plan.bias_has_rows), plan.per_head(mask, plan.mask_has_rows)
        part = plan.part(bias, sink, alibi_slopes, key_padding_mask, mask)
        o = q.new_zeros((*q.shape[:3], v.size(-1)), dtype=torch.float32)
        lse = q.new_full((q.size(0), q.size(2), q.size(1)), float("-inf"), dtype=torch.float32)
        error: Exception | None = None
        for block in plan.route.travel(k, v):
            if block is not None and error is None:
                _, error = guarded(forward_block, part, q, block, o, lse)
        expect_no_failure(plan.group, error, q.device)
        sink_alone(part, lse)
        rounded = o.to(q.dtype)
        # In float32: rounding o would take more from Σ dO∘O than all else does from gradients.
        ctx.save_for_backward(q, k, v, o, lse, bias, sink, alibi_slopes, key_padding_mask, mask)
        lse_rows = plan.members_q.to_rows(with_heads_inside(lse)[..., None], heads.q, all_q)[..., 0]
        lse_out = with_heads_inside(lse_rows).contiguous()
        ctx.mark_non_differentiable(lse_out)
        return plan.members_q.to_rows(rounded, heads.q, all_q), lse_out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor, _dlse: Tensor) -> tuple[Tensor | None, ...]:
        plan: Plan = ctx.plan
        q, k, v, o, lse, bias, sink, alibi_slopes, key_padding_mask, mask = ctx.saved_tensors
        with_dbias, with_dsink = ctx.needs_input_grad[4:6]
        dout = _unit(plan.members_q.to_heads(dout.to(q.dtype), plan.heads.q))
        if q.dtype != torch.float32 and not reads_float32(q.device):
            o = stand_in(o, dout)
        part = plan.part(bias, sink, alibi_slopes, key_padding_mask, mask)
        own_sink = part.sink if with_dsink else None
        sums = Sums(_zeros(q), _zeros(bias) if with_dbias else None, None if own_sink is None else _zeros(own_sink))
        home, error = plan.route.home(k, v), None
        for step, block in enumerate(plan.route.travel(k, v)):
            mine = None
            if block is not None:
                if error is None:
                    mine, error = guarded(backward_block, part, q, block, o, lse, dout, sums)
                if mine is None:  # the others wait for numbers
                    mine = (_zeros(block.k), _zeros(block.v))
            home.hand_on(step, mine)
        dk, dv = home.result() or (_zeros(k), _zeros(v))
        expect_no_failure(plan.group, error, q.device)
        dq = plan.members_q.to_rows(sums.dq.to(q.dtype), plan.heads.q, plan.heads.all_q)
        dk, dv = (plan.members_k.to_rows(x, plan.heads.k, plan.heads.all_k).to(k.dtype) for x in (dk, dv))
        dbias = dsink = None
        if sums.dbias is not None:
            dbias = plan.all_heads(sums.dbias, ctx.bias_shape).to(bias.dtype)
        if sums.dsink is not None:
            dsink = sink.new_zeros(sink.shape)
            dsink[plan.heads.q[plan.me]] = sums.dsink
        return None, dq, dk, dv, dbias, dsink, None, None, None
