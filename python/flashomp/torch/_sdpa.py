"""flashomp.torch.sdpa: torch.nn.functional.scaled_dot_product_attention by flashomp."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn.attention.bias import CausalBias, CausalVariant

from .. import _core
from ._attention import autocast, autocast_bias, call, new_seed
from ._counts import counts
from ._operators import is_watched

#: PyTorch's own function, whatever enable() puts in its place.
pytorch_sdpa = F.scaled_dot_product_attention

#: Whether torch.nn.attention.sdpa_kernel() allows flash kernels, of which flashomp's are.
fused_kernels_are_allowed = torch._C._get_flash_sdp_enabled

_types = (Tensor, torch.nn.Parameter, FakeTensor, FunctionalTensor)  # the last two while PyTorch traces
_core.set_plain_types(Tensor, torch.nn.Parameter)
_numbers = (float, int, torch.SymFloat, torch.SymInt)
_dtypes = (torch.float32, torch.bfloat16, torch.float16)


def why_not(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool,
            scale: float | None, enable_gqa: bool, devices: tuple[str, ...]) -> str | None:
    """Why PyTorch's kernel must do this call, or None where flashomp can. A call that PyTorch refuses is PyTorch's, too:
    its message is the one that users know."""
    if not fused_kernels_are_allowed():
        return "sdpa_kernel() leaves fused kernels out"
    if type(is_causal) is not bool or type(enable_gqa) is not bool:
        return "is_causal or enable_gqa is not a bool"
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if type(tensor) not in _types:
            return f"{name} is a {type(tensor).__name__}"
        if tensor.layout is not torch.strided or tensor.is_nested:
            return f"{name} is not a dense tensor"
    if not (query.is_cpu and key.is_cpu and value.is_cpu):
        if query.device.type not in devices:
            return f"query is on {query.device.type}"
        if not query.device == key.device == value.device:
            return "query, key and value differ in device"
    dtype = query.dtype
    if not dtype == key.dtype == value.dtype:
        return "query, key and value differ in dtype"
    if dtype not in _dtypes:
        return f"query is {dtype}"
    q, k, v = query.shape, key.shape, value.shape
    if len(q) < 2 or len(k) < 2 or len(v) < 2:
        return "a tensor has fewer than two axes"
    if not 1 <= q[-1] <= _core.most_head_dim or not 1 <= v[-1] <= _core.most_head_dim_v:
        return f"head_dim is not from 1 to {_core.most_head_dim}, or value's not from 1 to {_core.most_head_dim_v}"
    if q[-1] != k[-1] or k[-2] != v[-2]:
        return "the shapes do not fit together"
    if not isinstance(dropout_p, _numbers) or not (scale is None or isinstance(scale, _numbers)):
        return "dropout_p or scale is not a number"
    if not 0.0 <= dropout_p < 1.0:
        return "dropout_p is not in [0, 1)"
    if scale is not None and scale != 0.0 and not 1.2e-38 <= abs(scale) <= 2.35e38:
        return "scale is too large or too small"
    if len(q) == len(k) == len(v) == 4 and q[0] == k[0] == v[0] and q[1] == k[1] == v[1]:
        leading: tuple[int, ...] | None = (q[0],)
        heads: int | None = q[1]
    else:
        leading = _broadcast(q[:-3], k[:-3], v[:-3])
        heads = _heads(q, k, v, enable_gqa)
    if leading is None or heads is None:
        return "the shapes do not fit together"
    if not 1 <= heads <= 1 << 20 or max(*leading, q[-2], k[-2], 0) > 1 << 30:
        return "there are no heads, more than 2^20, or sequences beyond 2^30"
    if attn_mask is None:
        return None
    if is_causal:
        return "attn_mask and is_causal are both given"
    if isinstance(attn_mask, CausalBias):
        fits = (attn_mask.seq_len_q, attn_mask.seq_len_kv) == (q[-2], k[-2])
        return None if fits else "attn_mask does not fit"
    if type(attn_mask) not in _types:
        return f"attn_mask is a {type(attn_mask).__name__}"
    if attn_mask.dtype not in (torch.bool, torch.float32, dtype):
        return f"attn_mask is {attn_mask.dtype}"
    if attn_mask.device != query.device or attn_mask.dim() < 2:
        return "attn_mask is on another device or has fewer than two axes"
    scores = (*leading, heads, q[-2], k[-2])
    if _broadcast(attn_mask.shape, scores) != scores:
        return "attn_mask does not fit"
    return None


def plain(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float | None, enable_gqa: bool) -> Tensor | None:
    """The result of a call without mask, dropout and gradient on the CPU, or None where the call is another one."""
    if torch.compiler.is_compiling() or not fused_kernels_are_allowed() or is_watched() or torch.is_autocast_enabled("cpu"):
        return None
    if type(is_causal) is not bool or type(enable_gqa) is not bool or (scale is not None and type(scale) is not float):
        return None
    o: Tensor | None = _core.plain_attention(query, key, value, scale, is_causal, enable_gqa, torch.is_grad_enabled(),
                                             torch.get_num_threads())
    if o is not None:
        counts.forward()
    return o


def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape to which all of them broadcast, or None."""
    result: list[int] = []
    for shape in shapes:
        result = [1] * (len(shape) - len(result)) + result
        for axis in range(-1, -len(shape) - 1, -1):
            if result[axis] == 1:
                result[axis] = shape[axis]
            elif shape[axis] not in (1, result[axis]):
                return None
    return tuple(result)


