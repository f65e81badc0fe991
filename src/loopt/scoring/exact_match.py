"""Exact match: the share of examples whose every answer token is the model's first choice.

The answer's own tokens are given as context (teacher forcing). For exact match that equals greedy decoding: as long as
every token so far was right, both have seen the same, and after the first wrong one both count the example as wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from loopt.errors import InputError, require
from loopt.model import LoopedTransformer
from loopt.scoring.precision import autocast, exact_type, scoring_batch
from loopt.scoring.readout import read_out
from loopt.source import Split
from loopt.tasks import IGNORE, Task

EVALUATION_SEED = 0
"""Every run is measured on the same examples, whatever its own seed; the split keeps them apart from training's."""


@dataclass(frozen=True)
class Score:
    accuracy: float
    """Exact match."""
    loss: float
    """Mean cross-entropy over the answer tokens, in nats."""
    examples: int


def score_each(
    model: LoopedTransformer, tasks: Mapping[str, Task], split: Split, examples: int, loops: int | None = None
) -> dict[str, Score]:
    """Returns the model's score on each of the tasks, such as a task's tests or difficulties, ``examples`` of each."""
    return {name: exact_match(model, task, split, examples, loops) for name, task in tasks.items()}


def mean_score(scores: Mapping[str, Score]) -> Score:
    """Returns the mean over all scores, each counted alike."""
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
    loops: int | None = None,
    batch_size: int | None = None,
) -> Score:
    """Returns the model's score on the first ``examples`` of a split, with any number of loops: unless given, the
    task's, or else the plan's."""
    require(examples >= 1, "examples", examples, "1 or more", InputError)
    loops = task.loops if loops is None else loops
    device = model.token_embedding.weight.device
    batch_size = batch_size or scoring_batch(model.config, task.length, device)
    right = torch.zeros((), dtype=torch.int64, device=device)
    loss = torch.zeros((), dtype=exact_type(device), device=device)
    tokens = 0
    for first in range(0, examples, batch_size):
        batch = task.sample(range(first, min(first + batch_size, examples)), EVALUATION_SEED, split, device)
        row, position = (batch.answers != IGNORE).nonzero(as_tuple=True)  # [M] each: the M answer tokens
        answers = batch.answers[row, position]
        with autocast(device):
            states = model.iterate(model.embed(batch.tokens), loops)[row, position]  # [B, T, D] -> [M, D]
            said = read_out(model, states, targets=answers)
        wrong = torch.zeros(len(batch.tokens), dtype=torch.int64, device=device)
        wrong.index_add_(0, row, (said.tokens[:, 0] != answers).long())
        right += (wrong == 0).sum()
        assert said.target_log_probability is not None
        loss -= said.target_log_probability.sum(dtype=loss.dtype)
        tokens += len(answers)
    return Score(right.item() / examples, (loss / tokens).item(), examples)
