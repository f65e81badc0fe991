"""What is read out after each loop is what the model would have answered had it stopped there."""

from __future__ import annotations

import pytest
import torch

from loopt import LoopedTransformer, LoopPlan, ModelConfig
from loopt.analysis import answers_by_loop

TOKENS = [3, 1, 4, 1, 5]


def build(plan: str) -> LoopedTransformer:
    torch.manual_seed(0)
    return LoopedTransformer(ModelConfig(LoopPlan.parse(plan), d_model=16, n_heads=2, d_ff=24, vocab_size=7, max_len=8))


@pytest.mark.parametrize("loops", [None, 1, 5])
def test_answers_are_those_of_the_model_stopped_there(loops: int | None) -> None:
    model = build("2x3")
    answers = answers_by_loop(model, TOKENS, loops)
    assert [(answer.block, answer.loop) for answer in answers] == [(0, loop) for loop in range(loops or 3)]
    for answer in answers:
        probabilities = model(torch.tensor([TOKENS]), loops=answer.loop + 1)[0].softmax(-1)
        assert answer.choices == probabilities.argmax(-1).tolist()
        assert answer.confidences == pytest.approx(
            [p[c].item() for p, c in zip(probabilities, answer.choices, strict=True)]
        )


def test_one_for_every_loop_of_every_block() -> None:
    model = build("1x(1,3,2*)")
    answers = answers_by_loop(model, TOKENS, loops=1)
    assert [(answer.block, answer.loop) for answer in answers] == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0)]
    assert answers[-1].choices == model(torch.tensor([TOKENS]), loops=1)[0].argmax(-1).tolist()
