"""Making a model fast on the device it is on."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import torch

from loopt._version import source_hash
from loopt.model import Attend, LoopedTransformer, ModelConfig


@functools.cache
def has_triton() -> bool:
    """Tells whether kernels of our own can be compiled: Triton comes with the CUDA builds of torch only."""
    return importlib.util.find_spec("triton") is not None


def start_compile_workers() -> None:
    """Starts the processes that compile kernels for CUDA, while there is something else to do: until they are up,
    kernels are compiled one after the other."""
    from torch._inductor.async_compile import AsyncCompile

    AsyncCompile.wakeup()


def fused_attention(config: ModelConfig) -> Attend | None:
    """Returns the attention kernel of ours that fits a model on CUDA, or None; needs Triton."""
    from loopt.kernels import attention, rotary

    if config.max_len <= attention.MAX_TOKENS and config.width_of_head in attention.HEAD_DIMS and config.scale > 0:
        return attention.attend
    if config.positions == "rope" and config.width_of_head in rotary.HEAD_DIMS:
        return rotary.attend
    return None


def tag_compile_cache() -> None:
    """Has torch keep the graphs it compiles from now on apart by the text of our kernels. It knows an operator in its
    cache by the name alone, so a graph compiled for another version of ours would be taken, and fail or compute
    something else. The tag is one for the whole process: what others compile gets it too, which costs them a miss."""
    tag = f"loopt-{source_hash(Path(__file__).parent)}"
    config = torch.compiler.config
    if tag not in config.cache_key_tag:
        config.cache_key_tag += tag


def compile_model(model: LoopedTransformer) -> None:
    """Compiles the layers, one compilation serving all layers and loops, and on CUDA has the model use a fused
    attention kernel of ours where one fits. The model computes what it did, but for rounding."""
    fused = fused_attention(model.config) if model.token_embedding.weight.is_cuda and has_triton() else None
    if fused is not None:
        tag_compile_cache()
        model.attend = fused
    for layer in model.loop.layers:
        layer.compile()