def _heads(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], enable_gqa: bool) -> int | None:
    """The heads of the scores, or None where the heads do not fit together. Two axes are one head."""
    heads_q, heads_k, heads_v = (shape[-3] if len(shape) > 2 else 1 for shape in (q, k, v))
    if enable_gqa:
        fits = heads_k > 0 and heads_v == heads_k and heads_q % heads_k == 0 and min(len(q), len(k), len(v)) > 2
        return heads_q if fits else None
    heads = _broadcast((heads_q,), (heads_k,), (heads_v,))
    return None if heads is None else heads[0]


def _four_axes(tensor: Tensor, leading: tuple[int, ...]) -> Tensor:
    """[..., heads, rows, columns] broadcast to the leading axes, as [batch, heads, rows, columns]. Heads of a tensor
    stay as they are."""
    if tensor.dim() == 2:
        tensor = tensor.unsqueeze(0)
    if tensor.shape[:-3] != leading:
        tensor = tensor.expand(*leading, *tensor.shape[-3:])
    if len(leading) == 1:
        return tensor
    return tensor.unsqueeze(0) if not leading else tensor.flatten(0, -4)


def _mask_of_four_axes(mask: Tensor, leading: tuple[int, ...]) -> Tensor:
    """The mask as [1|B, 1|H, 1|rows, 1|columns]: an axis that is broadcast has one element, so that nothing is copied
    for it, and a gradient is summed over it."""
    while mask.dim() < len(leading) + 3:
        mask = mask.unsqueeze(0)
    for axis in range(mask.dim()):
        if mask.size(axis) > 1 and mask.stride(axis) == 0 and not mask.requires_grad:
            mask = mask.narrow(axis, 0, 1)
    if len(leading) == 0:
        return mask.unsqueeze(0)
    if len(leading) > 1:
        if any(extent != 1 for extent in mask.shape[:-3]):
            mask = mask.expand(*leading, *mask.shape[-3:])
        mask = mask.flatten(0, -4)
    return mask


def _attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool,
               scale: float | None, enable_gqa: bool) -> Tensor:
    """A call that why_not() has nothing against."""
    causal = "top_left" if is_causal else "none"
    if isinstance(attn_mask, CausalBias):
        causal = "top_left" if attn_mask.variant == CausalVariant.UPPER_LEFT else "bottom_right"
        attn_mask = None
    q, k, v = query, key, value
    leading: tuple[int, ...]
    if q.dim() == k.dim() == v.dim() == 4 and q.size(0) == k.size(0) == v.size(0):
        leading = (q.size(0),)
    else:
        leading = _broadcast(query.shape[:-3], key.shape[:-3], value.shape[:-3]) or ()
        q, k, v = (_four_axes(tensor, leading) for tensor in (query, key, value))
    if not enable_gqa and not q.size(1) == k.size(1) == v.size(1):
        # Heads are broadcast like the axes before them; one head of keys for all queries is what flashomp has anyway.
        heads = max(q.size(1), k.size(1), v.size(1)) if q.size(1) > 0 else 0
        q = q.expand(-1, heads, -1, -1)
        if k.size(1) != 1 or v.size(1) != 1:
            k = k.expand(-1, heads, -1, -1)
            v = v.expand(-1, heads, -1, -1)
    bias = padding = pairs = None
    if attn_mask is not None:
        mask = _mask_of_four_axes(attn_mask, leading)
        if mask.dtype != torch.bool:
            bias = mask if mask.dtype in (torch.float32, q.dtype) else mask.to(q.dtype)
        elif mask.size(1) == 1 and mask.size(2) == 1:
            padding = mask[:, 0, 0, :].expand(q.size(0), k.size(2))
        else:
            pairs = mask
    o, _ = call(q, k, v, bias=bias, key_padding_mask=padding, mask=pairs, seed=new_seed() if dropout_p > 0.0 else None,
                scale=scale, causal=causal, dropout=dropout_p, layout="bhsd")
    if len(leading) == 1:
        return o
    if leading:
        return o.reshape(*leading, *o.shape[1:])
    return o[0] if max(query.dim(), key.dim(), value.dim()) > 2 else o[0, 0]


def sdpa(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
         is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, computed by flashomp, with the same signature and meaning.

    query: [..., Hq, L, E]; key: [..., H, S, E]; value: [..., H, S, Ev]; result: [..., Hq, L, Ev]. float32, bfloat16 or
    float16; E from 1 to 576 and Ev from 1 to 512. Axes before the last two are broadcast.
    attn_mask: bool (True takes part) or added to the scores (float32 or the dtype of query; it gets its gradient),
    broadcastable to [..., Hq, L, S]; or a torch.nn.attention.bias.CausalBias. A row whose keys are all masked gives 0.
    A boolean mask is read as it is, of any strides; tiles that it hides are not computed.
    dropout_p: PyTorch's generator of the CPU draws the seed; the mask is flashomp's own.
    is_causal: query i sees keys j <= i. scale: default 1/sqrt(E). enable_gqa: Hq may be a multiple of H.

    Raises flashomp.Error (a ValueError) for what flashomp cannot do; enable() hands such calls to PyTorch instead.
    """
    if attn_mask is None and dropout_p == 0.0:
        o = plain(query, key, value, is_causal, scale, enable_gqa)
        if o is not None:
            return o
    query, key, value = autocast(query, key, value)
    attn_mask = autocast_bias(attn_mask, query)
    reason = why_not(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, ("cpu", "cuda", "meta"))
    if reason is not None:
        raise _core.Error(f"flashomp cannot do this call of sdpa: {reason}; "
                          "torch.nn.functional.scaled_dot_product_attention may.")
    return _attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
