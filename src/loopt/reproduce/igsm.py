"""Table 2: symbolic grade-school problems, answered without steps."""

from __future__ import annotations

from dataclasses import replace

from loopt.plan import LoopPlan
from loopt.reproduce.experiment import Experiment, Row, Scale, miniature
from loopt.runs import MuonConfig, TrainConfig
from loopt.runs.loop_counts import LoopCounts
from loopt.tasks import IGSM
from loopt.tasks.igsm import Law, Query
from loopt.training import presets

COLUMN = "accuracy"
PAPER = {
    "8x1": 73.2,
    "1x1": 24.5,
    "1x2": 52.3,
    "1x4": 69.9,
    "1x8": 73.2,
    "2x1": 54.0,
    "2x2": 66.9,
    "2x4": 73.6,
    "4x1": 71.3,
    "4x2": 71.6,
}


SMALL = {
    "light": IGSM(modulus=3, operations=4, edges=4, levels=(2, 2), supervision="every"),
    "even": IGSM(modulus=3, law="even", statements=3, needed=(2, 3)),
}
"""The problems of scale cpu."""
NAMES = {("light", "last"): "igsm", ("even", "last"): "igsm-even", ("light", "any"): "igsm-any"}
"""The experiments there are, by law and query."""


def igsm(law: Law, query: Query = "last") -> Experiment:
    rows = tuple(Row(LoopPlan.parse(plan), {COLUMN: number}) for plan, number in PAPER.items())

    def configure(plan: LoopPlan, variant: str, scale: Scale) -> TrainConfig:
        if scale == "cpu":
            optim = MuonConfig(lr=8e-3, warmup_steps=50)
            return miniature(replace(SMALL[law], query=query), plan, optim, steps=400, rope_base=100.0)
        full = _paper(plan, IGSM(law=law, query=query, train_examples=4_000_000))
        return full if scale == "paper" else _short(full)

    title = f"Symbolic i-GSM, law {law}{', any statement asked' if query == 'any' else ''} (Table 2)"
    small = {"light": "up to 4 operations mod 3", "even": "3 statements mod 3"}
    heading = {COLUMN: f"accuracy, {small[law]}"}
    return Experiment(
        NAMES[law, query], title, rows, ("",), lambda variant, scale: {"igsm": COLUMN}, configure, heading
    )


def _paper(plan: LoopPlan, task: IGSM) -> TrainConfig:
    """Returns the appendix's setting, which leaves open the warm-up and which positions the loss is on."""
    paper = presets.igsm()
    return replace(paper, source=task, model=replace(paper.model, plan=plan))


def _short(paper: TrainConfig) -> TrainConfig:
    """Returns the paper's sizes with a recipe of ours. With the answer as the only label, 6000 steps had taught no more
    than guessing well (docs/log.md)."""
    assert isinstance(paper.source, IGSM)
    steps = 16_000
    return replace(
        paper,
        source=replace(paper.source, supervision="every"),
        model=replace(paper.model, rope_base=2000.0),
        optim=MuonConfig(lr=2e-3, warmup_steps=300, weight_decay=0.1),
        steps=steps,
        loop_counts=_from_half(paper.model.plan, steps // 2, shallowest=1 if paper.source.query == "last" else 2),
        eval_every=1000,
    )


def _from_half(plan: LoopPlan, until: int, shallowest: int) -> LoopCounts:
    """Returns loops that grow from half to all by step ``until``; (1⊗8) with all at the start left the first unused.
    They start no shallower than so many layers: one layer cannot look anything up."""
    (block,) = plan.blocks
    low = max(block.loops // 2, -(-shallowest // block.layers))
    if low >= block.loops:
        return LoopCounts()
    return LoopCounts(low=low, high=block.loops, distribution="growing", until=until)
