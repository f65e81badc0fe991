"""Addition of as many numbers as no training example has: what gets a looped layer to do it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from loopt.plan import LoopPlan
from loopt.reproduce.addition import addition
from loopt.reproduce.experiment import Experiment, Row, Scale, miniature
from loopt.runs import MuonConfig, TrainConfig
from loopt.tasks import Addition

PLAN = LoopPlan.parse("1x6")
TESTED: dict[Scale, tuple[int, ...]] = {
    "cpu": (4, 6, 8),
    "short": (8, 12, 16, 20, 24, 32),
    "paper": (8, 12, 16, 20, 24, 32),
}
"""Numbers of numbers; of these 6, or 12, 20 and 24, are not in training."""
MORE: dict[Scale, tuple[int, ...]] = {
    "cpu": (2, 3, 4, 5, 7, 8),
    "short": tuple(n for n in range(2, 33, 2) if n != 24),
    "paper": tuple(n for n in range(2, 33, 2) if n != 24),
}

Treatment = Callable[[Addition, Scale], Addition]
TREATMENTS: dict[str, tuple[Treatment, bool]] = {
    "padding": (lambda task, scale: task, False),
    "more lengths": (lambda task, scale: replace(task, operands=MORE[scale]), False),
    "zeros": (lambda task, scale: replace(task, fill="zeros"), False),
    "unpadded learned": (lambda task, scale: replace(task, room=0), False),
    "unpadded rotary": (lambda task, scale: replace(task, room=0), True),
}
"""What is done to the task, and whether positions are rotary in place of learned, by the row's recipe."""


def _configure(plan: LoopPlan, recipe: str, scale: Scale) -> TrainConfig:
    tested = TESTED[scale]
    if scale == "cpu":
        task = Addition((2, 4, 8), digits=2, test_operands=tested, supervision="every", answer_weight=0.4)
        optim = MuonConfig(lr=5e-3, warmup_steps=100)
        config = miniature(task, plan, optim, steps=6000, rope_base=10_000.0, eval_every=1000)
        model = replace(config.model, d_model=64, n_heads=4, d_ff=256)
        config = replace(config, model=model, log_every=500, eval_examples=512, test_examples=2048)
    else:
        config = addition.configure(plan, "", scale)
    assert isinstance(config.source, Addition)
    treat, rotary = TREATMENTS[recipe]
    task = treat(replace(config.source, test_operands=tested, room=max(tested)), scale)
    return replace(config, source=task, model=replace(config.model, positions="rope" if rotary else "learned"))


def _columns_of(variant: str, scale: Scale) -> dict[str, str]:
    return {f"n={n}": f"n={n}" for n in TESTED[scale]}


SMALL = {f"n={n}": f"n={n}, 2 digits" for n in TESTED["cpu"]}

addition_lengths = Experiment(
    name="addition-lengths",
    title="Addition of as many numbers as no training example has",
    rows=tuple(Row(PLAN, {}, recipe=recipe) for recipe in TREATMENTS),
    variants=("",),
    columns_of=_columns_of,
    configure=_configure,
    small=SMALL,
    in_words={f"n={n}": f"{n} numbers" for n in TESTED["short"]}
    | {SMALL[f"n={n}"]: f"{n} numbers of 2 digits" for n in TESTED["cpu"]},
)
