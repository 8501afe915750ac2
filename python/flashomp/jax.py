"""flashomp for JAX on the CPU: attention that works in jit, grad, vmap and checkpoint.

    import jax, flashomp.jax

    loss = lambda q, k, v: flashomp.jax.attention(q, k, v, causal="bottom_right").sum()
    gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(q, k, v)

XLA calls the library through jax.ffi, as "flashomp_forward" and "flashomp_backward" of the platform cpu. The names of
operands and results and all options that are numbers are attributes of such a call.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, Literal, Tuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero

from . import _core

__all__ = ["attention"]

Tensors = Dict[str, Array]
Attributes = Tuple[Tuple[str, Any], ...]  # sorted pairs, so that they can be a key of JAX's caches

for _name, _handler in _core.jax_handlers.items():
    jax.ffi.register_ffi_target(_name, _handler, platform="cpu")


# One call of XLA


def _results(operands: Tensors, gradients: tuple[str, ...] | None, bhsd: bool) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and dtypes of o and lse, or of gradients, which are as what they belong to: dq as q."""
    q, v = operands["q"], operands["v"]
    if gradients is None:
        rows, heads = (2, 1) if bhsd else (1, 2)
        lse = (q.shape[1], q.shape[0]) if q.ndim == 3 else (q.shape[0], q.shape[heads], q.shape[rows])
        results = {"o": ((*q.shape[:-1], v.shape[-1]), q.dtype), "lse": (lse, jnp.float32)}
    else:
        results = {name: (operands[name[1:]].shape, operands[name[1:]].dtype) for name in gradients}
    return {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in results.items()}


def _call(attributes: Attributes, gradients: tuple[str, ...] | None) -> Callable[[Tensors], Tensors]:
    """The forward pass, or the gradients of these names, as a function of tensors by name. vmap folds its axis into the
    batch where that gives the same; JAX's derivatives of the pass are refused."""
    numbers = dict(attributes)
    target = "flashomp_forward" if gradients is None else "flashomp_backward"

    @custom_vmap
    def run(operands: Tensors) -> Tensors:
        results = _results(operands, gradients, numbers["layout"] == 1)
        call = jax.ffi.ffi_call(target, tuple(results.values()))
        values = call(*operands.values(), operands=",".join(operands), results=",".join(results),
                      **{name: (np.float64 if isinstance(number, float) else np.int64)(number)
                         for name, number in attributes})
        return dict(zip(results, values))

    @run.def_vmap
    def batched(size: int, arguments: list[dict[str, bool]], operands: Tensors) -> tuple[Tensors, dict[str, bool]]:
        is_batched = arguments[0]
        folded = _folded(size, is_batched, operands, numbers, gradients or ())
        if folded is None:
            each = {name: x for name, x in operands.items() if is_batched[name]}
            shared = {name: x for name, x in operands.items() if not is_batched[name]}
            results = jax.lax.map(lambda one: run({**shared, **one}), each)
        else:
            batch = operands["q"].shape[1]
            results = {name: x.reshape(size, batch, *x.shape[1:]) for name, x in run(folded).items()}
        return results, {name: True for name in results}

    @jax.custom_jvp
    def call(operands: Tensors) -> Tensors:
        result: Tensors = run(operands)
        return result

    @call.defjvp
    def derivative(primals: Any, tangents: Any) -> Any:
        raise _core.NotBuilt("flashomp has first derivatives in reverse mode only (jax.grad, jax.vjp), no second ones "
                             "and none in forward mode (jax.jvp, jax.jacfwd, jax.hessian).")

    return call


def _folded(size: int, is_batched: dict[str, bool], operands: Tensors, numbers: dict[str, Any],
            gradients: tuple[str, ...]) -> Tensors | None:
    """Tensors whose batch has the axis of a vmap in it, or None where a call cannot stand for `size` calls: each has
    its own sink, for example, or draws its dropout by its number in the batch."""
    if numbers["dropout"] > 0 or "cu_seqlens_q" in operands or "cu_seqlens_k" in operands:
        return None
    batch = operands["q"].shape[1 if is_batched["q"] else 0]
    folded = {}
    for name, x in operands.items():
        if name == "sink" or (name in ("bias", "mask") and not is_batched[name]):
            if is_batched[name] or "d" + name in gradients or (name != "sink" and x.shape[0] != 1):
                return None
        elif name == "alibi_slopes" and not is_batched[name] and x.ndim == 1:
            pass
        elif name in ("alibi_slopes", "key_padding_mask"):
            x = x if is_batched[name] else x[None]
            x = x if x.ndim == 3 or name == "key_padding_mask" else x[:, None]
            x = jnp.broadcast_to(x, (size, batch, x.shape[-1])).reshape(size * batch, x.shape[-1])
        elif not is_batched[name] or (name in ("bias", "mask") and x.shape[1] != batch):
            return None
        else:
            x = x.reshape(size * batch, *x.shape[2:])
        folded[name] = x
    return folded


# Gradients


