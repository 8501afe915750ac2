"""Exact attention over sequences that no single process holds: shards over a process group of torch.distributed.

    import torch.distributed as dist
    from flashomp.torch.distributed import attention, shard

    dist.init_process_group("gloo")
    q, k, v = (shard(x, dim=1, layout="zigzag") for x in (q, k, v))
    o = attention(q, k, v, layout="zigzag", causal="bottom_right")

Programs written for ring-flash-attention import its functions from here: see ring_flash_attn.py.
"""

from __future__ import annotations

import torch.distributed as _dist

if not _dist.is_available():
    raise ImportError("flashomp.torch.distributed needs a PyTorch with torch.distributed, which this one is built without.")

from ._attention import attention  # noqa: E402
from .ring_flash_attn import (ring_flash_attn_func, ring_flash_attn_kvpacked_func,  # noqa: E402
                              ring_flash_attn_qkvpacked_func, ring_flash_attn_varlen_func,
                              ring_flash_attn_varlen_kvpacked_func, ring_flash_attn_varlen_qkvpacked_func,
                              zigzag_ring_flash_attn_func, zigzag_ring_flash_attn_kvpacked_func,
                              zigzag_ring_flash_attn_qkvpacked_func, zigzag_ring_flash_attn_varlen_func,
                              zigzag_ring_flash_attn_varlen_kvpacked_func,
                              zigzag_ring_flash_attn_varlen_qkvpacked_func)
from ._shards import shard, unshard  # noqa: E402

__all__ = ["attention", "ring_flash_attn_func", "ring_flash_attn_kvpacked_func", "ring_flash_attn_qkvpacked_func",
           "ring_flash_attn_varlen_func", "ring_flash_attn_varlen_kvpacked_func",
           "ring_flash_attn_varlen_qkvpacked_func", "shard", "unshard", "zigzag_ring_flash_attn_func",
           "zigzag_ring_flash_attn_kvpacked_func", "zigzag_ring_flash_attn_qkvpacked_func",
           "zigzag_ring_flash_attn_varlen_func", "zigzag_ring_flash_attn_varlen_kvpacked_func",
           "zigzag_ring_flash_attn_varlen_qkvpacked_func"]
