"""More hops than in training by more loops than in training: p-hop where every loop is to make one hop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from loopt.model import ModelConfig
from loopt.plan import LoopPlan
from loopt.reproduce.experiment import Experiment, Row, Scale, miniature
from loopt.runs import MuonConfig, TrainConfig
from loopt.runs.loop_counts import LoopCounts
from loopt.tasks import HopPerLoop
from loopt.training import presets

TRAINED = 8  # loops and hops, at most
TESTED: dict[Scale, tuple[int, ...]] = {
    "cpu": (4, 8, 10, 12, 16, 24),
    "short": (4, 8, 12, 16, 24, 32),
    "paper": (4, 8, 12, 16, 24, 32),
}
PLAN = LoopPlan.parse(f"2x{TRAINED}")  # one layer alone cannot hop

Treatment = Callable[[TrainConfig], TrainConfig]


def _model(**options: object) -> Treatment:
    def treat(config: TrainConfig) -> TrainConfig:
        model: ModelConfig = replace(config.model, **options)  # type: ignore[arg-type]
        return replace(config, model=model)

    return treat


def _growing(config: TrainConfig) -> TrainConfig:
    counts = LoopCounts(low=2, high=TRAINED, distribution="growing", until=config.steps // 2)
    return replace(config, loop_counts=counts)


TREATMENTS: dict[str, Treatment] = {
    "fixed loops": lambda config: replace(config, loop_counts=LoopCounts()),
    "random loops": lambda config: config,
    "growing loops": _growing,
    "norm": _model(loop_norm="own"),
    "injection": _model(injection="added"),
    "both": _model(loop_norm="own", injection="added"),
}
"""What is done to the config with random loops, by the row's name."""


def _configure(plan: LoopPlan, treatment: str, scale: Scale) -> TrainConfig:
    if scale == "cpu":
        task = HopPerLoop(p=(TRAINED,), n=64, test_p=TESTED[scale])
        config = miniature(task, plan, MuonConfig(lr=5e-3, warmup_steps=100), steps=1200, eval_every=200)
        config = replace(config, batch_size=32, eval_examples=256, test_examples=1024)
    else:
        task = HopPerLoop(p=(TRAINED,), n=256, test_p=TESTED[scale])
        config = replace(presets.hop_per_loop(), source=task)
        config = replace(config, model=replace(config.model, plan=plan))
        config = replace(config, steps=16_000) if scale == "short" else config
    return TREATMENTS[treatment](replace(config, loop_counts=LoopCounts(low=2, high=TRAINED)))


def _columns_of(variant: str, scale: Scale) -> dict[str, str]:
    return {f"p={p}": f"p={p}" for p in TESTED[scale]}


HEADINGS = {f"p={p}": f"p={p}, n=64" for p in TESTED["cpu"]}

more_loops = Experiment(
    name="more-loops",
    title=f"More loops than in training: a hop for each, {TRAINED} at most",
    rows=tuple(Row(PLAN, {}, recipe=treatment) for treatment in TREATMENTS),
    variants=("",),
    columns_of=_columns_of,
    configure=_configure,
    small=HEADINGS,
    loops_to_test=(2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32),
    in_words={f"p={p}": f"{p} hops" for tested in TESTED.values() for p in tested}
    | {HEADINGS[f"p={p}"]: f"{p} hops, 64 letters" for p in TESTED["cpu"]},
)
