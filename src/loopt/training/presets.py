"""Named starting points for ``loopt train``: plain functions, every field of whose result can be overridden."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from loopt import tasks
from loopt.model import ModelConfig
from loopt.plan import LoopPlan
from loopt.runs import AdafactorConfig, AdamWConfig, MuonConfig, TrainConfig
from loopt.runs.loop_counts import LoopCounts
from loopt.tasks import IGSM, Addition, GroupComposition, HopPerLoop, PHop, Task, VariableAssignment
from loopt.text.source import Text


def phop() -> TrainConfig:
    """p-hop with the paper's sizes and optimizer: n=256, p=16, d=128, Adafactor for 200k steps of 256."""
    return TrainConfig(
        source=PHop(p=(16,), n=256, train_examples=4_000_000),
        model=ModelConfig(plan=LoopPlan.parse("1x6"), d_model=128, n_heads=8, d_ff=512),
        optim=AdafactorConfig(lr=1e-3, warmup_steps=1000),
        steps=200_000,
        batch_size=256,
        log_every=500,
        eval_every=2000,
        eval_examples=4096,
        test_examples=262_144,
    )


def phop_cpu() -> TrainConfig:
    """p-hop small enough for a laptop: n=32, p=3, one layer of d=64 looped 4 times (20 seconds of one core)."""
    return TrainConfig(
        source=PHop(p=(3,), n=32, supervision="every"),
        model=ModelConfig(plan=LoopPlan.parse("1x4"), d_model=64, n_heads=4, d_ff=256, rope_base=30.0),
        optim=MuonConfig(lr=2e-2, warmup_steps=30),
        steps=400,
        batch_size=64,
        log_every=20,
        eval_every=50,
        eval_examples=1024,
        test_examples=8192,
    )


def hop_per_loop() -> TrainConfig:
    """p-hop at its sizes with a hop for each loop, 2 to 8 of them; run with more loops, the model makes more hops."""
    return TrainConfig(
        source=HopPerLoop(p=(8,), n=256),
        model=ModelConfig(
            plan=LoopPlan.parse("2x8"), d_model=128, n_heads=8, d_ff=512, rope_base=2000.0, loop_norm="own"
        ),
        optim=MuonConfig(lr=4e-3, warmup_steps=300),
        loop_counts=LoopCounts(low=2, high=8),
        steps=200_000,
        batch_size=64,
        log_every=500,
        eval_every=1000,
        eval_examples=4096,
        test_examples=65_536,
    )


def hop_per_loop_cpu() -> TrainConfig:
    """A hop for each loop, 2 to 4 of them, for a laptop: 2 layers of d=64; made to be run with more loops."""
    full = hop_per_loop()
    return replace(
        full,
        source=HopPerLoop(p=(4,), n=48, test_p=(2, 4, 6, 8)),
        model=replace(full.model, plan=LoopPlan.parse("2x4"), d_model=64, n_heads=4, d_ff=256, rope_base=30.0),
        optim=MuonConfig(lr=5e-3, warmup_steps=100),
        loop_counts=LoopCounts(low=2, high=4),
        steps=1000,
        log_every=20,
        eval_every=250,
        eval_examples=512,
        test_examples=4096,
    )


def addition() -> TrainConfig:
    """Sums of 2 to 32 numbers with the paper's sizes and optimizer: d=256, Adafactor for 200k steps of 1024."""
    return TrainConfig(
        source=Addition(),
        model=ModelConfig(plan=LoopPlan.parse("1x12"), d_model=256, n_heads=8, d_ff=1024),
        optim=AdafactorConfig(lr=5e-3, warmup_steps=1000),
        steps=200_000,
        batch_size=1024,
        log_every=500,
        eval_every=2000,
        eval_examples=1024,
        test_examples=16_384,
    )


def addition_cpu() -> TrainConfig:
    """Sums of 2 numbers of 2 digits, for a laptop: one layer of d=64 looped 4 times (about a minute of one core)."""
    return replace(small(Addition(operands=(2,), digits=2, test_operands=(2,))), steps=600)


def igsm() -> TrainConfig:
    """i-GSM with the paper's sizes and optimizer: d=128, Adafactor for 200k steps of 256."""
    return TrainConfig(
        source=IGSM(train_examples=4_000_000),
        model=ModelConfig(plan=LoopPlan.parse("1x8"), d_model=128, n_heads=8, d_ff=512),
        optim=AdafactorConfig(lr=1e-3, warmup_steps=1000),
        steps=200_000,
        batch_size=256,
        log_every=500,
        eval_every=2000,
        eval_examples=8192,
        test_examples=50_000,
    )


def igsm_cpu() -> TrainConfig:
    """i-GSM of 3 statements modulo 3, for a laptop: one layer of d=64 looped 4 times."""
    task = IGSM(modulus=3, law="even", statements=3, needed=(1, 3), supervision="every")
    return replace(small(task), steps=600)


