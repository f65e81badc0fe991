"""A CUDA graph is captured whatever garbage lies around."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from loopt.kernels.graphs import captured

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture
def eager_collector() -> Iterator[None]:
    """Makes the garbage collector run at every chance."""
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    yield
    gc.set_threshold(*before)


def abandoned_graph(x: Tensor, stream: torch.cuda.Stream) -> None:
    """Leaves a graph that only the garbage collector can free."""
    with captured(stream) as graph:
        x + 1
    ring: list[object] = [graph]
    ring.append(ring)


def test_an_abandoned_graph_is_not_freed_during_a_capture(eager_collector: None) -> None:
    stream, x = torch.cuda.Stream(), torch.ones(4, device="cuda")
    gc.disable()
    abandoned_graph(x, stream)
    gc.enable()
    with captured(stream) as graph:
        rows = [[x * n] for n in range(50)]  # lists, so that the collector would have its chance
    assert gc.isenabled()
    x.fill_(2)
    graph.replay()
    assert rows[3][0].tolist() == [6, 6, 6, 6]
