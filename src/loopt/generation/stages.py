"""A stage of decoding: a function of no arguments, whose inputs and outputs are all tensors that stay where they are.

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
    """Runs a function, as a CUDA graph where there is a stream to run it on."""

    def __init__(self, run: Callable[[], None], stream: torch.cuda.Stream | None) -> None:
        self._run, self._stream, self._calls = run, stream, 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if self._stream is None:
            self._run()
            return
        self._calls += 1
        if self._graph is None and self._calls > WARM_UP:
            with captured(self._stream) as graph:
                self._run()
            self._graph = graph
        with torch.cuda.stream(self._stream):
            if self._graph is None:
                self._run()
            else:
                self._graph.replay()