def group() -> TrainConfig:
    """Words of 32 elements of S5, Theorem 5.1's problem, at p-hop's sizes; the paper trains no model on it."""
    return TrainConfig(
        source=GroupComposition(group="S5", n=32, supervision="every"),
        model=ModelConfig(plan=LoopPlan.parse("1x6"), d_model=128, n_heads=8, d_ff=512),
        optim=MuonConfig(lr=2e-3, warmup_steps=300),
        steps=200_000,
        batch_size=256,
        log_every=500,
        eval_every=1000,
        eval_examples=4096,
        test_examples=65_536,
    )


def group_cpu() -> TrainConfig:
    """Words of 8 elements of S3, for a laptop: one layer of d=64 looped 4 times (about a minute of one core)."""
    return small(GroupComposition(group="S3", n=8, supervision="every"))


def assignment() -> TrainConfig:
    """Variables copied from others, 5 to a level, at p-hop's sizes; the paper asks it of language models only."""
    return replace(group(), source=VariableAssignment(depth=1, variables=5, shots=2))


def assignment_cpu() -> TrainConfig:
    """Which number a variable was set to, for a laptop: one layer of d=64 looped 4 times (two minutes of one core)."""
    task = VariableAssignment(depth=0, variables=3, letters=4, largest=4, shots=2)
    return replace(small(task), steps=400)


def small(task: Task) -> TrainConfig:
    """Returns a config for any task, also one of your own: one layer of d=64 looped 4 times, Muon for 1000 steps."""
    return TrainConfig(
        source=task,
        model=ModelConfig(plan=LoopPlan.parse("1x4"), d_model=64, n_heads=4, d_ff=256, rope_base=30.0),
        optim=MuonConfig(lr=5e-3, warmup_steps=100),
        steps=1000,
        batch_size=64,
        log_every=20,
        eval_every=50,
        eval_examples=1024,
        test_examples=8192,
    )


def lm_1b(data: str = "") -> TrainConfig:
    """The paper's language model: 24 layers, d=2048, 1280 tokens, batch 512, 400k steps (1.36B parameters).

    The paper names the shape, the batch, the peak learning rate and the cosine. Not stated, and chosen here: Adafactor,
    the warm-up, a gated feed-forward, an untied readout and a vocabulary of 50,304, which together come to 1.36 billion
    parameters where its appendix speaks of 1.5.
    """
    return _lm(data, d_model=2048, n_heads=32, d_ff=5120)


def lm_350m(data: str = "") -> TrainConfig:
    """The paper's shape at d=1024 (392M parameters)."""
    return _lm(data, d_model=1024, n_heads=16, d_ff=2560)


def lm_75m(data: str = "") -> TrainConfig:
    """The paper's shape at d=512 (124M parameters, of which 72M in the layers)."""
    return _lm(data, d_model=512, n_heads=8, d_ff=1280)


def lm_10m(data: str = "") -> TrainConfig:
    """The paper's shape at d=192 (30M parameters, of which 10M in the layers)."""
    return _lm(data, d_model=192, n_heads=3, d_ff=480)


def _lm(data: str, d_model: int, n_heads: int, d_ff: int) -> TrainConfig:
    return TrainConfig(
        source=Text(data),
        model=ModelConfig(
            plan=LoopPlan.parse("24x1"),
            d_model=d_model,
            n_heads=n_heads,
            d_ff=d_ff,
            vocab_size=50_304,
            max_len=1280,
            feed_forward="swiglu",
        ),
        optim=AdafactorConfig(lr=1e-2, warmup_steps=2000),
        steps=400_000,
        batch_size=512,
        log_every=10,
        eval_every=2000,
        eval_examples=512,
        test_examples=4096,
    )


def lm_cpu(data: str = "") -> TrainConfig:
    """A language model for a laptop: 2 layers of d=128 looped 3 times, on a small text, in minutes."""
    return TrainConfig(
        source=Text(data),
        model=ModelConfig(
            plan=LoopPlan.parse("2x3"), d_model=128, n_heads=4, d_ff=320, max_len=128, feed_forward="swiglu"
        ),
        optim=AdamWConfig(lr=3e-3, warmup_steps=50, weight_decay=0.1),
        steps=300,
        batch_size=16,
        log_every=10,
        eval_every=50,
        eval_examples=64,
        test_examples=1000,
    )


PRESETS: dict[str, Callable[[], TrainConfig]] = {
    "phop-cpu": phop_cpu,
    "phop": phop,
    "hop_per_loop-cpu": hop_per_loop_cpu,
    "hop_per_loop": hop_per_loop,
    "addition-cpu": addition_cpu,
    "addition": addition,
    "igsm-cpu": igsm_cpu,
    "igsm": igsm,
    "group-cpu": group_cpu,
    "group": group,
    "assignment-cpu": assignment_cpu,
    "assignment": assignment,
    "lm-cpu": lm_cpu,
    "lm-10m": lm_10m,
    "lm-75m": lm_75m,
    "lm-350m": lm_350m,
    "lm-1b": lm_1b,
}


def names() -> list[str]:
    """Returns what ``preset`` knows: the presets, and the tasks that have none of their own."""
    return [*PRESETS, *(name for name in tasks.names() if name not in PRESETS)]


def preset(name: str) -> TrainConfig:
    """Returns the config of a preset, or of a task without one, which is ``small``."""
    return PRESETS[name]() if name in PRESETS else small(tasks.get(name))
