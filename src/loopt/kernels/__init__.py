"""Making a model fast on the device it is on."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import torch

from loopt._version import source_hash
from loopt.model import Attend, Layer, LoopedTransformer, ModelConfig


@functools.cache
def has_triton() -> bool:
    """Whether kernels of our own can be compiled: it comes with the CUDA builds of torch only."""
    return importlib.util.find_spec("triton") is not None


def wake_compiler() -> None:
    """Have the processes that compile kernels for CUDA start, while there is something else to do: until they are up,
    kernels are compiled one after the other."""
    from torch._inductor.async_compile import AsyncCompile

    AsyncCompile.wakeup()


def own_attention(config: ModelConfig) -> Attend | None:
    """What attends in place of the model's own on CUDA, or None; needs Triton."""
    from loopt.kernels import attention, rotary

    if config.max_len <= attention.MAX_TOKENS and config.width_of_head in attention.HEAD_DIMS and config.scale > 0:
        return attention.attend
    if config.positions == "rope" and config.width_of_head in rotary.HEAD_DIMS:
        return rotary.attend
    return None


def tell_compiled_graphs_apart() -> None:
    """Have torch keep the graphs it compiles from now on apart by the text of our kernels. It knows an operator in its
    cache by the name alone, so a graph compiled for another version of ours would be taken, and fail or compute
    something else. The tag is one for the whole process: what others compile gets it too, which costs them a miss."""
    tag = f"loopt-{source_hash(Path(__file__).parent)}"
    config = torch.compiler.config
    if tag not in config.cache_key_tag:
        config.cache_key_tag += tag


def speed_up(model: LoopedTransformer) -> None:
    """Compile the layers, one compilation serving all layers and loops, and on CUDA take our own attention kernel
    where it fits, or else that for rotary positions. The model computes what it did, but for rounding."""
    ours = own_attention(model.config) if model.token_embedding.weight.is_cuda and has_triton() else None
    if ours is not None:
        tell_compiled_graphs_apart()
    for layer in model.loop.layers:
        assert isinstance(layer, Layer)
        if ours is not None:
            layer.attention.attend = ours
        layer.compile()
