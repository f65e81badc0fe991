"""Words in a group, the problem that Theorem 5.1 builds a looped transformer for. The paper trains no model on it."""

from __future__ import annotations

from dataclasses import replace

from loopt.plan import LoopPlan
from loopt.reproduce.experiment import Experiment, Row, Scale, miniature
from loopt.runs import MuonConfig, TrainConfig
from loopt.tasks import GroupComposition
from loopt.training import presets

LENGTH = 32  # of words
LENGTHS = (4, 8, 16, LENGTH)  # of test words: how far along a word does a model get? A target is for their mean
DEPTH = 6  # of models: ⌈log2 n⌉ + 1, one more than the theorem needs
SMALL = {"s5": ("S3", 8), "a5": ("A4", 4)}  # each variant's group and length of words at scale cpu


def _configure(plan: LoopPlan, variant: str, scale: Scale) -> TrainConfig:
    if scale == "cpu":
        name, length = SMALL[variant]
        task = GroupComposition(group=name, n=length, supervision="every", target_accuracy=0.99)
        optim = MuonConfig(lr=5e-3, warmup_steps=50)
        return miniature(task, plan, optim, steps=1500)
    words = GroupComposition(
        group=variant.upper(), n=LENGTH, supervision="every", test_lengths=LENGTHS, target_accuracy=0.999
    )
    full = presets.group()
    full = replace(full, source=words, model=replace(full.model, plan=plan))
    return replace(full, steps=32_000) if scale == "short" else full


def _columns_of(variant: str, scale: Scale) -> dict[str, str]:
    name = variant.upper()
    if scale == "cpu":
        return {"group": f"{name}, n={LENGTH}"}
    return {f"n={length}": f"{name}, n={length}" for length in LENGTHS}


HEADINGS = {f"{key.upper()}, n={LENGTH}": f"{name}, n={n} ({key.upper()})" for key, (name, n) in SMALL.items()}
WORDS = {f"{key.upper()}, n={n}": f"{key.upper()}, n = {n} elements" for key in SMALL for n in LENGTHS} | {
    f"{name}, n={n} ({key.upper()})": f"{name}, n = {n} elements (for {key.upper()})"
    for key, (name, n) in SMALL.items()
}

group = Experiment(
    name="group",
    title=f"Words of up to {LENGTH} elements of a group (Theorem 5.1's problem)",
    rows=tuple(Row(LoopPlan.parse(plan), {}) for plan in (f"{DEPTH}x1", "1x1", f"1x{DEPTH}")),
    variants=tuple(SMALL),
    columns_of=_columns_of,
    configure=_configure,
    small=HEADINGS,
    in_words=WORDS,
)
