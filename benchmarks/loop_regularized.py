"""Can a regularized model be run looped afterwards? In miniature: p-hop, 4 layers drawn towards one.

    python benchmarks/loop_regularized.py [--seeds 2] [--heal 100]

Trains (4⊗1) as the preset phop-cpu trains (1⊗4), without the regularizer, and with either kind at several λ, k = 1.
Prints the accuracy of the model; the least cosine between neighboring layers, and the largest ratio of their norms; the
accuracy of (1⊗4) with the mean of the four layers; and the same after some steps of training from there, with (1⊗4)
from random weights after as many steps beside it. Accuracy is on the preset's test examples.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from loopt.model import Layer, LoopedTransformer
from loopt.plan import LoopPlan
from loopt.reproduce.language_scores import looped_copy
from loopt.runs import Run, StartConfig, TrainConfig
from loopt.runs.config import RegularizerConfig
from loopt.scoring import exact_match
from loopt.similarity import layer_groups
from loopt.training import Session, presets, train

LOOPED = presets.phop_cpu()
DEEP = replace(LOOPED, model=replace(LOOPED.model, plan=LoopPlan.parse("4x1")))
SETTINGS = [
    RegularizerConfig(),
    *(RegularizerConfig(1, weight, kind) for kind in ("cosine", "l2") for weight in (1.0, 10.0, 100.0)),
]
QUIET = Session(device="cpu", threads=1, progress=False)


def likeness(model: LoopedTransformer) -> tuple[float, float]:
    """The least cosine between the weights of neighboring layers, over all groups, and the largest ratio of norms."""
    layers = [layer_groups(layer) for layer in model.loop.layers if isinstance(layer, Layer)]
    pairs = [(one[name].detach(), other[name].detach()) for one, other in pairwise(layers) for name in one]
    cosines = [float((a * b).sum() / (a.norm() * b.norm())) for a, b in pairs]
    ratios = [float(max(a.norm() / b.norm(), b.norm() / a.norm())) for a, b in pairs]
    return min(cosines), max(ratios)


def accuracy(config: TrainConfig, model: LoopedTransformer) -> float:
    return 100 * exact_match(model, config.source, "test", config.test_examples).accuracy  # type: ignore[arg-type]


def trained(config: TrainConfig, directory: Path) -> LoopedTransformer:
    train(config, directory, QUIET)
    return Run.load(directory).load_model("best")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--heal", type=int, default=100, help="steps of training after looping")
    arguments = parser.parse_args()
    after = f"after {arguments.heal} steps"
    columns = ["seed", "(4⊗1)", "cosine", "sizes", "run as (1⊗4)", after, f"random, {after}"]
    print(f"| kind, λ | {' | '.join(columns)} |\n|---|{'--:|' * len(columns)}")
    for seed in range(arguments.seeds):
        with TemporaryDirectory() as folder:
            short = replace(LOOPED, seed=seed, steps=arguments.heal, eval_every=arguments.heal)
            control = accuracy(LOOPED, trained(short, Path(folder) / "control"))
            for number, pull in enumerate(SETTINGS):
                config = replace(DEEP, seed=seed, regularizer=pull)
                deep_run = Path(folder) / f"deep-{number}"
                deep = trained(config, deep_run)
                looped = looped_copy(deep, 1)
                from_mean = replace(short, start=StartConfig(str(deep_run)))
                healed = trained(from_mean, Path(folder) / f"healed-{number}")
                least, largest = likeness(deep)
                figures = [f"{accuracy(LOOPED, model):.1f}" for model in (deep, looped, healed)]
                cells = [str(seed), figures[0], f"{least:.3f}", f"{largest:.2f}", *figures[1:], f"{control:.1f}"]
                name = f"{pull.kind}, {pull.weight:g}" if pull.active else "none"
                print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
