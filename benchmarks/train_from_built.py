"""Does gradient descent keep a built solution? Trains from built weights, with noise, and prints accuracies.

    python benchmarks/train_from_built.py [--steps 200]

Noise of relative size σ is added to every group of weights, times the group's root mean square; weights that are 0
become small. Then AdamW, in float32 with labels at every position that has one. Accuracy is on examples of the test
split, before and after training.
"""

from __future__ import annotations

import argparse
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


def with_noise(model: LoopedTransformer, sigma: float) -> LoopedTransformer:
    generator = torch.Generator().manual_seed(0)
    model = model.float()
    with torch.no_grad():
        for weights in model.parameters():
            size = weights.square().mean().sqrt()
            weights += sigma * size * torch.randn(weights.shape, generator=generator)
    return model


def phop(n: int = 24, p: int = 4, looped: bool = True) -> tuple[LoopedTransformer, Tensor, Tensor, Tensor, Tensor]:
    task = PHop(p=(p,), n=n, sampler="uniform", supervision="every")
    start = task.alphabet + 1

    def examples(count: int, split: str) -> tuple[Tensor, Tensor]:
        batch = task.sample(range(count), 0, split)  # type: ignore[arg-type]
        if not looped:
            return batch.tokens, batch.targets
        return functional.pad(batch.tokens, (1, 0), value=start), functional.pad(batch.targets, (1, 0), value=-100)

    built = build_looped(p, n) if looped else build_phop(p, n)
    return built.model(), *examples(8 * 1024, "train"), *examples(EXAMPLES, "test")


def composition(n: int = 8, name: str = "S3") -> tuple[LoopedTransformer, Tensor, Tensor, Tensor, Tensor]:
    G = group(name)
    task = GroupComposition(group=name, n=n)

    def examples(count: int, seed: int) -> tuple[Tensor, Tensor]:
        words = torch.randint(G.order, (count, n), generator=torch.Generator().manual_seed(seed))
        products = torch.tensor([task.solve(word)[-1] for word in words.tolist()])
        labels = torch.full((count, n + 1), -100)
        labels[:, -1] = products
        return functional.pad(words, (1, 0), value=G.order), labels

    return build_group_composition(G, n).model(), *examples(8 * 1024, 1), *examples(EXAMPLES, 2)


@torch.no_grad()
def accuracy(model: LoopedTransformer, ids: Tensor, labels: Tensor) -> float:
    asked = labels != -100
    return float((model(ids).argmax(-1) == labels)[asked].double().mean())


def train(model: LoopedTransformer, ids: Tensor, labels: Tensor, steps: int) -> float:
    """Trains, and returns the last loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    loss = torch.zeros(())
    for step in range(steps):
        rows = torch.arange(step * BATCH, (step + 1) * BATCH) % len(ids)
        loss = functional.cross_entropy(model(ids[rows]).flatten(0, 1), labels[rows].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return float(loss.detach())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    print(f"| task | noise σ | before | after {steps} steps | last loss |\n|---|--:|--:|--:|--:|")
    for what, make in (
        ("4-hop, n = 24, 1x4", phop),
        ("4-hop, n = 24, 1x(1,1,2)", partial(phop, looped=False)),
        ("S3, n = 8, 1x3", composition),
    ):
        for sigma in (0.0, 0.001, 0.003, 0.01, 0.03, 0.1):
            model, ids, labels, test_ids, test_labels = make()
            model = with_noise(model, sigma)
            before = accuracy(model, test_ids, test_labels)
            loss = train(model, ids, labels, steps)
            after = accuracy(model, test_ids, test_labels)
            print(f"| {what} | {sigma} | {before:.1%} | {after:.1%} | {loss:.3f} |", flush=True)


if __name__ == "__main__":
    main()
