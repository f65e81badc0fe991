"""Can a regularized model be run looped afterwards? In miniature: p-hop, or a language model.

    python benchmarks/loop_regularized.py [--seeds 2] [--heal 100]
    python benchmarks/loop_regularized.py --data data/mine --steps 1000

Trains (4⊗1) as the preset phop-cpu trains (1⊗4), or with --data, a prepared directory, (8⊗1) as lm-cpu trains; without
the regularizer, and with either kind at several λ, k = 1 or 2. Prints the accuracy, or perplexity, of the model; the
least cosine between layers k apart, and the largest ratio of their norms; what (1⊗4), or (2⊗4), has with the mean of
the blocks as its one block; and the same after some steps of training from there. Below: the looped model from random
weights after as many steps, and after all. Measured on test examples, or test text.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from loopt.model import Layer, LoopedTransformer
from loopt.plan import LoopPlan
from loopt.reproduce.language_scores import looped_copy
from loopt.runs import Run, StartConfig, TrainConfig
from loopt.runs.config import RegularizerConfig, RegularizerKind
from loopt.scoring import exact_match, perplexity, text_loss
from loopt.similarity import layer_groups
from loopt.tasks import Task
from loopt.text.source import Text
from loopt.training import Session, presets, train

QUIET = Session(device="cpu", threads=1, progress=False)
KINDS: tuple[RegularizerKind, ...] = ("cosine", "l2")


@dataclass(frozen=True)
class Miniature:
    """A looped model, and the deep one that is drawn towards it."""

    looped: TrainConfig
    deep: TrainConfig
    weights: tuple[float, ...]
    """The λ that are tried."""

    @property
    def block(self) -> int:
        return self.looped.model.plan.blocks[0].layers


def of_a_task() -> Miniature:
    looped = presets.phop_cpu()
    return Miniature(looped, _with_plan(looped, "4x1"), (1.0, 10.0, 100.0))


def of_text(data: str, steps: int) -> Miniature:
    deep = replace(_with_plan(presets.lm_cpu(data), "8x1"), steps=steps, eval_every=max(1, steps // 5))
    return Miniature(_with_plan(deep, "2x4"), deep, (1.0, 10.0))


def _with_plan(config: TrainConfig, plan: str) -> TrainConfig:
    return replace(config, model=replace(config.model, plan=LoopPlan.parse(plan)))


def likeness(model: LoopedTransformer, block: int) -> tuple[float, float]:
    """The least cosine between the weights of layers a block apart, over all groups, and the largest ratio of norms."""
    layers = [layer_groups(layer) for layer in model.loop.layers if isinstance(layer, Layer)]
    neighbors = zip(layers, layers[block:], strict=False)
    pairs = [(one[name].detach(), other[name].detach()) for one, other in neighbors for name in one]
    cosines = [float((a * b).sum() / (a.norm() * b.norm())) for a, b in pairs]
    ratios = [float(max(a.norm() / b.norm(), b.norm() / a.norm())) for a, b in pairs]
    return min(cosines), max(ratios)


def measured(run: Run, model: LoopedTransformer) -> str:
    """Accuracy in %, or perplexity."""
    config = run.config
    match config.source:
        case Task() as task:
            return f"{100 * exact_match(model, task, 'test', config.test_examples).accuracy:.1f}"
        case Text() as text:
            return f"{perplexity(text_loss(model, text.tokens, 'test', config.test_examples)):.1f}"
    raise TypeError(config.source)


def trained(config: TrainConfig, directory: Path) -> tuple[Run, LoopedTransformer]:
    train(config, directory, QUIET)
    run = Run.load(directory)
    return run, run.load_model("best")


def compared(miniature: Miniature, seed: int, heal: int, folder: Path) -> Iterator[list[str]]:
    """Yields a row of the table for each setting."""
    looped, deep = (replace(config, seed=seed) for config in (miniature.looped, miniature.deep))
    warmup = min(looped.optim.warmup_steps, heal // 2)
    short = replace(looped, steps=heal, eval_every=heal, optim=replace(looped.optim, warmup_steps=warmup))
    settings = [RegularizerConfig(miniature.block, weight, kind) for kind in KINDS for weight in miniature.weights]
    for number, pull in enumerate([RegularizerConfig(), *settings]):
        run, model = trained(replace(deep, regularizer=pull), folder / f"deep-{number}")
        least, largest = likeness(model, miniature.block)
        at_once = measured(run, looped_copy(model, miniature.block))
        healed = measured(*trained(replace(short, start=StartConfig(str(run.directory))), folder / f"healed-{number}"))
        name = f"{pull.kind}, {pull.weight:g}" if pull.active else "none"
        yield [name, str(seed), measured(run, model), f"{least:.3f}", f"{largest:.2f}", at_once, healed]
    for name, config in (("random weights", short), ("random weights, to the end", looped)):
        found = measured(*trained(config, folder / name))
        yield [f"{name}: {config.steps} steps", str(seed), "", "", "", "", found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--heal", type=int, default=100, help="steps of training after looping")
    parser.add_argument("--data", help="a directory that `loopt data prepare` made: a language model in place of p-hop")
    parser.add_argument("--steps", type=int, default=1000, help="of the language model")
    arguments = parser.parse_args()
    miniature = of_text(arguments.data, arguments.steps) if arguments.data else of_a_task()
    deep, looped = (config.model.plan.typography for config in (miniature.deep, miniature.looped))
    columns = ["seed", deep, "cosine", "sizes", f"run as {looped}", f"after {arguments.heal} steps"]
    print(f"| kind, λ | {' | '.join(columns)} |\n|---|{'--:|' * len(columns)}")
    for seed in range(arguments.seeds):
        with TemporaryDirectory() as folder:
            for cells in compared(miniature, seed, arguments.heal, Path(folder)):
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
