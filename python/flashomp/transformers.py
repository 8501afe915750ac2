"""flashomp as an attention implementation of Hugging Face Transformers: attn_implementation="flashomp"."""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable

import torch
import transformers
from torch import Tensor
from transformers import masking_utils
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, causal_mask_function, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import generic

from . import _core
from .torch._attention import autocast, call, new_seed

NAME = "flashomp"

_sliding_window_name = masking_utils.sliding_window_overlay(1).__qualname__


def _parts(mask_function: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
    """The functions of which and_masks() made this one."""
    if mask_function.__qualname__ == masking_utils.and_masks().__qualname__:
        for cell in mask_function.__closure__ or ():
            if isinstance(cell.cell_contents, tuple):
                return cell.cell_contents
    return (mask_function,)


def _window_of(mask_function: Callable[..., Any]) -> int | None:
    """How many keys a row of a causal mask sees, itself included, 0 for all; None where the mask is another one."""
    parts = _parts(mask_function)
    windows = [part for part in parts if part is not causal_mask_function]
    if causal_mask_function not in parts or len(windows) > 1:
        return None
    if not windows:
        return 0
    closure = windows[0].__closure__ or ()
    if windows[0].__qualname__ != _sliding_window_name or len(closure) != 1:
        return None
    window: int = closure[0].cell_contents
    return window


def mask(batch_size: int, q_length: int, kv_length: int, q_offset: Any = 0, kv_offset: Any = 0,
         mask_function: Callable[..., Any] = causal_mask_function, attention_mask: Tensor | None = None,
         **options: Any) -> Tensor | None:
    """What attention() below gets as attention_mask, once for all layers of a kind. The mask alone says what is hidden:
    layers may say something else in is_causal and sliding_window, or nothing.

    None for a causal mask without padding. bool [batch, keys], True for a key that is no padding: causal besides. The
    same with a third axis, along which nothing changes: causal, and a row sees as many keys as that axis is long. Else
    what Transformers makes for PyTorch's function: [batch, 1, queries, keys].
    Kernels align causal masks and windows to the bottom right, so the last query has to be the last key. A static cache
    has keys beyond the last query.
    """
    if attention_mask is not None and attention_mask.dim() == 3:  # generate() gives models what this has made
        return attention_mask
    window = _window_of(mask_function)
    ends = isinstance(q_offset, int) and isinstance(kv_offset, int) and q_offset + q_length == kv_offset + kv_length
    if window is None or not ends:
        options.pop("allow_is_causal_skip", None)  # None would say: causal from the top left
        return sdpa_mask(batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask,
                         allow_is_causal_skip=False, **options)
    padding = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is not None:
        padding = padding[:, kv_offset:kv_offset + kv_length].to(torch.bool)
        if not torch.compiler.is_compiling() and padding.all():
            padding = None
    if window == 0 or window >= kv_length:
        return padding
    if padding is None:
        padding = torch.ones(1, 1, dtype=torch.bool, device=options.get("device", "cpu")).expand(batch_size, kv_length)
    return padding[:, :, None].expand(-1, -1, window)


def attention(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
              dropout: float = 0.0, scaling: float | None = None, is_causal: bool | None = None,
              softcap: float | None = None, s_aux: Tensor | None = None, position_bias: Tensor | None = None,
              **others: Any) -> tuple[Tensor, None]:
    """Attention of one layer, with gradients; Transformers calls it.

    query: [batch, heads_q, queries, head_dim]; key, value: [batch, heads_kv, keys, head_dim]; the result is
    [batch, queries, heads_q, head_dim_v]. attention_mask: what mask() made, or an additive mask of four axes; without
    one the layer's is_causal counts.
    s_aux: the sinks of gpt-oss, [heads_q]. position_bias: T5's, added to the scores.
    Raises flashomp.Error (a ValueError) for what flashomp does not have: paged caches, head_dim beyond 576, or 512 of values.
    """
    if others.get("cache") is not None:
        raise _core.Error("cache was given, but attn_implementation flashomp has no paged caches; allowed are the other "
                          "kinds of caches.")
    query, key, value = autocast(query, key, value)
    window = (-1, -1)
    bias = position_bias
    padding = pairs = None
    if attention_mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    elif attention_mask.dim() < 4:
        causal = True
        if attention_mask.dim() == 3:
            window = (attention_mask.size(2) - 1, -1)
            attention_mask = attention_mask[:, :, 0]
        padding = None if attention_mask.stride(1) == 0 else attention_mask
    else:
        causal = False  # the mask says all
        if attention_mask.dtype != torch.bool:
            bias = attention_mask if bias is None else bias + attention_mask
        elif attention_mask.stride(1) == 0 and attention_mask.stride(2) == 0 and bias is None:
            padding = attention_mask[:, 0, 0, :]  # of keys alone
        else:
            pairs = attention_mask
    if bias is not None and bias.dtype not in (torch.float32, query.dtype):
        bias = bias.to(query.dtype)
    o, _ = call(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), bias=bias, key_padding_mask=padding,
                mask=pairs, sink=None if s_aux is None else s_aux.float(), seed=new_seed() if dropout > 0.0 else None,
                scale=scaling, causal="bottom_right" if causal else "none", window=window, softcap=softcap or 0.0,
                dropout=dropout)
    return o, None


def _keep_apart() -> None:
    """Transformers takes every name with "flash" in it for flash-attention, asks for its package, and packs sequences for
    it. This name is not one of those."""
    original = generic.is_flash_attention_requested
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def is_flash_attention_requested(config: Any = None, requested_attention_implementation: str | None = None,
                                     version: Any = None) -> bool:
        if config is None or requested_attention_implementation is None:  # both are an error, which the original has
            if NAME in (requested_attention_implementation, getattr(config, "_attn_implementation", None)):
                return False
        answer: bool = original(config, requested_attention_implementation, version)
        return answer

    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("transformers") and (
                module.__dict__.get(original.__name__) is original):
            setattr(module, original.__name__, is_flash_attention_requested)


def _expect_choice() -> None:
    """Models whose attention is their own code ignore the implementation, but would get masks for it."""
    original = transformers.PreTrainedModel._check_and_adjust_attn_implementation
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def check(self: Any, attn_implementation: str | None, *arguments: Any, **options: Any) -> str:
        if attn_implementation == NAME and not (self._supports_attention_backend or self._supports_sdpa):
            raise _core.Error(f"attn_implementation was {NAME}, but {type(self).__name__} computes attention by itself; allowed are "
                              "models that let it be chosen.")
        answer: str = original(self, attn_implementation, *arguments, **options)
        return answer

    setattr(transformers.PreTrainedModel, original.__name__, check)


def register() -> None:
    """Makes attn_implementation="flashomp" known to Transformers, for training and generate().

    Models give padding, causal masks, windows, softcaps, sinks, grouped heads and additive masks; flashomp computes all
    of these without a matrix of queries times keys, but for masks that are none of them (chunks, packed sequences, static
    caches), which become a bias. Calling register() again changes nothing. From then on, a model whose attention cannot be
    chosen, such as Bloom, raises flashomp.Error where it is made with this name.
    Raises flashomp.Error where Transformers is older than 5, whose masks differ.
    """
    if int(transformers.__version__.split(".")[0]) < 5:
        raise _core.Error(f"transformers is version {transformers.__version__}; flashomp.transformers needs 5 or newer.")
    _keep_apart()
    _expect_choice()
    ALL_ATTENTION_FUNCTIONS.register(NAME, attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, mask)
