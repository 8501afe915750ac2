"""flashomp's forward and backward pass as operators of PyTorch: flashomp::forward and flashomp::backward.

Tensors are [batch, seqlen, heads, head_dim] (layout "bshd"), [batch, heads, seqlen, head_dim] ("bhsd") or packed,
[total, heads, head_dim]. `seed` is int64 [2], the seed and the offset of dropout: a tensor, so that a compiled graph
draws it anew at every call. o and the gradients lie in memory in the order of q, k and v.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import _core
from ._counts import counts

_OPTIONS = (
    "Tensor? bias, Tensor? key_padding_mask, Tensor? alibi_slopes, Tensor? sink, Tensor? cu_seqlens_q, "
    "Tensor? cu_seqlens_k, Tensor? seed, Tensor? mask, float? scale, str causal, SymInt window_left, SymInt window_right, "
    "float softcap, float dropout, str layout"
)
_library = torch.library.Library("flashomp", "DEF")
_library.define(f"forward(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor)")
_library.define(f"backward(Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor dout, {_OPTIONS}, "
                "bool dbias, bool dsink) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")


def _unit_stride(tensor: Tensor) -> Tensor:
    """flashomp reads any strides but of the last axis; PyTorch's operators read those, too."""
    return tensor if tensor.stride(-1) == 1 or tensor.size(-1) == 1 else tensor.contiguous()


def new_like(tensor: Tensor, shape: Sequence[Any], layout: str) -> Tensor:
    """A tensor as _core makes results, in the order of memory of another with these axes, as PyTorch's own are: in layout
    "bhsd" a query that was transposed from [batch, seqlen, heads, head_dim] gives such a result. Not one that
    _unit_stride() copies, since the copy is what _core sees."""
    if (layout == "bhsd" and len(shape) == 4 and tensor.size(1) > 1 and tensor.size(2) > 1
            and tensor.stride(1) < tensor.stride(2) and (tensor.stride(-1) == 1 or tensor.size(-1) == 1)):
        return torch.empty_permuted(shape, (0, 2, 1, 3), dtype=tensor.dtype, device=tensor.device)
    return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)


def _lse_shape(q: Tensor, layout: str) -> tuple[Any, ...]:
    if q.dim() == 3:
        return (q.shape[1], q.shape[0])
    heads, rows = (1, 2) if layout == "bhsd" else (2, 1)
    return (q.shape[0], q.shape[heads], q.shape[rows])


def core_options(bias: Tensor | None, key_padding_mask: Tensor | None, alibi_slopes: Tensor | None,
                 sink: Tensor | None, cu_seqlens_q: Tensor | None, cu_seqlens_k: Tensor | None, seed: Tensor | None,
                 mask: Tensor | None, scale: float | None, causal: str, window_left: int, window_right: int, softcap: float,
                 dropout: float, layout: str) -> dict[str, Any]:
    """Only what was given, since each option that is read costs time."""
    options: dict[str, Any] = {"layout": layout, "threads": torch.get_num_threads()}
    tensors = (("bias", bias), ("key_padding_mask", key_padding_mask), ("alibi_slopes", alibi_slopes), ("sink", sink))
    for name, tensor in tensors:
        if tensor is not None:
            options[name] = _unit_stride(tensor)
    if mask is not None:
        options["mask"] = mask  # of any strides
    for name, starts in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        if starts is not None:
            options[name] = starts.cpu()
    if scale is not None:
        options["scale"] = scale
    if causal != "none":
        options["causal"] = causal
    if window_left != -1 or window_right != -1:
        options["window"] = (window_left, window_right)
    if softcap != 0.0:
        options["softcap"] = softcap
    if dropout != 0.0:
        options["dropout"] = dropout
        if seed is not None:
            # A tensor of PyTorch is signed; flashomp's seed is not.
            options["seed"], options["offset"] = (number & 0xFFFFFFFFFFFFFFFF for number in seed.tolist())
    return options


