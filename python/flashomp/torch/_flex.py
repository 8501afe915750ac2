"""FlexAttention's block masks as flashomp's."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import _core


def block_mask(mask: Any) -> _core.BlockMask:
    """The flashomp.BlockMask of a torch.nn.attention.flex_attention.BlockMask.

    Blocks that are whole or hidden are taken as they are. Of partial ones mask_mod is asked, once for all pairs of a
    block, on the device of the mask. Blocks are those of create_block_mask(): 16 to 65536 queries and keys.
    Raises flashomp.Error (a ValueError) for what is no such mask.
    """
    needed = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "BLOCK_SIZE", "mask_mod", "seq_lengths")
    for name in needed:
        if not hasattr(mask, name):
            raise _core.Error(f"mask was a {type(mask).__name__} without {name}; it must be a BlockMask of "
                              "torch.nn.attention.flex_attention.")
    block_q, block_k = mask.BLOCK_SIZE
    rows_q, rows_k = mask.seq_lengths
    partial, whole = _lists(mask.kv_num_blocks, mask.kv_indices), _lists(mask.full_kv_num_blocks, mask.full_kv_indices)
    batch, heads = mask.kv_num_blocks.shape[:2]
    rows = -(-rows_q // block_q)
    device = mask.kv_num_blocks.device
    starts, blocks, bits_of_block = [0], [], []
    bits: list[np.ndarray[Any, Any]] = []
    for b in range(batch):
        for h in range(heads):
            for row in range(rows):
                at = (b * heads + h) * mask.kv_num_blocks.shape[2] + row
                kinds = {block: True for block in partial[at]}
                kinds.update({block: False for block in (whole[at] if whole else ())})
                for block in sorted(kinds):
                    if block * block_k >= rows_k:
                        continue  # create_block_mask() rounds lengths up to whole blocks
                    blocks.append(block)
                    bits_of_block.append(len(bits) if kinds[block] else -1)
                    if kinds[block]:
                        bits.append(_bits(mask.mask_mod, b, h, row * block_q, block * block_k, (block_q, block_k),
                                          (rows_q, rows_k), device))
                starts.append(len(blocks))
    packed = np.stack(bits) if bits else None
    return _core.BlockMask.from_blocks((batch, heads, rows_q, rows_k), np.array(starts, np.int64),
                                       np.array(blocks, np.int32), np.array(bits_of_block, np.int32), packed, block_q,
                                       block_k)


def _lists(counts: Tensor | None, indices: Tensor | None) -> list[list[int]]:
    """The blocks of each row, flattened over batch and heads."""
    if counts is None or indices is None:
        return []
    flat = indices.flatten(0, 2).tolist()
    return [row[:count] for row, count in zip(flat, counts.flatten().tolist())]


def _bits(mask_mod: Any, b: int, h: int, first_q: int, first_k: int, size: tuple[int, int], end: tuple[int, int],
          device: torch.device) -> np.ndarray[Any, Any]:
    """A block's pairs, packed along its keys; pairs past the ends are hidden."""
    queries = torch.arange(first_q, min(first_q + size[0], end[0]), device=device)
    keys = torch.arange(first_k, min(first_k + size[1], end[1]), device=device)
    kept = mask_mod(torch.tensor(b, device=device), torch.tensor(h, device=device), queries[:, None], keys[None, :])
    block = np.zeros(size, bool)
    block[: len(queries), : len(keys)] = kept.expand(len(queries), len(keys)).cpu().numpy()
    return np.packbits(block, axis=-1, bitorder="little")
