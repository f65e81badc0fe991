"""Experiments whose runs take a second, and results as a run of them would leave them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from loopt.plan import LoopPlan
from loopt.reproduce.experiment import Experiment, Job, Row, Scale
from loopt.runs import TrainConfig, codec
from loopt.tasks import Addition, PHop
from tiny_runs import TINY


def hops(plan: LoopPlan, variant: str, scale: Scale) -> TrainConfig:
    task = PHop(p=(int(variant.removeprefix("p")),), n=8, alphabet=3)
    return replace(TINY, source=task, model=replace(TINY.model, plan=plan), steps=12)


def sums(plan: LoopPlan, variant: str, scale: Scale) -> TrainConfig:
    task = Addition(operands=(1, 3), digits=1, test_operands=(2, 3))
    config = replace(TINY, source=task, model=replace(TINY.model, plan=plan), steps=12)
    if str(plan) != "2x1":
        return config
    model, optim = replace(config.model, norm_placement="none"), replace(config.optim, lr=1e38)
    return replace(config, model=model, optim=optim)


HOPS = Experiment(
    name="hops",
    title="Hops",
    rows=tuple(
        Row(LoopPlan.parse(plan), {"p=16": a, "p=32": b})
        for plan, a, b in (("2x1", 90.0, 80.0), ("1x1", 50.0, 40.0), ("1x2", 70.0, 80.0))
    ),
    variants=("p1", "p2"),
    columns_of=lambda variant, scale: {"phop": {"p1": "p=16", "p2": "p=32"}[variant]},
    configure=hops,
    small={"p=16": "p=1 (p=16)", "p=32": "p=2 (p=32)"},
)
SUMS = Experiment(
    name="sums",
    title="Sums",
    rows=tuple(Row(LoopPlan.parse(plan), {}) for plan in ("1x1", "2x1", "1x2")),
    variants=("",),
    columns_of=lambda variant, scale: {"n=2": "n=8", "n=3": "n=32"},
    configure=sums,
    small={"n=8": "n=2 (n=8)", "n=32": "n=3 (n=32)"},
    best_of=3,
)
"""The second row diverges."""


def leave_result(job: Job, results: Path, accuracies: dict[str, float], **further: Mapping[str, object]) -> None:
    config = job.config.resolved()
    result = {
        "step": config.steps,
        "accuracy": sum(accuracies.values()) / len(accuracies),
        "accuracies": accuracies,
        "parameters": config.model.parameters(),
        "flops": config.model.flops(config.source.max_len),
        "seconds": 61.4,
        "finished": "2026-11-17T10:00:00+00:00",
        "source": "0123456789abcdef",
        "config": codec.fingerprint(config),
        "hardware": "abacus_3 & 10% more",
        "torch": "2.11.0",
        "loopt": "0.1.0",
    }
    curve = [[1, 0.3, 0.1], [2, 0.99, 0.2], [3, 0.98, 0.3], [4, 1.0, 0.4]] if job.variant == "p2" else [[4, 0.98, 0.4]]
    job.write_result(results, {"result": result, "curve": curve, "config": codec.to_json(config), **further})
