"""Does gradient descent keep a built solution? Trains from built weights, with noise, and prints accuracies.

    python benchmarks/train_from_built.py [--steps 200] [--seeds 2] [--only S5]

Noise of relative size σ is added to every group of weights, times the group's root mean square; weights that are 0
become small. Then AdamW, in float32 with labels at every position that has one. Accuracy is on 512 examples that are
not trained on, before and after training, for each seed: of the noise and of the training examples.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from loopt.model import LoopedTransformer
from loopt.tasks.group import GroupComposition
from loopt.tasks.groups import group
from loopt.tasks.phop import PHop
from loopt.theory.group_composition import build_group_composition
from loopt.theory.phop import build_looped, build_phop

EXAMPLES, BATCH, LR = 512, 32, 1e-4
SIGMAS = (0.0, 0.001, 0.003, 0.01, 0.03)


def with_noise(model: LoopedTransformer, sigma: float, seed: int) -> LoopedTransformer:
    generator = torch.Generator().manual_seed(seed)
    model = model.float()
    with torch.no_grad():
        for weights in model.parameters():
            size = weights.square().mean().sqrt()
            weights += sigma * size * torch.randn(weights.shape, generator=generator)
    return model


Experiment = tuple[LoopedTransformer, Tensor, Tensor, Tensor, Tensor]
"""A built model, ids and labels to train on, ids and labels to test on."""


def phop(seed: int, n: int = 24, p: int = 4, looped: bool = True) -> Experiment:
    task = PHop(p=(p,), n=n, sampler="uniform", supervision="every")
    start = task.alphabet + 1

    def examples(count: int, split: str) -> tuple[Tensor, Tensor]:
        batch = task.sample(range(count), seed, split)  # type: ignore[arg-type]
        if not looped:
            return batch.tokens, batch.targets
        return functional.pad(batch.tokens, (1, 0), value=start), functional.pad(batch.targets, (1, 0), value=-100)

    built = build_looped(p, n) if looped else build_phop(p, n)
    return built.model(), *examples(8 * 1024, "train"), *examples(EXAMPLES, "test")


def composition(seed: int, name: str, n: int = 8) -> Experiment:
    G = group(name)
    task = GroupComposition(group=name, n=n)

    def examples(count: int, draw: int) -> tuple[Tensor, Tensor]:
        words = torch.randint(G.order, (count, n), generator=torch.Generator().manual_seed(draw))
        products = torch.tensor([task.solve(word)[-1] for word in words.tolist()])
        labels = torch.full((count, n + 1), -100)
        labels[:, -1] = products
        return functional.pad(words, (1, 0), value=G.order), labels

    return build_group_composition(G, n).model(), *examples(8 * 1024, 2 * seed + 1), *examples(EXAMPLES, 2 * seed + 2)


@torch.no_grad()
def accuracy(model: LoopedTransformer, ids: Tensor, labels: Tensor) -> float:
    asked = labels != -100
    return float((model(ids).argmax(-1) == labels)[asked].double().mean())


def train(model: LoopedTransformer, ids: Tensor, labels: Tensor, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    for step in range(steps):
        rows = torch.arange(step * BATCH, (step + 1) * BATCH) % len(ids)
        loss = functional.cross_entropy(model(ids[rows]).flatten(0, 1), labels[rows].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", default="", help="the experiments whose name has this in it")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(arguments.seeds)
    columns = [f"{when}, seed {seed}" for when in ("before", f"after {arguments.steps} steps") for seed in seeds]
    print(f"| task and plan | noise σ | {' | '.join(columns)} |\n|---|--:|{'--:|' * len(columns)}")
    for what, make in EXPERIMENTS.items():
        for sigma in SIGMAS if arguments.only in what else ():
            before, after = [], []
            for seed in seeds:
                model, ids, labels, test_ids, test_labels = make(seed)
                model = with_noise(model, sigma, seed)
                before.append(accuracy(model, test_ids, test_labels))
                train(model, ids, labels, arguments.steps)
                after.append(accuracy(model, test_ids, test_labels))
            print(f"| {what} | {sigma} | {' | '.join(f'{rate:.1%}' for rate in (*before, *after))} |", flush=True)


EXPERIMENTS: dict[str, Callable[[int], Experiment]] = {
    "S3, n = 8, 1x3": partial(composition, name="S3"),
    "S5, n = 8, 1x3": partial(composition, name="S5"),
    "4-hop, n = 24, 1x(1,1,2)": partial(phop, looped=False),
    "4-hop, n = 24, 1x4": phop,
}


if __name__ == "__main__":
    main()
