"""Formal weights and the model they become are the same function."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from loopt import LoopedTransformer, LoopPlan, ModelConfig
from loopt.errors import InputError
from loopt.theory.formal import FormalLayer, FormalTransformer, Head

D, V, N_MAX = 6, 5, 9


def random_formal(plan: str, heads: int = 2, d_qk: int = 3, d_v: int = 2, d_ff: int = 7) -> FormalTransformer:
    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator) * 0.5

    generator = torch.Generator().manual_seed(0)
    parsed = LoopPlan.parse(plan)
    layers = tuple(
        FormalLayer(
            tuple(Head(normal(d_qk, D), normal(d_qk, D), normal(d_v, D), normal(d_v, D)) for _ in range(heads)),
            W1=normal(d_ff, D),
            b1=normal(d_ff),
            W2=normal(D, d_ff),
            b2=normal(D),
        )
        for _ in range(parsed.distinct_layers)
    )
    return FormalTransformer(parsed, normal(V, D), normal(N_MAX, D), layers, normal(V, D))


def by_definition(formal: FormalTransformer, ids: list[int]) -> Tensor:
    """The paper's definitions, one token at a time: logits [n, V]."""
    x = [formal.tokens[token] + formal.positions[i] for i, token in enumerate(ids)]
    for step in formal.plan.steps:
        layer = formal.layers[step.layer]
        after = []
        for i in range(len(x)):
            total = x[i]
            for head in layer.heads:
                scores = torch.stack([(head.query @ x[i]) @ (head.key @ x[j]) for j in range(i + 1)])
                mixed = sum(weight * (head.value @ x[j]) for j, weight in enumerate(scores.softmax(0)))
                total = total + head.output.T @ mixed
            after.append(total)
        x = [y + layer.W2 @ torch.relu(layer.W1 @ y + layer.b1) + layer.b2 for y in after]
    return torch.stack([formal.output @ y for y in x])


@pytest.mark.parametrize("plan", ["1x1", "2x3", "1x1+1x3+1x1"])
@pytest.mark.parametrize(("d_qk", "d_v"), [(3, 2), (2, 3)])
@torch.no_grad()
def test_model_is_the_definition(plan: str, d_qk: int, d_v: int) -> None:
    formal = random_formal(plan, d_qk=d_qk, d_v=d_v)
    ids = [0, 3, 1, 4, 4, 2]
    torch.testing.assert_close(formal.model()(torch.tensor([ids]))[0], by_definition(formal, ids), rtol=0, atol=1e-12)


@torch.no_grad()
def test_weights_read_back_are_the_same_function() -> None:
    config = replace(random_formal("2x2").config, attention_scale=0.3)
    torch.manual_seed(0)
    model = LoopedTransformer(config).double()
    ids = torch.randint(V, (4, N_MAX))
    torch.testing.assert_close(FormalTransformer.of(model).model()(ids), model(ids), rtol=0, atol=1e-12)


def test_other_models_are_refused() -> None:
    model = LoopedTransformer(ModelConfig(LoopPlan.parse("1x1"), 8, 2, 8, vocab_size=4, max_len=4))
    with pytest.raises(InputError, match="positions=rope: the theory's transformer has learned"):
        FormalTransformer.of(model)


def test_equal_layers_are_told() -> None:
    first, second = random_formal("2x1").layers
    assert first.same_as(replace(first, b2=first.b2.clone()))
    assert not first.same_as(second)
    assert not first.same_as(replace(first, b2=first.b2 + 1))
