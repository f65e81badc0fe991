"""Compiled layers, and Triton kernels for CUDA."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from loopt._version import source_hash
from loopt.attention import Attend, Context
from loopt.model import Layer, LoopedTransformer, ModelConfig


@functools.cache
def has_triton() -> bool:
    """Tells whether Triton is installed, which comes with the CUDA builds of torch only."""
    return importlib.util.find_spec("triton") is not None


def start_compile_workers() -> None:
    """Starts torch's compile workers ahead of time: until they are up, kernels are compiled one after the other."""
    from torch._inductor.async_compile import AsyncCompile

    AsyncCompile.wakeup()


def fused_attention(config: ModelConfig) -> Attend | None:
    """Returns our attention kernel for a model on CUDA, or None where none fits; needs Triton."""
    from loopt.kernels import attention, rotary

    if config.heads.keys != config.heads.queries:
        return None
    if config.max_len <= attention.MAX_TOKENS and config.width_of_head in attention.HEAD_DIMS and config.scale > 0:
        return attention.attend
    if config.positions == "rope" and config.width_of_head in rotary.HEAD_DIMS:
        return rotary.attend
    return None


class DecodeKernels(NamedTuple):
    """What our kernels do of decoding a few tokens; None where they do not fit."""

    attend: Attend | None = None
    run_layer: Callable[[Layer, Tensor, Context], Tensor] | None = None
    read_out: Callable[[Tensor, nn.Module, Tensor, Tensor], None] | None = None


def decode_kernels(model: LoopedTransformer, rows: int) -> DecodeKernels:
    """Returns the kernels that fit decoding with this model, where it is, and so many rows."""
    if not (model.token_embedding.weight.is_cuda and has_triton()):
        return DecodeKernels()
    from loopt.kernels import decode, decode_attention

    if decode.fits_layers(model.config, rows):
        return DecodeKernels(decode_attention.attend, decode.run_layer, decode.read_out)
    return DecodeKernels(decode_attention.attend if decode_attention.fits_attention(model.config) else None)


def choose_kernel(logits: Tensor) -> Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]] | None:
    """Returns the kernel that chooses the next token of each row, where there is one for these logits."""
    if not (logits.is_cuda and logits.dtype == torch.float32 and has_triton()):
        return None
    from loopt.kernels import choose

    return choose.choose


def tag_compile_cache() -> None:
    """Adds a hash of our kernels' source to the key of torch's compile cache. The cache knows an operator by its name
    alone, and would take a graph that was compiled for another version of ours. The key is one for the whole process:
    what others compile gets it too, which costs them a miss."""
    tag = f"loopt-{source_hash(Path(__file__).parent)}"
    config = torch.compiler.config
    if tag not in config.cache_key_tag:
        config.cache_key_tag += tag


def compile_model(model: LoopedTransformer) -> None:
    """Compiles the layers, once for all layers and loops, and on CUDA switches to our fused attention where it fits.
    The model computes the same, but for rounding."""
    fused = fused_attention(model.config) if model.token_embedding.weight.is_cuda and has_triton() else None
    if fused is not None:
        tag_compile_cache()
        model.attend = fused
    for layer in model.loop.layers:
        layer.compile()