def forward_kernel(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The library's call; tensors may have any strides that PyTorch has."""
    result: tuple[Tensor, Tensor] = _core.attention(_unit_stride(q), _unit_stride(k), _unit_stride(v), None, None, True,
                                                    False, False, options, True)
    counts.forward()
    return result


def _forward(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    return forward_kernel(q, k, v, core_options(*options))


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    layout = options[-1]
    torch._check(q.dim() == k.dim() == v.dim() and q.dim() in (3, 4),
                 lambda: f"q, k and v have {q.dim()}, {k.dim()} and {v.dim()} axes; all must have 4, or 3 where packed.")
    out = new_like(q, (*q.shape[:-1], v.shape[-1]), layout)
    return out, torch.empty(_lse_shape(q, layout), dtype=torch.float32, device=q.device)


def _backward(q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, dout: Tensor,
              *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    *given, with_dbias, with_dsink = rest
    return backward_kernel(q, k, v, o, lse, dout, core_options(*given), with_dbias, with_dsink)


def backward_kernel(q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, dout: Tensor, options: dict[str, Any],
                    with_dbias: bool, with_dsink: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The library's call, as forward_kernel()."""
    inputs = (_unit_stride(q), _unit_stride(k), _unit_stride(v), _unit_stride(o), lse, _unit_stride(dout))
    gradients = (None, None, None, None if with_dbias else False, None if with_dsink else False)
    dq, dk, dv, dbias, dsink = _core.attention_backward(inputs, gradients, False, False, options, True)
    counts.backward()
    return dq, dk, dv, q.new_empty(0) if dbias is None else dbias, q.new_empty(0) if dsink is None else dsink


def _backward_fake(q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, dout: Tensor,
                   *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    *given, with_dbias, with_dsink = rest
    layout, bias, sink = given[-1], given[0], given[3]
    return (new_like(q, q.shape, layout), new_like(k, k.shape, layout), new_like(v, v.shape, layout),
            torch.empty(bias.shape, dtype=bias.dtype, device=bias.device) if with_dbias else q.new_empty(0),
            torch.empty(sink.shape, dtype=sink.dtype, device=sink.device) if with_dsink else q.new_empty(0))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, *options = inputs
    o, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, o, lse, *options[:8])
    ctx.options = options[8:]


def _gradients(backward: Callable[..., Any], ctx: Any, dout: Tensor | None) -> tuple[Tensor | None, ...]:
    if dout is None:
        return (None,) * 18
    q, k, v, o, lse, *tensors = ctx.saved_tensors
    with_dbias = ctx.needs_input_grad[3]
    with_dsink = ctx.needs_input_grad[6]
    dq, dk, dv, dbias, dsink = backward(q, k, v, o, lse, dout, *tensors, *ctx.options, with_dbias, with_dsink)
    return (dq, dk, dv, dbias if with_dbias else None, None, None, dsink if with_dsink else None, *(None,) * 11)


def _autograd(ctx: Any, dout: Tensor | None, _dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    return _gradients(torch.ops.flashomp.backward.default, ctx, dout)


def _no_second_derivative(ctx: Any, *gradients: Any) -> Any:
    raise _core.NotBuilt("flashomp has no second derivatives; differentiate once, or use PyTorch's math kernel for "
                         "this attention.")


class Backward(torch.autograd.Function):
    """The backward pass for Transformed."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        result: tuple[Tensor, ...] = torch.ops.flashomp.backward.default(*arguments)
        return result

    setup_context = staticmethod(lambda ctx, inputs, output: None)
    backward = staticmethod(_no_second_derivative)


class Transformed(torch.autograd.Function):
    """The operator's gradients as PyTorch's transforms (torch.func) want them."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = torch.ops.flashomp.forward.default(q, k, v, *options)
        return result

    setup_context = staticmethod(_setup_context)

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, _dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        return _gradients(Backward.apply, ctx, dout)


class Eager(torch.autograd.Function):
    """The operator's gradients in eager code that nothing watches, without what dispatching the operators takes."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
        output = _forward(q, k, v, *options)
        _setup_context(ctx, (q, k, v, *options), output)
        return output

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, _dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        # With create_graph the operator says that there are no second derivatives.
        if dout is None or torch.is_grad_enabled() or is_watched(dout):
            return _autograd(ctx, dout, None)
        return _gradients(_backward, ctx, dout)


class BlocksBackward(torch.autograd.Function):
    """The backward pass for EagerBlocks where a graph of it is made, which can be differentiated no further."""

    @staticmethod
    def forward(ctx: Any, block_mask: Any, *arguments: Any) -> tuple[Tensor, ...]:
        q, k, v, o, lse, dout, *given, with_dbias, with_dsink = arguments
        return backward_kernel(q, k, v, o, lse, dout, {**core_options(*given), "block_mask": block_mask}, with_dbias,
                               with_dsink)

    backward = staticmethod(_no_second_derivative)


class EagerBlocks(torch.autograd.Function):
    """The same with a BlockMask, which is no tensor and so no argument of an operator."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
        *options_of_core, block_mask = options
        output = forward_kernel(q, k, v, {**core_options(*options_of_core), "block_mask": block_mask})
        _setup_context(ctx, (q, k, v, *options_of_core), output)
        ctx.block_mask = block_mask
        return output

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, _dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        return (*_gradients(functools.partial(BlocksBackward.apply, ctx.block_mask), ctx, dout), None)


def is_watched(*tensors: Tensor | None) -> bool:
    """Whether a mode, a tracer or a transform is to see the operator. Where nobody is, it has nothing to do but to cost
    time."""
    if torch._C._len_torch_dispatch_stack() != 0 or is_transformed() or torch._C._get_tracing_state() is not None:
        return True
    for tensor in tensors:
        if tensor is not None and ((type(tensor) is not Tensor and type(tensor) is not torch.nn.Parameter)
                                   or tensor.is_neg() or tensor.is_meta):  # PyTorch resolves both on the way to an operator
            return True
    return False


def is_transformed() -> bool:
    """Whether a transform of torch.func or forward-mode differentiation is under way."""
    return torch._C._functorch.maybe_current_level() is not None or forward_ad._current_level >= 0


for _device in ("CPU", "CUDA"):
    _library.impl("forward", _forward, _device)
    _library.impl("backward", _backward, _device)
torch.library.register_fake("flashomp::forward", _forward_fake, lib=_library)
torch.library.register_fake("flashomp::backward", _backward_fake, lib=_library)
torch.library.register_autograd("flashomp::forward", _autograd, setup_context=_setup_context, lib=_library)
torch.library.register_autograd("flashomp::backward", _no_second_derivative,
                                setup_context=lambda ctx, inputs, output: None, lib=_library)
