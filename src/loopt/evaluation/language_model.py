"""What evaluation asks of a language model, whoever made it: tokens, answers, and how likely given answers are.

Prompts and answers come in any number and order; a model answers them longest first, as many at a time as it has room
for, so that little is padding and what does not fit fails at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Prompt:
    """What a model is to go on with."""

    tokens: Sequence[int]
    stop: tuple[str, ...]
    """Texts to stop before."""
    max_new_tokens: int
    key: int = 0
    """Decides the random numbers of a completion that is sampled."""


@dataclass(frozen=True)
class Continuation:
    """Tokens, and those that may come next, whose probability is asked for."""

    context: Sequence[int]
    """At least one token."""
    tokens: Sequence[int]


@dataclass(frozen=True)
class Likelihood:
    """How likely a continuation is."""

    log_probability: float
    """In nats, of all its tokens together."""
    greedy: bool
    """Whether each of its tokens is the model's first choice."""

    def __add__(self, other: Likelihood) -> Likelihood:
        return Likelihood(self.log_probability + other.log_probability, self.greedy and other.greedy)


@dataclass(frozen=True)
class Window:
    """As many tokens as fit the model at once: it reads all but the last, and the last ``scored`` are scored."""

    tokens: Sequence[int]
    scored: int


class LanguageModel(ABC):
    """A language model, ready to be evaluated."""

    max_len: int
    """The most tokens it reads."""
    start: int
    """The token that a document begins after."""
    batch: int
    """How many prompts are worth giving it at a time."""

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the tokens of each text, without any that mark its beginning or end."""

    @abstractmethod
    def encode_answers(self, answers: Sequence[str]) -> list[list[int]]:
        """Returns the tokens that each answer, which begins with a space, has behind a prompt."""

    def complete(self, prompts: Sequence[Prompt]) -> list[str]:
        """Returns the greedy completion of each prompt, without what stopped it."""
        found = [""] * len(prompts)
        needed = [min(len(prompt.tokens) + prompt.max_new_tokens - 1, self.max_len) for prompt in prompts]
        for numbers in longest_first(needed, self.rows_to_complete):
            texts = self.complete_batch([prompts[number] for number in numbers], needed[numbers[0]])
            for number, text in zip(numbers, texts, strict=True):
                found[number] = text
        return found

    def likelihoods(self, continuations: Sequence[Continuation]) -> list[Likelihood]:
        """Returns how likely each continuation is. Where it does not fit the model together with its context, the
        context is cut on its left; where it does not fit alone, it is read in windows, in which every token sees at
        least the half of max_len before it."""
        found = [Likelihood(0.0, True)] * len(continuations)
        windows = [(number, w) for number, one in enumerate(continuations) for w in windows_of(one, self.max_len)]
        lengths = [len(window.tokens) - 1 for _, window in windows]
        for batch in longest_first(lengths, self.rows_to_score):
            scores = self.score_batch([windows[index][1] for index in batch])
            for index, score in zip(batch, scores, strict=True):
                found[windows[index][0]] += score
        return found

    @abstractmethod
    def rows_to_complete(self, length: int) -> int:
        """Returns how many prompts of ``length`` tokens, the new ones included, are completed at a time."""

    @abstractmethod
    def rows_to_score(self, length: int) -> int:
        """Returns how many windows of ``length`` tokens are scored at a time."""

    @abstractmethod
    def complete_batch(self, prompts: Sequence[Prompt], length: int) -> list[str]:
        """Returns the greedy completions of prompts that take up to ``length`` tokens, the new ones included."""

    @abstractmethod
    def score_batch(self, windows: Sequence[Window]) -> list[Likelihood]:
        """Returns how likely the scored tokens of each window are."""


def windows_of(continuation: Continuation, max_len: int) -> Iterator[Window]:
    """Yields the windows in which every token of a continuation is scored once.

    >>> list(windows_of(Continuation([1, 2, 3], [4, 5]), 3))
    [Window(tokens=[2, 3, 4, 5], scored=2)]
    """
    row = [*continuation.context, *continuation.tokens]
    if len(continuation.tokens) <= max_len:
        yield Window(row[-(max_len + 1) :], len(continuation.tokens))
        return
    done = len(continuation.context)
    while done < len(row):
        first = max(0, done - 1 - max_len // 2)
        end = min(first + max_len + 1, len(row))
        yield Window(row[first:end], end - done)
        done = end


def longest_first(lengths: Sequence[int], rows: Callable[[int], int]) -> Iterator[list[int]]:
    """Yields the numbers of all lengths in batches, the longest first, of so many rows as its longest allows.

    >>> list(longest_first([3, 9, 4], lambda length: 2))
    [[1, 2], [0]]
    """
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    first = 0
    while first < len(order):
        count = rows(lengths[order[first]])
        yield order[first : first + count]
        first += count
