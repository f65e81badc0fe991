from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from loopt import LoopedTransformer, LoopPlan, ModelConfig
from loopt.attention import Context, Heads
from loopt.model import Layer
from loopt.similarity import cosine_matrix, layer_groups

CONFIG = ModelConfig(LoopPlan.parse("4x1"), d_model=8, n_heads=2, d_ff=12, vocab_size=5, max_len=6, head_dim=6)


def groups(config: ModelConfig = CONFIG) -> list[dict[str, Tensor]]:
    torch.manual_seed(0)
    layers = [layer for layer in LoopedTransformer(config).loop.layers if isinstance(layer, Layer)]
    return [layer_groups(layer) for layer in layers]


def cosine_by_hand(first: Tensor, second: Tensor) -> float:
    a, b = first.detach().double().numpy().ravel(), second.detach().double().numpy().ravel()
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


@pytest.mark.parametrize("kind", ["gelu", "relu", "swiglu"])
@pytest.mark.parametrize("biases", ["none", "all"])
def test_groups_are_the_matrices_of_a_layer_and_nothing_else(kind: Any, biases: Any) -> None:
    layer = LoopedTransformer(replace(CONFIG, feed_forward=kind, biases=biases, norm="layer")).loop.layers[0]
    assert isinstance(layer, Layer)
    found = layer_groups(layer)
    names = ["query", "key", "value", "output", "up", *(["gate"] if kind == "swiglu" else []), "down"]
    assert list(found) == names
    assert sum(group.numel() for group in found.values()) == sum(p.numel() for p in layer.parameters() if p.ndim == 2)
    with torch.no_grad():
        for group in found.values():
            group.fill_(7)  # views: the layer's own weights change
    assert all(bool((p == 7).all()) for p in layer.parameters() if p.ndim == 2)


@pytest.mark.parametrize("n_kv_heads", [None, 1])
def test_queries_keys_and_values_are_what_attention_takes_them_for(n_kv_heads: int | None) -> None:
    """With the group's rows at zero, attention's own split of the projection has zeros there and nowhere else."""
    for slot, name in enumerate(("query", "key", "value")):
        layer = LoopedTransformer(replace(CONFIG, n_kv_heads=n_kv_heads)).loop.layers[0]
        assert isinstance(layer, Layer)
        with torch.no_grad():
            layer_groups(layer)[name].zero_()
        seen: list[Tensor] = []

        def look(qkv: Tensor, context: Context, heads: Heads, seen: list[Tensor] = seen) -> Tensor:
            seen.extend(qkv.split((heads.queries, heads.keys, heads.keys), dim=1))
            return seen[0]

        layer(torch.randn(1, 3, 8), Context(((1, 3),), None, look))
        assert [bool((part == 0).all()) for part in seen] == [part == slot for part in range(3)]


@pytest.mark.parametrize("layers", [2, 3, 6])
def test_cosines_are_those_of_the_definition(layers: int) -> None:
    weights = groups(replace(CONFIG, plan=LoopPlan.parse(f"{layers}x1")))
    found = cosine_matrix(weights)
    assert found.keys() == weights[0].keys()
    for name, matrix in found.items():
        by_hand = [[cosine_by_hand(one[name], other[name]) for other in weights] for one in weights]
        torch.testing.assert_close(matrix, torch.tensor(by_hand), rtol=1e-5, atol=1e-6)


def test_cosines_ignore_scale_and_see_sign() -> None:
    weight = torch.randn(3, 4)
    found = cosine_matrix([{"up": weight}, {"up": 1e-12 * weight}, {"up": -1e12 * weight}])["up"]
    torch.testing.assert_close(found[0], torch.tensor([1.0, 1.0, -1.0]))


def test_low_precision_is_summed_in_float32() -> None:
    low = [torch.randn(64, 64).bfloat16() for _ in range(2)]
    exact = cosine_by_hand(low[0].float(), low[1].float())
    assert cosine_matrix([{"up": matrix} for matrix in low])["up"][0, 1].item() == pytest.approx(exact, abs=1e-6)


def test_a_zero_matrix_is_like_nothing() -> None:
    layers = [{"up": torch.zeros(2, 2)}, {"up": torch.ones(2, 2)}]
    assert cosine_matrix(layers)["up"][0].tolist() == [0.0, 0.0]
