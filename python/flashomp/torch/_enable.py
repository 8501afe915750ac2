"""enable(): PyTorch's F.scaled_dot_product_attention runs on flashomp, for the whole process."""

from __future__ import annotations

import functools
import threading
from contextlib import contextmanager
from typing import Any, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import CausalBias

from .. import _core
from ._attention import autocast, autocast_bias
from ._counts import counts
from ._sdpa import _attention, plain, pytorch_sdpa, why_not

_lock = threading.Lock()
_enabled: dict[bool, int] = {False: 0, True: 0}  # who has it on, without and with CUDA: enable() and open contexts
_by_enable: bool | None = None  # whether enable() has it on, and with CUDA
_devices: tuple[str, ...] = ()  # those that are served; none while it is off
_before: Any = pytorch_sdpa  # what was in PyTorch's place when it was put on


# Its own name, not that of PyTorch's function, under which pickle would find another one; its signature is written out.
@functools.wraps(pytorch_sdpa, assigned=("__doc__",), updated=())
def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
                                 enable_gqa: bool = False) -> Tensor:
    if not _devices:  # a name that somebody kept from when flashomp was on
        return pytorch_sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if attn_mask is None and dropout_p == 0.0:
        o = plain(query, key, value, is_causal, scale, enable_gqa)
        if o is not None:
            return o
    query, key, value = autocast(query, key, value)
    attn_mask = autocast_bias(attn_mask, query)
    reason = why_not(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, _devices)
    if reason is None:
        return _attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if not torch.compiler.is_compiling():
        counts.pytorch(reason)
    if isinstance(attn_mask, CausalBias):
        # It looks for PyTorch's function under the name that has another one now.
        return CausalBias._dispatch(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    return pytorch_sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


# TorchScript cannot compile the function above, so that a script has PyTorch's operator in its place.
torch.jit._builtins._register_builtin(scaled_dot_product_attention, "aten::scaled_dot_product_attention")


def _expect_backend(cuda: bool) -> None:
    if (cuda and "cuda" not in _core.build_info["backends"]
            and not any(device["shares_cuda_memory"] for device in _core.devices("openmp"))):
        raise _core.Error("cuda was True, but this build of flashomp has no CUDA backend (FLASHOMP_BACKEND=cuda), and OpenMP "
                          "has no GPU whose memory it shares with PyTorch; it must be False.")


def _change(cuda: bool, by: int) -> None:
    """With the lock held: one more or one fewer who has it on."""
    global _devices, _before
    was_on = any(_enabled.values())
    _enabled[cuda] += by
    is_on = any(_enabled.values())
    _devices = ("cpu", "cuda") if _enabled[True] else ("cpu",) if is_on else ()
    if is_on:
        if not was_on and F.scaled_dot_product_attention is not scaled_dot_product_attention:
            _before = F.scaled_dot_product_attention
        F.scaled_dot_product_attention = scaled_dot_product_attention
    elif F.scaled_dot_product_attention is scaled_dot_product_attention:  # else somebody has replaced the function since
        F.scaled_dot_product_attention, _before = _before, pytorch_sdpa


def enable(*, cuda: bool = False) -> None:
    """Serves torch.nn.functional.scaled_dot_product_attention by flashomp, in all threads of the process, until disable().

    Calls that flashomp cannot do go to PyTorch's function, and counts() says why. cuda: tensors on CUDA devices, too, by
    the CUDA backend where it is built, else by OpenMP on the GPU; an Error where neither can be had.
    The function is replaced in torch.nn.functional, so that modules of torch.nn and code that looks the function up there
    when it calls are served; a name that was imported from there before keeps PyTorch's function. What torch.jit.script
    compiles keeps PyTorch's kernels, too, and is not counted. disable() puts back what was there, also where that was not
    PyTorch's; calls that flashomp cannot do go to PyTorch's function, not to that.
    """
    global _by_enable
    _expect_backend(cuda)
    with _lock:
        if _by_enable is not None:
            _change(_by_enable, -1)
        _by_enable = cuda
        _change(cuda, 1)


def disable() -> None:
    """Takes back enable(). Contexts of enabled() that are open stay on until they end."""
    global _by_enable
    with _lock:
        if _by_enable is not None:
            _change(_by_enable, -1)
        _by_enable = None


@contextmanager
def enabled(*, cuda: bool = False) -> Iterator[None]:
    """enable() for a with block: in all threads, until the last open block ends and disable() was called."""
    _expect_backend(cuda)
    with _lock:
        _change(cuda, 1)
    try:
        yield
    finally:
        with _lock:
            _change(cuda, -1)


def report_counts(*, reset: bool = False) -> dict[str, Any]:
    """What ran where since the process began or the last reset, of all threads: {"forward": n, "backward": n,
    "pytorch": {reason: n}}.

    forward and backward are calls of flashomp's kernels for PyTorch. pytorch has the calls of the served function that
    PyTorch's kernels got, by reason; in code that torch.compile compiled, such calls are not counted.
    """
    report = counts.report()
    if reset:
        counts.reset()
    return report
