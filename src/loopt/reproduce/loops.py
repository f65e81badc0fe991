"""More or fewer loops than in training, for models trained with a fixed or a random number of loops."""

from __future__ import annotations

from dataclasses import replace

from loopt.plan import LoopPlan
from loopt.reproduce.experiment import Experiment, Row, Scale
from loopt.reproduce.igsm import igsm
from loopt.reproduce.phop import phop
from loopt.runs import MuonConfig, TrainConfig
from loopt.runs.loop_counts import LoopCounts
from loopt.tasks import Task

TRAINED = 6
TASKS = {"phop": "p-hop", "igsm": "i-GSM"}
LOOPS = {"fixed": f"trained with {TRAINED} loops", "random": f"trained with 1 to {2 * TRAINED - 1} loops"}
VARIANTS = ("phop-fixed", "phop-random", "igsm-fixed", "igsm-random")


def _configure(plan: LoopPlan, variant: str, scale: Scale) -> TrainConfig:
    """Returns a run with TRAINED loops or, for a random variant, with 1 to 2 * TRAINED - 1: as many on average."""
    task, _, loops = variant.partition("-")
    base = phop("planted").configure(plan, "p16", scale) if task == "phop" else _igsm(plan, scale)
    counts = LoopCounts(low=1, high=2 * TRAINED - 1) if loops == "random" else LoopCounts()
    assert isinstance(base.source, Task)
    return replace(base, loop_counts=counts, source=replace(base.source, target_accuracy=None))


def _igsm(plan: LoopPlan, scale: Scale) -> TrainConfig:
    config = igsm("even").configure(plan, "", scale)
    if scale != "short":
        return config
    # These runs were made before Table 2 had its present law and recipe.
    model = replace(config.model, norm_placement="sandwich")
    return replace(config, model=model, optim=MuonConfig(lr=4e-3, warmup_steps=300))


loops = Experiment(
    name="loops",
    title="Loops at inference, trained with a fixed and with a random number",
    rows=(Row(LoopPlan.parse(f"1x{TRAINED}"), {}),),
    variants=VARIANTS,
    columns_of=lambda variant, scale: {variant.partition("-")[0]: variant},
    configure=_configure,
    small={variant: variant for variant in VARIANTS},
    loops_to_test=tuple(range(1, 4 * TRAINED + 1)),
    in_words={
        variant: f"{TASKS[variant.partition('-')[0]]}, {LOOPS[variant.partition('-')[2]]}" for variant in VARIANTS
    },
)
