"""Words in a group, one layer looped: what gets training to the solution that Theorem 5.1 says is there."""

from __future__ import annotations

from dataclasses import replace

from loopt.plan import LoopPlan
from loopt.reproduce.experiment import Experiment, Row, Scale, miniature
from loopt.reproduce.group import DEPTH, LENGTH, LENGTHS, SMALL, group
from loopt.runs import MuonConfig, TrainConfig
from loopt.runs.loop_counts import LoopCounts
from loopt.tasks import GroupComposition

GROWTHS = {
    "fixed": (False, False),
    "growing loops": (True, False),
    "growing words": (False, True),
    "both": (True, True),
}
"""Whether the loops grow, and whether the words do, in the first half of training, by the row's recipe."""
STEPS = 6000
"""At scale cpu, where a row takes five minutes of one core."""


def _configure(plan: LoopPlan, recipe: str, scale: Scale) -> TrainConfig:
    if scale == "cpu":
        task = GroupComposition(
            group=SMALL["s5"][0], n=LENGTH, supervision="every", test_lengths=LENGTHS, target_accuracy=0.999
        )
        config = miniature(
            task, plan, MuonConfig(lr=5e-3, warmup_steps=50), steps=STEPS, rope_base=10_000.0, eval_every=500
        )
    else:
        config = group.configure(plan, "s5", scale)
    assert isinstance(config.source, GroupComposition)
    loops, words = GROWTHS[recipe]
    if not (loops or words):
        return config
    counts = LoopCounts(low=2, high=DEPTH, distribution="growing", until=config.steps // 2, problems_only=not loops)
    task = replace(config.source, loops_for_n=DEPTH if words else None)
    return replace(config, source=task, loop_counts=counts)


def _columns_of(variant: str, scale: Scale) -> dict[str, str]:
    return {f"n={n}": f"n={n}" for n in LENGTHS}


group_growing = Experiment(
    name="group-growing",
    title=f"Words of up to {LENGTH} elements: loops and words that grow",
    rows=tuple(Row(LoopPlan.parse(f"1x{DEPTH}"), {}, recipe=recipe) for recipe in GROWTHS),
    variants=("",),
    columns_of=_columns_of,
    configure=_configure,
    small={f"n={n}": f"{SMALL['s5'][0]}, n={n}" for n in LENGTHS},
    in_words={f"n={n}": f"S5, n = {n} elements" for n in LENGTHS}
    | {f"{SMALL['s5'][0]}, n={n}": f"{SMALL['s5'][0]}, n = {n} elements" for n in LENGTHS},
)
