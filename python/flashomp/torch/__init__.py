"""flashomp for PyTorch: attention with gradients, F.scaled_dot_product_attention, and a switch that serves it.

    import torch, flashomp.torch

    flashomp.torch.enable()  # F.scaled_dot_product_attention on the CPU is flashomp's from here on

The operators are torch.ops.flashomp.forward and .backward.
"""

from __future__ import annotations

import torch as _torch

if not any(getattr(_torch.Tensor, _name, None) for _name in ("__dlpack_c_exchange_api__", "__c_dlpack_exchange_api__")):
    raise ImportError(f"flashomp.torch needs PyTorch 2.10 or newer, whose tensors have DLPack's table of functions; this "
                      f"is PyTorch {_torch.__version__}.")

from . import _operators  # noqa: E402, F401  (registers the operators)
from ._attention import attention  # noqa: E402
from ._enable import disable, enable, enabled, report_counts as counts  # noqa: E402
from ._flex import block_mask  # noqa: E402
from ._sdpa import sdpa  # noqa: E402

__all__ = ["attention", "block_mask", "counts", "disable", "enable", "enabled", "sdpa"]
