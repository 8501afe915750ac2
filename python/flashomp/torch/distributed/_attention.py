"""flashomp.torch.distributed.attention: what ranks give is checked and agreed on, and becomes a plan."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from .. import _attention as whole
from ._exchange import Group, agree, guarded
from ._function import Sharded
from ._given import Given, Scheme
from ._layout import Layout


@torch.compiler.disable  # type: ignore[untyped-decorator]
def attention(q: Tensor, k: Tensor, v: Tensor, *, group: Group = None, layout: Layout = "contiguous",
              scheme: Scheme = "ring", heads_ranks: int | None = None, scale: float | None = None,
              causal: Literal["none", "top_left", "bottom_right"] = "none", window: tuple[int, int] = (-1, -1),
              softcap: float = 0.0, alibi_slopes: Tensor | None = None, bias: Tensor | None = None,
              key_padding_mask: Tensor | None = None, mask: Tensor | None = None, cu_seqlens_q: Tensor | None = None,
              cu_seqlens_k: Tensor | None = None, cu_seqlens_are: Literal["whole", "local"] = "whole",
              sink: Tensor | None = None, dropout: float = 0.0, seed: Tensor | tuple[int, int] | None = None,
              return_lse: bool = False) -> Any:
    """flashomp.torch.attention over sequences whose rows are shared out over the ranks of a process group. Collective, as
    is its backward pass: all ranks of the group make both, or they wait for ever.

    q: [B, Nq_local, Hq, head_dim]; k: [B, Nk_local, Hkv, head_dim]; v: [B, Nk_local, Hkv, head_dim_v]: this rank's rows;
    float32, bfloat16 or float16. Nq and Nk, the sums over ranks, may differ; a rank may have no rows.
    group: of torch.distributed, with gloo or NCCL; None is all processes.
    layout: which rows a rank has. "contiguous": those behind the rows of the rank before, any number; "zigzag": those of
    shard(), which share out the work of a causal mask evenly.
    scheme: "ring": K and V go from rank to rank while the block before is computed (Liu et al. 2023, Ring Attention);
    "all_gather": a rank gets all K and V that it needs at once; "ulysses": each rank has some heads of all rows (Jacobs et
    al. 2023, DeepSpeed Ulysses); "grid": heads_ranks neighbours share out heads, and these groups are a ring. Keys that
    causal and window hide are neither sent nor computed. Results of schemes differ by rounding in float32.
    scale, causal, window, softcap: as for one process, with positions and lengths of the whole sequence.
    alibi_slopes: float32 [Hq] or [B, Hq]; sink: float32 [Hq]; key_padding_mask: bool [B, Nk]: of the whole, the same on
    every rank.
    bias, mask: [1|B, 1|Hq, 1|Nq_local, 1|Nk]: this rank's rows, and all keys. One row on every rank is for all rows. Of packed
    sequences Nq and Nk are the longest, all rows are there, and every rank has the same.
    cu_seqlens_q, cu_seqlens_k: int32 [sequences + 1]; q, k and v are packed then, [rows, heads, ...]. cu_seqlens_are
    "whole": those of all rows, the same on every rank, and the layout shares out rows wherever sequences begin and end;
    "local": those of this rank's rows, and the layout shares out every sequence by itself.
    dropout, seed: the mask is that of one process; seed as in flashomp.torch.attention, and where none is given that of
    rank 0's generator.
    return_lse: returns (o, lse), lse float32 [B, Hq, Nq_local], packed [Hq, rows]; it has no gradient.

    Gradients go to q, k, v, bias and sink, as those of the sum of all ranks' losses. That of sink, and of a bias that is the
    same on all ranks, is this rank's part: sum it over ranks, as for every parameter that ranks share (DDP and FSDP do).
    Partial results are float32, are merged and summed in float32 in a fixed order, and are rounded once: the same bits in
    every run. One rank is flashomp.torch.attention.
    Saves what flashomp.torch.attention does, on the CPU o in float32. Runs outside of torch.compile's graphs.
    Raises, on all ranks, flashomp.Error where ranks differ or an argument is not as documented, before anything is sent;
    TypeError for what is no tensor; flashomp.RunFailure where a call fails in the middle.
    """
    given = Given(q, k, v, layout, scheme, heads_ranks, scale, causal, window, softcap, alibi_slopes, bias, key_padding_mask,
                  mask, cu_seqlens_q, cu_seqlens_k, cu_seqlens_are, sink, dropout, seed)
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    if ranks == 1:
        given.check_sharding(1)
        return whole.attention(q, k, v, scale=scale, causal=causal, window=window, softcap=softcap,
                               alibi_slopes=alibi_slopes, bias=bias, key_padding_mask=key_padding_mask, mask=mask,
                               cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, sink=sink, dropout=dropout, seed=seed,
                               return_lse=return_lse)
    same, error = guarded(given.prepared, ranks)
    own = None if error else given.own()
    answers = agree(group, same or {}, own, error)
    plan = given.plan(group, rank, answers)
    packed = plan.packed
    q, k, v = (x[None] if packed else x for x in (given.q, given.k, given.v))
    o, lse = Sharded.apply(plan, q, k, v, given.bias, sink, alibi_slopes, key_padding_mask, mask)
    if packed:
        o, lse = o[0], lse[0]
    return (o, lse) if return_lse else o
