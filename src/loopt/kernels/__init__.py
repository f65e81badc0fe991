"""Making a model fast on the device it is on."""

from __future__ import annotations

import functools
import importlib.util

from loopt.model import Layer, LoopedTransformer


@functools.cache
def has_triton() -> bool:
    """Whether kernels of our own can be compiled: it comes with the CUDA builds of torch only."""
    return importlib.util.find_spec("triton") is not None


def wake_compiler() -> None:
    """Have the processes that compile kernels for CUDA start, while there is something else to do: until they are up,
    kernels are compiled one after the other."""
    from torch._inductor.async_compile import AsyncCompile

    AsyncCompile.wakeup()


def speed_up(model: LoopedTransformer) -> None:
    """Compile the layers, one compilation serving all layers and loops, and on CUDA take our own attention kernel
    where it fits. The model computes what it did, but for rounding."""
    attend = None
    if model.token_embedding.weight.is_cuda and has_triton():
        from loopt.kernels import attention

        config = model.config
        if config.max_len <= attention.MAX_TOKENS and config.width_of_head in attention.HEAD_DIMS and config.scale > 0:
            attend = attention.attend
    for layer in model.loop.layers:
        assert isinstance(layer, Layer)
        if attend is not None:
            layer.attention.attend = attend
        layer.compile()
