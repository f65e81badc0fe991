"""Trains the models that come with loopt: ``python -m loopt.shipped.make``, some minutes on two cores."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from loopt.plan import LoopPlan
from loopt.runs import AdamWConfig, Run, TrainConfig
from loopt.runs.checkpoint import WEIGHTS, name_of
from loopt.shipped import HERE, PLANS
from loopt.tasks import PHop
from loopt.training import Session, presets, train


def config_of(plan: str) -> TrainConfig:
    """Returns how a model is trained. 4 loops are enough for 4 hops only if some loop makes two of them."""
    base = presets.phop_cpu()
    task = PHop(p=(4,), n=32, supervision="every")
    model, optim = replace(base.model, plan=LoopPlan.parse(plan)), AdamWConfig(lr=5e-3, warmup_steps=100)
    return replace(base, source=task, model=model, optim=optim, steps=2000)


def main(runs: Path = Path("runs/shipped")) -> None:
    for plan in PLANS:
        directory = runs / plan
        train(config_of(plan), directory, Session(device="cpu"))
        best = Run.load(directory).find("best").step
        kept = HERE / plan
        kept.mkdir(exist_ok=True)
        for file in (Path("config.json"), Path("result.json"), Path("checkpoints", name_of(best), WEIGHTS)):
            shutil.copyfile(directory / file, kept / file.name)


if __name__ == "__main__":
    main()
