"""What the three stages hand each other, as lines of JSON: rendered requests, and a model's predictions for them.

Only the standard library is needed, so that predictions can be made on a machine that has torch and a tokenizer alone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """One question to a model, rendered."""

    task: str
    """Name of the task in the suite, such as ``triviaqa``."""
    id: str
    """Names the example among those of its task."""
    shots: tuple[str, ...]
    """Solved examples, in order, each with the blank line that follows it. Where a prompt is too long, whole shots are
    dropped, the first one first."""
    question: str
    """The end of the prompt, which is never dropped: a context, the question, ``Answer:``."""
    golds: tuple[str, ...]
    """Every answer that counts as right; the first is the one whose likelihood is measured, with a space in front."""
    stop: tuple[str, ...]
    """Texts that end an answer."""
    max_new_tokens: int


@dataclass(frozen=True)
class Prediction:
    """What a model made of a request."""

    task: str
    id: str
    text: str | None
    """What it generated, without the stop text; None where only likelihoods were asked for."""
    gold_nats: float
    """Minus the log-probability of the first gold answer, with a space in front, given the prompt."""
    gold_bytes: int
    """Bytes of that answer in UTF-8, the space included."""
    shots_dropped: int
    """How many shots did not fit the model's context."""
    tokens_cut: int = 0
    """How many tokens of the question, its first ones, did not fit either."""
