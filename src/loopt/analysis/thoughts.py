"""What a model would answer after each loop."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from loopt.model import LoopedTransformer


@dataclass(frozen=True)
class LoopAnswer:
    """The model's first choice at every position if it stopped after this loop, and how sure it is of it."""

    block: int
    loop: int
    choices: list[int]
    confidences: list[float]


@torch.no_grad()
def answers_by_loop(model: LoopedTransformer, tokens: list[int], loops: int | None = None) -> list[LoopAnswer]:
    """For one example, what is read out after every loop of every block."""
    device = model.token_embedding.weight.device
    answers = []
    for thought in model.thoughts(torch.tensor([tokens], device=device), loops):
        confidences, choices = thought.probabilities[0].max(dim=-1)  # [T, V] -> [T]
        answers.append(LoopAnswer(thought.block, thought.loop, choices.tolist(), confidences.tolist()))
    return answers
