"""Turns of generation: in each, every row gets its next token, or several of them where drafts were right.

What a turn has found is one tensor, a row of figures for each row of the batch, so that the host reads it at once and,
on CUDA, while the next turn is already under way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from loopt.generation.decoder import Decoder
from loopt.generation.sampling import Sampler
from loopt.generation.settings import Settings
from loopt.model import LoopedTransformer
from loopt.scoring.precision import exact_type

FIGURES = 4
"""Of a row besides its tokens: how many these are, the loops they took, drafted and accepted tokens."""


@dataclass(frozen=True)
class RowTurn:
    """What a turn has found for one row."""

    tokens: list[int]
    log_probabilities: list[float]
    loops: int
    drafted: int
    accepted: int

    @classmethod
    def read(cls, figures: list[float]) -> RowTurn:
        """Reads a row of ``Turns.figures``."""
        count, loops, drafted, accepted = (int(figure) for figure in figures[:FIGURES])
        tokens, log_probabilities = figures[FIGURES::2][:count], figures[FIGURES + 1 :: 2][:count]
        return cls([int(token) for token in tokens], log_probabilities, loops, drafted, accepted)


class Turns(ABC):
    """Turns of a batch of rows, with up to ``most`` tokens each."""

    stream: torch.cuda.Stream | None

    def __init__(self, rows: int, most: int, device: torch.device) -> None:
        self.figures = torch.zeros(rows, FIGURES + 2 * most, dtype=exact_type(device), device=device)
        """Of the last turn: FIGURES, then token and log-probability by turns."""

    @abstractmethod
    def begin(self, prompts: Sequence[Sequence[int]], keys: Sequence[int]) -> None:
        """Reads prompts, and chooses the first token of each."""

    @abstractmethod
    def next(self) -> None:
        """Reads the tokens chosen last, and chooses the next."""

    def tell(
        self,
        tokens: Tensor,
        log_probabilities: Tensor,
        loops: Tensor | int,
        count: Tensor | int = 1,
        drafted: int = 0,
        accepted: Tensor | int = 0,
    ) -> None:
        """Puts what was found for all rows, tokens and log-probabilities [B, most], into ``figures``."""
        for column, figure in enumerate((count, loops, drafted, accepted)):
            self.figures[:, column] = figure
        self.figures[:, FIGURES::2][:, : tokens.shape[1]] = tokens
        self.figures[:, FIGURES + 1 :: 2][:, : tokens.shape[1]] = log_probabilities


class OneTokenTurns(Turns):
    """One token a turn."""

    def __init__(self, model: LoopedTransformer, settings: Settings, rows: int, length: int, allowed: int) -> None:
        device = model.token_embedding.weight.device
        super().__init__(rows, 1, device)
        self.sampler = Sampler(settings, rows, model.config.vocab_size, allowed, device)
        self.decoder = Decoder(
            model,
            rows,
            length,
            loops=settings.loops,
            policy=settings.policy,
            exit_rule=settings.exit_rule,
            choose=partial(_choose, self.sampler, self.figures),
        )
        self.stream = self.decoder.stream
        self.figures[:, 0] = 1  # a token a turn; what never changes is not written in every one

    def begin(self, prompts: Sequence[Sequence[int]], keys: Sequence[int]) -> None:
        self.sampler.begin(keys, prompts)
        self.decoder.prefill(prompts)

    def next(self) -> None:
        self.decoder.step()


def _choose(sampler: Sampler, figures: Tensor, logits: Tensor, loops_used: Tensor) -> Tensor:
    """Returns the tokens that a sampler chooses, and puts what a turn tells of them into its figures."""
    tokens, log_probabilities = sampler.choose(logits)
    figures[:, 1] = loops_used
    figures[:, FIGURES] = tokens
    figures[:, FIGURES + 1] = log_probabilities
    return tokens
