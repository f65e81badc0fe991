"""Table 1, left: the sum of n numbers of 3 digits."""

from __future__ import annotations

from dataclasses import replace

from loopt.plan import LoopPlan
from loopt.reproduce.experiment import Experiment, Row, Scale, miniature
from loopt.runs import MuonConfig, TrainConfig
from loopt.tasks import Addition
from loopt.training import presets

COLUMNS = ("n=8", "n=16", "n=24", "n=32")
PAPER: dict[str, tuple[float, ...]] = {
    "12x1": (100.0, 100.0, 100.0, 100.0),
    "1x1": (0.1, 0.1, 0.1, 0.0),
    "1x12": (99.9, 100.0, 99.9, 99.6),
    "2x1": (85.8, 71.5, 49.3, 38.8),
    "2x6": (100.0, 99.8, 99.7, 99.5),
    "3x1": (97.2, 78.5, 69.2, 60.7),
    "3x4": (100.0, 99.1, 97.0, 96.6),
    "4x1": (),  # trained by the paper, but not in its table, like the next three
    "4x3": (),
    "6x1": (),
    "6x2": (),
}


def _columns_of(variant: str, scale: Scale) -> dict[str, str]:
    return {"n=2": "n=8"} if scale == "cpu" else {name: name for name in COLUMNS}


def _configure(plan: LoopPlan, variant: str, scale: Scale) -> TrainConfig:
    if scale == "cpu":
        task = Addition(operands=(2,), digits=2, test_operands=(2,), target_accuracy=0.99)
        optim = MuonConfig(lr=5e-3, warmup_steps=50)
        return miniature(task, plan, optim, steps=600, eval_every=50)
    full = presets.addition()
    full = replace(full, model=replace(full.model, plan=plan))
    if scale == "paper":
        return full
    # How this differs from the paper is in docs/results.md, what each change gains in docs/log.md.
    return replace(
        full,
        source=Addition(supervision="every", room=32, answer_weight=0.4),
        model=replace(full.model, positions="learned"),
        optim=MuonConfig(lr=4e-3, warmup_steps=300),
        steps=24_000,
        batch_size=64,
        eval_every=1000,
    )


addition = Experiment(
    name="addition",
    title="Addition of n numbers of 3 digits (Table 1, left)",
    rows=tuple(Row(LoopPlan.parse(plan), dict(zip(COLUMNS, numbers, strict=False))) for plan, numbers in PAPER.items()),
    variants=("",),
    columns_of=_columns_of,
    configure=_configure,
    small={"n=8": "2 numbers, 2 digits (n=8)"},
    best_of=3,
    in_words={column: f"{column.replace('=', ' = ')} operands" for column in COLUMNS},
)
