"""Exact attention on tensors of NumPy, PyTorch, JAX and every package with DLPack, without copies.

    import numpy as np
    import flashomp

    q, k, v = (np.random.rand(2, 128, 8, 64).astype(np.float32) for _ in range(3))
    o = flashomp.attention(q, k, v, causal="bottom_right")

Shapes are [batch, seqlen, heads, head_dim]; B is the batch, Nq and Nk are lengths, Hq and Hkv numbers of heads. Bad
input raises Error, a ValueError of one sentence, and nothing has been written then. PyTorch's gradients, compiled
graphs and F.scaled_dot_product_attention are in flashomp.torch, flash-attention's functions in flashomp.flash_attn,
and flashomp.jax works in jax.jit, grad and vmap.
"""

from __future__ import annotations

from . import _core
from ._calls import (Gradients, PreparedBackward, PreparedForward, append, attention, attention_backward, dropout_mask,
                     merge, prepare, prepare_backward)
from ._options import Options
from ._program import devices, host_isa, info, plan, program

Error = _core.Error
BlockMask = _core.BlockMask
NotBuilt = _core.NotBuilt
RunFailure = _core.RunFailure
version: str = _core.__version__
__version__: str = version

__all__ = ["BlockMask", "Error", "Gradients", "NotBuilt", "Options", "PreparedBackward", "PreparedForward", "RunFailure", "append",
           "attention", "attention_backward", "devices", "dropout_mask", "host_isa", "info", "merge", "plan", "prepare",
           "prepare_backward", "program", "version"]
