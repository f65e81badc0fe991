"""Audits of tasks: how balanced the answers are, which examples come twice, and how often cheap shortcuts are right.

Every shortcut is fitted on train examples and scored on test examples by exact match, as a model is. It sees the
question: the tokens up to the first position with an answer. Later tokens may be the answer written out, so where an
answer has many positions, shortcuts see less than a model does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from loopt.limits import require_affordable
from loopt.random_bits import Stream
from loopt.source import Split
from loopt.tasks.base import IGNORE, Task, check_integer

CHUNK = 4096
MAX_FEATURES = 1024
"""The most features of a logistic regression, the commonest ones, which bounds its memory."""


@dataclass(frozen=True)
class Audit:
    """The findings for one of a task's tests."""

    test: str
    train_examples: int
    test_examples: int
    answer_tokens: int
    """The number of tokens in the longest answer."""
    first_labels: tuple[tuple[str, float], ...]
    """The first, often only, tokens of the test examples' answers with their shares, commonest first."""
    distinct_answers: int
    """How many different whole answers the test examples have."""
    repeated: int
    """Train examples that have the same tokens as an earlier one."""
    leaked: int
    """Test examples that are also train examples."""
    shortcuts: dict[str, float]
    """Exact match of each shortcut."""

    @property
    def chance(self) -> float:
        return 1 / self.distinct_answers


def audit(task: Task, examples: int = 100_000, seed: int = 0) -> list[Audit]:
    """Audits a task on the first ``examples`` of the train split, in equal shares of the task's mixture, and on as many
    of each of its tests."""
    check_integer(task.name, "examples", examples, len(task.mixture))
    tests = task.tests
    kinds = len(task.vocabulary)
    width = max(one.length for one in (task, *tests.values()))
    features = min(MAX_FEATURES, (kinds + 1) * max(kinds + 1, width))
    what = f"task {task.name}: an audit of {examples:,} examples of {width:,} tokens"
    require_affordable(what, memory=examples * (16 * width + 4 * features))
    train = _collect(task, examples, seed, "train", width)
    shortcuts = _fit(train, kinds)
    repeated = examples - len(train.rows.unique())
    return [
        _measure(name, _collect(test, examples, seed, "test", width), train, repeated, shortcuts, task.vocabulary)
        for name, test in tests.items()
    ]


@dataclass(frozen=True)
class _Examples:
    question: Tensor
    """[examples, width] int32: 1 + token id, each question at the right end of its row, with 0 before it."""
    answer: Tensor
    """[examples, width] int32: the labels in order, at the left end of their row, with IGNORE after them."""
    rows: Tensor
    """[examples] int64: a hash of all tokens of an example."""

    @cached_property
    def whole_answers(self) -> list[int]:
        """Returns a hash of each example's whole answer."""
        return _hash(self.answer.long().clamp(min=-1) + 1).tolist()

    def __len__(self) -> int:
        return len(self.rows)


def _collect(task: Task, examples: int, seed: int, split: Split, width: int) -> _Examples:
    chunks: list[tuple[Tensor, Tensor, Tensor]] = []
    mixture = task.mixture
    for number, one in enumerate(mixture):
        share = (examples + number) // len(mixture)
        for first in range(0, share, CHUNK):
            batch = one.sample(range(first, min(first + CHUNK, share)), seed, split)
            tokens = F.pad(batch.tokens + 1, (0, width - batch.tokens.shape[1]))  # [chunk, width]
            asked = batch.answers != IGNORE  # [chunk, length]
            ends = asked.long().argmax(1, keepdim=True)  # [chunk, 1]: the first position with an answer
            source = torch.arange(1 - width, 1) + ends  # [chunk, width]
            question = torch.where(source >= 0, tokens.gather(1, source.clamp(min=0)), 0)
            answer = torch.full_like(tokens, IGNORE)
            row, position = asked.nonzero(as_tuple=True)
            answer[row, (asked.cumsum(1) - 1)[row, position]] = batch.answers[row, position]
            chunks.append((question.int(), answer.int(), _hash(tokens)))
    return _Examples(*(torch.cat(column) for column in zip(*chunks, strict=True)))


def _hash(rows: Tensor) -> Tensor:
    """Hashes each row by adding one random number for each value at each place, 0 left out: [examples, width] integers,
    none negative -> [examples]."""
    numbers = Stream("audit", 0, "").bits(torch.arange(rows.shape[1]), int(rows.max()) + 1, "hash")
    numbers[:, 0] = 0
    return torch.cat([numbers.T.gather(0, chunk).sum(1) for chunk in rows.split(CHUNK)])


Shortcut = Callable[[_Examples], float]
"""A fitted shortcut: returns the share of other examples that it gets right."""


