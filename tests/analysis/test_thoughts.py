"""What is read out after each loop is what the model would have answered had it stopped there."""

from __future__ import annotations

import pytest
import torch

from loopt import LoopedTransformer, LoopPlan, ModelConfig
from loopt.analysis import answers_by_loop
from loopt.errors import PlanError

TOKENS = [3, 1, 4, 1, 5]


def build(plan: str) -> LoopedTransformer:
    torch.manual_seed(0)
    return LoopedTransformer(ModelConfig(LoopPlan.parse(plan), d_model=16, n_heads=2, d_ff=24, vocab_size=7, max_len=8))


@pytest.mark.parametrize("loops", [None, 1, 5])
@pytest.mark.parametrize("plan", ["2x3", "1x(1,3,1)", "1x(1,3,2*)", "2x3*+1x2"])
def test_answers_are_those_of_the_model_with_so_many_loops(plan: str, loops: int | None) -> None:
    model = build(plan)
    answers = answers_by_loop(model, TOKENS, loops, top=2)
    of_plan = model.config.plan.blocks[model.config.plan.loopable or 0].loops
    assert [answer.loops for answer in answers] == list(range(1, (loops or of_plan) + 1))
    for answer in answers:
        probabilities = model(torch.tensor([TOKENS]), loops=answer.loops)[0].softmax(-1)  # [T, V]
        best = probabilities.topk(2)
        assert answer.choices == best.indices.tolist()
        assert answer.probabilities == [pytest.approx(row) for row in best.values.tolist()]
        assert answer.entropy == pytest.approx((-(probabilities * probabilities.log()).sum(-1)).tolist())


def test_a_plan_that_does_not_tell_what_to_loop_is_refused() -> None:
    with pytest.raises(PlanError, match=r"does not tell which of its 2 blocks to read out after each loop"):
        answers_by_loop(build("1x(2,2)"), TOKENS)
