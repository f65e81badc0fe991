"""Capturing a CUDA graph, without letting anything else touch the device meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def captured(stream: torch.cuda.Stream) -> Iterator[torch.cuda.CUDAGraph]:
    """Yields a graph that holds what is launched inside, to be replayed later.

    The garbage collector waits until the capture is over: it may come upon an older graph that nobody holds any more,
    and freeing one graph while another is captured makes the capture fail.
    """
    graph, collecting = torch.cuda.CUDAGraph(), gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, stream=stream):
            yield graph
    finally:
        if collecting:
            gc.enable()
