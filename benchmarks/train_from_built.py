"""Does gradient descent keep a built solution? Trains runs of built models, with noise, and prints accuracies.

    python benchmarks/train_from_built.py [--steps 200] [--lr 1e-4] [--seeds 2] [--only S5]

A run is what `loopt prove --save` writes, with noise of relative size σ added to every group of weights: normal, times
the group's root mean square. It is trained as `loopt train --from` would. Accuracy is on 512 test examples, before and
after, for each seed: of the noise and of the training examples.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from loopt.model import LoopedTransformer
from loopt.runs import Run, TrainConfig
from loopt.scoring import exact_match
from loopt.theory import chain_of_thought_proof, group_composition_proof, phop_proof
from loopt.theory.proof import Proof
from loopt.theory.saved import config_of_run, save_as_run
from loopt.training import DivergedError, Session, train

SIGMAS = (0.0, 0.001, 0.003, 0.01, 0.03)
QUIET = Session(device="cpu", threads=1, progress=False)

EXPERIMENTS: dict[str, tuple[Callable[[], Proof], str]] = {
    "S3, n = 8, 1x3": (partial(group_composition_proof.prove, "S3", n=8), "S3-n8"),
    "S5, n = 8, 1x3": (partial(group_composition_proof.prove, "S5", n=8), "S5-n8"),
    "4-hop, n = 24, 1x(1,1,2)": (partial(phop_proof.prove, p=4, n=24), "p4-n24"),
    "4-hop, n = 24, 1x4": (partial(phop_proof.prove, p=4, n=24), "p4-n24-looped"),
    "addition of 3 bits, 3x3": (partial(chain_of_thought_proof.prove, bits=3, name="S3"), "addition-3-looped"),
}
"""By name, the proof that has the model and the task it solves, and what it calls the two."""


def with_noise(model: LoopedTransformer, sigma: float, seed: int) -> LoopedTransformer:
    generator = torch.Generator().manual_seed(seed)
    noisy = deepcopy(model)
    with torch.no_grad():
        for weights in noisy.parameters():
            size = weights.square().mean().sqrt()
            weights += sigma * size * torch.randn(weights.shape, generator=generator)
    return noisy


def accuracies(model: LoopedTransformer, config: TrainConfig) -> tuple[str, str]:
    """Returns the accuracy of a run that starts from the model, before and after."""
    with TemporaryDirectory() as directory:
        where = Path(directory) / "run"
        save_as_run(model, config, where)
        at_first = Run.load(where).load_model("last")
        before = exact_match(at_first, config.source, "test", config.test_examples).accuracy
        try:
            result = train(config, where, QUIET).result
        except DivergedError:
            return f"{before:.1%}", "diverged"
        return f"{before:.1%}", f"{result['accuracy']:.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", default="", help="the experiments whose name has this in it")
    arguments = parser.parse_args()
    seeds = range(arguments.seeds)
    columns = [f"{when}, seed {seed}" for when in ("before", f"after {arguments.steps} steps") for seed in seeds]
    print(f"| task and plan | noise σ | {' | '.join(columns)} |\n|---|--:|{'--:|' * len(columns)}")
    for what, (prove, name) in EXPERIMENTS.items():
        if arguments.only not in what:
            continue
        proof = prove()
        model, task, steps = proof.models[name], proof.tasks[name], arguments.steps
        config = replace(config_of_run(model, task), steps=steps, eval_every=steps)
        config = replace(config, optim=replace(config.optim, lr=arguments.lr))
        for sigma in SIGMAS:
            found = [accuracies(with_noise(model, sigma, seed), replace(config, seed=seed)) for seed in seeds]
            cells = [cell for when in zip(*found, strict=True) for cell in when]
            print(f"| {what} | {sigma} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
