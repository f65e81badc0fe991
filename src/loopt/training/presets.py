"""Named starting points for ``loopt train``: plain functions, every field of whose result can be overridden."""

from __future__ import annotations

from collections.abc import Callable

from loopt.model import ModelConfig
from loopt.plan import LoopPlan
from loopt.runs import OptimConfig, TrainConfig
from loopt.tasks import PHop


def phop() -> TrainConfig:
    """p-hop as the paper has it: n=256, p=16, d=128, Adafactor for 200k steps of 256 (6.2 ms a step on an H200)."""
    return TrainConfig(
        task=PHop(p=(16,), n=256),
        model=ModelConfig(plan=LoopPlan.parse("1x6"), d_model=128, n_heads=8, d_ff=512),
        optim=OptimConfig(name="adafactor", lr=1e-3, warmup_steps=1000),
        steps=200_000,
        batch_size=256,
        train_examples=4_000_000,
        log_every=500,
        eval_every=2000,
        eval_examples=4096,
        test_examples=262_144,
    )


def phop_cpu() -> TrainConfig:
    """p-hop small enough for a laptop: n=32, p=3, one layer of d=64 looped 4 times (about a minute on 2 cores)."""
    return TrainConfig(
        task=PHop(p=(3,), n=32, supervision="every"),
        model=ModelConfig(plan=LoopPlan.parse("1x4"), d_model=64, n_heads=4, d_ff=256, rope_base=30.0),
        optim=OptimConfig(name="adamw", lr=5e-3, warmup_steps=100),
        steps=1000,
        batch_size=64,
        log_every=20,
        eval_every=50,
        eval_examples=1024,
        test_examples=8192,
    )


PRESETS: dict[str, Callable[[], TrainConfig]] = {"phop-cpu": phop_cpu, "phop": phop}