@functools.partial(jax.jit, static_argnums=(0, 1), inline=True)
def _attention(attributes: Attributes, with_lse: bool, operands: Tensors) -> tuple[Array, ...]:
    given = tuple(operands)

    def results(forward: Tensors) -> tuple[Array, ...]:
        return (forward["o"], forward["lse"]) if with_lse else (forward["o"],)

    @jax.custom_vjp
    def attention(operands: Tensors) -> tuple[Array, ...]:
        return results(_call(attributes, None)(operands))

    def forward(primals: Any) -> Any:
        if "alibi_slopes" in primals and primals["alibi_slopes"].perturbed:
            raise _core.Error("alibi_slopes is differentiated, but flashomp computes no gradient for it; give "
                              "jax.lax.stop_gradient(alibi_slopes).")
        tensors = {name: primal.value for name, primal in primals.items()}
        # Names with None: what is to be known in the backward pass, but is no array.
        names = {"dq": None, "dk": None, "dv": None,
                 **{"d" + name: None for name in ("bias", "sink") if name in primals and primals[name].perturbed}}
        forward = _call(attributes, None)(tensors)
        return results(forward), ({**tensors, **forward}, names)

    def backward(residuals: Any, cotangents: Any) -> Any:
        saved, names = residuals
        if with_lse and not isinstance(cotangents[1], SymbolicZero):
            raise _core.NotBuilt("lse is differentiated, but flashomp computes no gradient for it; give "
                                 "jax.lax.stop_gradient(lse).")
        dout = cotangents[0]
        gradients: Tensors = {}
        if not isinstance(dout, SymbolicZero):
            gradients = _call(attributes, tuple(names))({**saved, "dout": dout})
        return ({name: gradients.get("d" + name) for name in given},)

    attention.defvjp(forward, backward, symbolic_zeros=True)
    outputs: tuple[Array, ...] = attention(operands)
    return outputs


# What is called


def _words(name: str, value: Any) -> Array | np.ndarray[Any, Any]:
    """A number of 64 bits as uint32 [2], the lower half first. JAX has no 64 bits by default."""
    if isinstance(value, (int, np.integer)):
        return np.array([int(value) & 0xFFFFFFFF, int(value) >> 32], np.uint32)
    value = jnp.asarray(value)
    if value.shape == () and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return jax.random.bits(value, (2,), jnp.uint32)
    if value.shape != () or not jnp.issubdtype(value.dtype, jnp.integer):
        raise _core.Error(f"{name} is {value.dtype} of shape {value.shape}; it must be an integer from 0 to 2^64 - 1, an "
                          "array () of integers, or a key of jax.random.key().")
    high = jnp.where(value < 0, jnp.uint32(0xFFFFFFFF), jnp.uint32(0))
    if value.dtype.itemsize == 8:
        high = (value >> 32).astype(jnp.uint32)
    return jnp.stack([value.astype(jnp.uint32), high])


def attention(q: Any, k: Any, v: Any, *, scale: float | None = None,
              causal: Literal["none", "top_left", "bottom_right"] = "none", window: tuple[int, int] = (-1, -1),
              softcap: float = 0.0, alibi_slopes: Any = None, bias: Any = None, key_padding_mask: Any = None,
              mask: Any = None, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, sink: Any = None, dropout: float = 0.0,
              seed: Any = 0, offset: Any = 0, layout: Literal["bshd", "bhsd"] = "bshd",
              return_lse: bool = False) -> Any:
    """Attention on JAX's arrays of the CPU, with gradients for q, k, v, bias and sink.

    The options mean what they mean for flashomp.attention. Not here are those that say where and how to run (backend,
    machine, device, threads, stream, tiling), q_scale, k_scale and v_scale, out, lse and return_report.

    q: [B, Nq, Hq, head_dim]; k: [B, Nk, Hkv, head_dim]; v: [B, Nk, Hkv, head_dim_v]; float32, bfloat16 or float16;
    packed sequences: [total, heads, head_dim].
    bias: float32 or the dtype of q, [1|B, 1|Hq, 1|Nq, 1|Nk]; its gradient has its shape.
    mask: bool [1|B, 1|Hq, 1|Nq, 1|Nk]: False hides the pair.
    cu_seqlens_q, cu_seqlens_k: int32 [B+1]; their values are checked when the call runs.
    seed, offset: of dropout; integers, arrays () of integers, which may be traced and count modulo 2^64, or keys of
    jax.random.key(). The same seed and offset draw the same mask; both are 0 where they are not given.
    return_lse: returns (o, lse). lse, float32 [B, Hq, Nq], has no gradient; differentiating it raises flashomp.NotBuilt.
    All other options are fixed when JAX traces: jax.jit must know those that it is to pass by static_argnames.

    Returns o, [B, Nq, Hq, head_dim_v] in the dtype of q. Works in jax.jit, grad, vmap and checkpoint. Keeps q, k, v, o
    and lse for the backward pass. vmap is one call where all tensors have its axis (and sinks have it not, and nothing
    is packed or dropped), and else a loop of calls.
    Raises flashomp.Error (a ValueError) while JAX traces when shapes, dtypes or options are not as documented. What only
    the run can know (the values of cu_seqlens) and failures of the machine come from XLA, as jax.errors.JaxRuntimeError
    with the same sentence. flashomp.NotBuilt: second derivatives and forward mode.
    """
    given = {"q": q, "k": k, "v": v, "alibi_slopes": alibi_slopes, "bias": bias, "key_padding_mask": key_padding_mask,
             "mask": mask, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "sink": sink}
    tensors = {name: jnp.asarray(x) for name, x in given.items() if x is not None}
    options: dict[str, Any] = {"scale": scale, "causal": causal, "window": window, "softcap": softcap,
                               "dropout": dropout, "layout": layout}
    draw = {name: x[()] if isinstance(x, np.ndarray) else x for name, x in (("seed", seed), ("offset", offset))}
    options.update({name: x for name, x in draw.items() if isinstance(x, (int, np.integer))})
    attributes = _core.jax_attributes(tensors, options)
    if attributes["dropout"] > 0:
        tensors["seed"] = jnp.concatenate([_words(name, x) for name, x in draw.items()])
    results = _attention(tuple(sorted(attributes.items())), bool(return_lse), tensors)
    return results if return_lse else results[0]
