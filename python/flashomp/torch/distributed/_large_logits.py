"""Large logits, of which a float32 LSE of parts loses what shows: calls with other logits, s' = s - c, with c near the LSE of
the row. Results are the same but for LSE' = LSE - c, which is near 0 and exact (docs/distributed.md, "Large logits")."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from ._exchange import Group

_COLUMNS, _UNIT, _MOST_HEAD_DIM = 2, 64.0, 576


def wants_shift(group: Group, lse: Tensor, softcap: float, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether the rounding of LSE shows, on any rank, and can be avoided. Collective."""
    if softcap > 0.0 or head_dim + _COLUMNS > _MOST_HEAD_DIM:
        return False  # a shift of q·k is not one of logits; there is no room
    most = 32.0 if dtype == torch.float32 else 1024.0
    is_large = ((lse.abs() > most) & lse.isfinite()).any().to(torch.int32)
    dist.all_reduce(is_large, dist.ReduceOp.MAX, group=group)
    return bool(is_large.item())


def shifted(q: Tensor, lse: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """q with the columns that take c from its logits, and c, float64 [B, heads, rows]. Any c will do; that of rows without
    keys, or with a NaN, is 0.

    [q, -x1/64, -x2/64]·[k, 64, 64] = q·k - (x1 + x2). x1/64 and x2/64 have 8 bits each: every dtype holds them, and every
    machine's products are exact."""
    most = 2.0**15 if q.dtype == torch.float16 else 2.0**63
    wanted = lse.double() / scale / _UNIT if scale else torch.zeros_like(lse, dtype=torch.float64)
    wanted = torch.where(wanted.isfinite(), wanted, 0.0).clamp(-most, most)
    wanted = torch.round(wanted * 2.0**12) / 2.0**12  # multiples of it are exact in float16
    high = _with_8_bits(wanted)
    low = _with_8_bits(wanted - high)
    columns = torch.stack([-high, -low], -1).transpose(1, 2).to(q.dtype)
    # Kernels have the scale in float32.
    return _widened(q, columns), (high + low) * (_UNIT * torch.tensor(scale, dtype=torch.float32).item())


def with_unit_columns(k: Tensor) -> Tensor:
    """k with the columns that those of q are multiplied with."""
    return _widened(k, k.new_full((*k.shape[:3], _COLUMNS), _UNIT))


def _widened(x: Tensor, columns: Tensor) -> Tensor:
    width = min(-(-(x.size(-1) + _COLUMNS) // 8) * 8, _MOST_HEAD_DIM)  # GPUs load rows of 16 bytes
    return torch.cat([x, columns, x.new_zeros((*x.shape[:3], width - x.size(-1) - _COLUMNS))], -1)


def _with_8_bits(x: Tensor) -> Tensor:
    fraction, exponent = torch.frexp(x)
    return torch.ldexp(torch.round(fraction * 256.0), exponent - 8)


def add_sink(o: Tensor, lse: Tensor, sink: Tensor, c: Tensor) -> None:
    """Takes in the sink as one more key, without a value; o [B, rows, heads, any] and lse, which is LSE - c, are those of the
    keys."""
    keys = lse.double()
    both = torch.logaddexp(keys, sink.double()[:, None] - c)
    o *= torch.where(both.isneginf(), 0.0, (keys - both).exp()).float().transpose(1, 2)[..., None]
    lse.copy_(both)


def sink_gradient(o: Tensor, dout: Tensor, lse: Tensor, sink: Tensor, c: Tensor) -> Tensor:
    """-Σ p_sink·D of this rank's rows, where lse is LSE - c."""
    delta = (o.double() * dout.double()).sum(-1).transpose(1, 2)
    delta = torch.where((o == 0).all(-1).transpose(1, 2), 0.0, delta)  # rows without keys, whatever dout holds
    return -((sink.double()[:, None] - c - lse).exp() * delta).sum((0, 2)).float()