def _fit(train: _Examples, kinds: int) -> dict[str, Shortcut]:
    informative = (train.question != train.question[0]).any(0)  # [width]
    last = int(informative.nonzero()[-1]) if informative.any() else -1
    base = kinds + 1
    features: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
        "bag of tokens": (_tokens, base),
        "bag of bigrams": (partial(_bigrams, base=base), base**2),
        "tokens by place": (partial(_tokens_by_place, base=base), base * train.question.shape[1]),
    }
    return {
        "constant": _lookup(train, lambda examples: [0] * len(examples)),
        "last token": _lookup(train, lambda examples: examples.question[:, last].tolist()),
        **{name: _logistic_regression(train, *found) for name, found in features.items()},
    }


def _lookup(train: _Examples, key_of: Callable[[_Examples], Sequence[int]]) -> Shortcut:
    """Fits a table: for every key, the whole answer that most often goes with it."""
    answers = train.whole_answers
    (always, _), *_ = Counter(answers).most_common(1)
    best: dict[int, int] = {}
    for (key, answer), _ in Counter(zip(key_of(train), answers, strict=True)).most_common():
        best.setdefault(key, answer)

    def measure(test: _Examples) -> float:
        pairs = zip(key_of(test), test.whole_answers, strict=True)
        return sum(best.get(key, always) == answer for key, answer in pairs) / len(test)

    return measure


def _tokens(question: Tensor) -> Tensor:
    return question


def _bigrams(question: Tensor, base: int) -> Tensor:
    left, right = question[:, :-1], question[:, 1:]
    return torch.where(left > 0, left * base + right, 0)


def _tokens_by_place(question: Tensor, base: int) -> Tensor:
    """Returns a feature for each token at each place, counted from the end of the question."""
    return torch.where(question > 0, torch.arange(question.shape[1]) * base + question, 0)


def _logistic_regression(train: _Examples, features_of: Callable[[Tensor], Tensor], kinds: int) -> Shortcut:
    """Fits a classifier for each token of the answer to how often each of ``kinds`` features is in the question."""
    seen = torch.zeros(kinds, dtype=torch.int64)
    for question in train.question.split(CHUNK):
        seen += torch.bincount(features_of(question.long()).flatten(), minlength=kinds)
    seen[0] = 0  # padding is no feature
    kept = seen.argsort(descending=True, stable=True)[: min(MAX_FEATURES, int((seen > 0).sum()))]
    column = torch.full((kinds,), len(kept))  # the last column is dropped
    column[kept] = torch.arange(len(kept))

    def count(question: Tensor) -> Tensor:
        features = column[features_of(question.long())]  # [chunk, features]
        counts = torch.zeros(len(question), len(kept) + 1)
        return counts.scatter_add_(1, features, torch.ones(features.shape))[:, :-1]

    counts = torch.cat([count(question) for question in train.question.split(CHUNK)])  # [examples, kept]
    mean = counts.mean(0)
    scale = counts.std(0, correction=0).clamp(min=1e-6)
    counts.sub_(mean).div_(scale)

    longest = int((train.answer != IGNORE).sum(1).max())
    labels, classes = train.answer[:, :longest].unique(return_inverse=True)  # IGNORE, after an answer, is a label too
    weight = torch.zeros(len(kept), longest * len(labels), requires_grad=True)
    bias = torch.zeros(longest * len(labels), requires_grad=True)

    def logits(inputs: Tensor) -> Tensor:
        return (inputs @ weight + bias).unflatten(1, (longest, len(labels)))  # [examples, longest, labels]

    # Twice the steps, or a change as small as 1e-9, moved p-hop and addition by less than a tenth of a percent.
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=20, tolerance_change=1e-4, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        errors = F.cross_entropy(logits(counts).flatten(0, 1), classes.flatten())
        penalized = errors + 1e-4 * weight.square().sum() / longest
        penalized.backward()
        return penalized

    optimizer.step(loss)

    @torch.no_grad()
    def measure(test: _Examples) -> float:
        right = 0
        for question, answer in zip(test.question.split(CHUNK), test.answer.split(CHUNK), strict=True):
            guess = labels[logits((count(question) - mean) / scale).argmax(-1)]  # [chunk, longest]
            guess = F.pad(guess, (0, answer.shape[1] - longest), value=IGNORE)
            right += int((guess == answer).all(1).sum())
        return right / len(test)

    return measure


def _measure(
    name: str,
    test: _Examples,
    train: _Examples,
    repeated: int,
    shortcuts: dict[str, Shortcut],
    vocabulary: Sequence[str],
) -> Audit:
    first_labels = Counter(test.answer[:, 0].tolist()).most_common()
    return Audit(
        test=name,
        train_examples=len(train),
        test_examples=len(test),
        answer_tokens=int((test.answer != IGNORE).sum(1).max()),
        first_labels=tuple((vocabulary[label], times / len(test)) for label, times in first_labels),
        distinct_answers=len(set(test.whole_answers)),
        repeated=repeated,
        leaked=int(torch.isin(test.rows, train.rows).sum()),
        shortcuts={shortcut: measure(test) for shortcut, measure in shortcuts.items()},
    )
