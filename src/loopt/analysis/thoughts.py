"""What a model would answer after each loop."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from loopt.model import LoopedTransformer
from loopt.scoring import read_out


@dataclass(frozen=True)
class LoopAnswer:
    """The model's answers at every position, were it to stop after ``loops`` loops of its loopable block."""

    loops: int
    choices: list[list[int]]
    """The likeliest tokens at each position, likeliest first."""
    probabilities: list[list[float]]
    """Probabilities of these tokens."""
    entropy: list[float]
    """Entropy of the whole distribution at each position, in nats."""


@torch.no_grad()
def answers_by_loop(
    model: LoopedTransformer, tokens: list[int], loops: int | None = None, top: int = 1
) -> list[LoopAnswer]:
    """Returns the model's answers to one example after every loop of its loopable block."""
    device = model.token_embedding.weight.device
    answers = []
    for thought in model.thoughts(torch.tensor([tokens], device=device), loops):
        said = read_out(model, thought.state, top)
        columns = (said.tokens, said.probabilities, said.entropy)
        answers.append(LoopAnswer(thought.loops, *(column[0].tolist() for column in columns)))
    return answers
