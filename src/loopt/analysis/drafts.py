"""Self-speculation measured: how many drafts are right, how much faster that is, and how much text it changes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from loopt.generation import Completion, Engine, Settings
from loopt.model import LoopedTransformer


@dataclass(frozen=True)
class DraftPoint:
    """One way of drafting, beside decoding without drafts."""

    draft_loops: int
    draft_tokens: int
    accepted: float
    """Share of the drafted tokens that the model with all loops agreed with."""
    speed: float
    """Tokens a second, over those without drafts."""
    differing: float
    """Share of the tokens that differ from those without drafts; after the first, texts go their own ways. In exact
    arithmetic there are none: where two tokens are nearly as likely, rounding decides."""


def draft_points(
    model: LoopedTransformer,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    draft_loops: Sequence[int],
    draft_tokens: Sequence[int],
    turns: int = 3,
) -> Iterator[DraftPoint]:
    """Yields a point for each way of drafting the same texts."""
    plain_said, plain_seconds = _measured(model, prompts, Settings(max_new_tokens=new_tokens), turns)
    for loops in draft_loops:
        for tokens in draft_tokens:
            settings = Settings(max_new_tokens=new_tokens, draft_loops=loops, draft_tokens=tokens)
            said, seconds = _measured(model, prompts, settings, turns)
            accepted = sum(one.accepted for one in said) / max(1, sum(one.drafted for one in said))
            pairs = [
                (mine, other)
                for one, plain in zip(said, plain_said, strict=True)
                for mine, other in zip(one.tokens, plain.tokens, strict=False)
            ]
            differing = sum(mine != other for mine, other in pairs) / len(pairs)
            yield DraftPoint(loops, tokens, accepted, plain_seconds / seconds, differing)


def _measured(
    model: LoopedTransformer, prompts: Sequence[Sequence[int]], settings: Settings, turns: int
) -> tuple[list[Completion], float]:
    """Returns what was generated, and the seconds of the fastest of some calls after one that warms up."""
    length = max(map(len, prompts)) + settings.max_new_tokens
    engine = Engine(model, len(prompts), min(length, model.config.max_len), settings)
    said = engine.generate(prompts)
    times = []
    for _ in range(turns):
        _synchronize(model)
        began = time.perf_counter()
        engine.generate(prompts)
        _synchronize(model)
        times.append(time.perf_counter() - began)
    return said, min(times)


def _synchronize(model: LoopedTransformer) -> None:
    if model.token_embedding.weight.is_cuda:
        torch.cuda.synchronize()
