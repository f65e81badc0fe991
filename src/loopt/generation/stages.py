"""A stage of decoding: a function of no arguments, whose inputs and outputs are all tensors that stay where they are.
It is given at each call and not kept, so that an engine that nobody holds any more is gone at once, with its caches.

On CUDA it is captured in a graph after some ordinary calls, and from then on replayed: a small model's kernels are over
before the host has launched them one by one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from loopt.kernels.graphs import captured

WARM_UP = 2
"""Ordinary calls before a graph is captured: kernels have to be compiled and libraries set up first."""


class Stage:
    """Runs one function, the same at each call, as a CUDA graph where there is a stream to run it on."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        self._stream, self._calls = stream, 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, run: Callable[[], None]) -> None:
        if self._stream is None:
            run()
            return
        self._calls += 1
        if self._graph is None and self._calls > WARM_UP:
            with captured(self._stream) as graph:
                run()
            self._graph = graph
        with torch.cuda.stream(self._stream):
            if self._graph is None:
                run()
            else:
                self._graph.replay()
