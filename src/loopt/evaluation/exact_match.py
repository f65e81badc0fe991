"""Exact match: the share of examples whose every answer token is the model's first choice.

The answer's own tokens are given as context (teacher forcing). For exact match that equals greedy decoding: as long as
every token so far was right, both have seen the same, and after the first wrong one both count the example as wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from loopt.model import LoopedTransformer
from loopt.tasks import IGNORE, Split, Task

EVALUATION_SEED = 0
"""Every run is measured on the same examples, whatever its own seed; the split keeps them apart from training's."""


@dataclass(frozen=True)
class Score:
    accuracy: float
    loss: float
    """Mean cross-entropy over the answer tokens, in nats."""
    examples: int


def score_each(
    model: LoopedTransformer,
    tasks: Mapping[str, Task],
    split: Split,
    examples: int,
    batch_size: int,
    loops: int | None = None,
) -> dict[str, Score]:
    """The model's score on each of the tasks, such as a task's tests or its difficulties, ``examples`` of each."""
    return {name: exact_match(model, task, split, examples, batch_size, loops) for name, task in tasks.items()}


def mean_score(scores: dict[str, Score]) -> Score:
    """The mean over all scores, each counted alike."""
    count = len(scores)
    accuracy = sum(score.accuracy for score in scores.values()) / count
    loss = sum(score.loss for score in scores.values()) / count
    return Score(accuracy, loss, sum(score.examples for score in scores.values()))


@torch.no_grad()
def exact_match(
    model: LoopedTransformer,
    task: Task,
    split: Split,
    examples: int,
    batch_size: int,
    loops: int | None = None,
) -> Score:
    """The model's score on the first ``examples`` of a split, with any number of loops."""
    device = model.token_embedding.weight.device
    right = torch.zeros((), dtype=torch.int64, device=device)
    loss = torch.zeros((), dtype=torch.float64 if device.type != "mps" else torch.float32, device=device)
    tokens = torch.zeros((), dtype=torch.int64, device=device)
    was_training = model.training
    model.eval()
    try:
        for first in range(0, examples, batch_size):
            batch = task.sample(range(first, min(first + batch_size, examples)), EVALUATION_SEED, split, device)
            with torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda"):
                logits = model(batch.tokens, loops=loops)  # [B, T, V]
            asked = batch.answers != IGNORE  # [B, T]
            right += ((logits.argmax(-1) == batch.answers) | ~asked).all(dim=1).sum()
            loss += F.cross_entropy(logits.float().flatten(0, 1), batch.answers.flatten(), reduction="sum")
            tokens += asked.sum()
    finally:
        model.train(was_training)
    return Score(right.item() / examples, (loss / tokens).item(), examples)
