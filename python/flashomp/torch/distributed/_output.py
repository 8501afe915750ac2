"""The output that backward reads: o in float32 beside inputs of 16 bits, or what stands for it where a machine cannot."""

from __future__ import annotations

import torch
from torch import Tensor

# Each takes 8 bits of what is left, bfloat16's, or more: after 3 of them the rest is below float32's rounding of D.
_CARRIERS = 3


def reads_float32(device: torch.device) -> bool:
    """Whether backward reads a float32 o beside inputs of 16 bits. A GPU's tensor machines do not."""
    return device.type == "cpu"


def stand_in(o: Tensor, dout: Tensor) -> Tensor:
    """A tensor of dout's dtype, 16 bits, whose D = Σ dO∘O of each row [..., head_dim_v] is that of float32 o.

    Backward reads nothing of o but D (FlashAttention-2, section 2.3.2), so any tensor with the same D serves. In dS = P∘(dP − D) the
    rounding of o can be more than all other errors together: where values have a mean, dP and D share it. So o is rounded,
    and the elements with the largest dO of a row take up what that lost, one after the other. A row of dO with one element
    has nothing to carry it; nor has one whose elements would then be beyond float16's end.
    """
    weights, rounded = dout.float(), o.to(dout.dtype)
    places = weights.abs().topk(min(_CARRIERS, o.size(-1)), dim=-1).indices
    result = rounded.scatter(-1, places, 0.0)
    missing = (weights * (o - result)).sum(-1, keepdim=True)
    for place in places.split(1, dim=-1):
        weight = weights.gather(-1, place)
        value = torch.where(weight == 0, 0.0, missing / weight).to(dout.dtype)
        result.scatter_(-1, place, value)
        missing -= weight * value
    return torch.where(missing.isfinite(), result, rounded)
