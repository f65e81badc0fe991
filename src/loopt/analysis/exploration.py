"""What the page of latent thoughts shows, as plain data: models side by side on the same examples, step by step."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from loopt.analysis.latents import Latents, look_inside, steps_trained
from loopt.analysis.probes import Probes, Score
from loopt.errors import InputError
from loopt.model import LoopedTransformer
from loopt.plan import LoopPlan
from loopt.source import Codec
from loopt.tasks import IGNORE, Addition, Task
from loopt.tasks.addition import END, EQUALS, PAD
from loopt.tasks.inside import asked, quantities, structure

MOST_TOKENS = 1024
"""Of an example on a page."""
MOST_STEPS = 64
TOP = 3
"""How many of the likeliest tokens are kept at each position."""
ATTENTION_BYTES = 1_500_000
"""For the attention of all models on all examples of a page."""
MOST_LOOKS = 12
"""How many positions are kept of those that a head looks at from one."""
SURE = 0.9
"""A probe that is taken at its word reads at least this share of other examples right."""
ERRORS = 0.2
"""It makes at most this share of the errors of guessing the most frequent value, and of those of the control probe."""

UNTYPED = ("pad", "<pad>", "end")
"""Words of a task's examples that nobody needs to type."""

Data = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """A model to look at."""

    name: str
    note: str
    model: LoopedTransformer
    start: int | None = None
    """A token that it reads before every example: a built model's #."""
    probes: Probes | None = None
    loops: int | None = None
    """How many loops to look at; those it was trained with unless given."""

    @property
    def steps(self) -> int:
        """Returns how many steps are shown; a model that has no loops has no more than its layers."""
        trained = steps_trained(self.model)
        return self.loops or trained if self.loops_further else trained

    @property
    def loops_further(self) -> bool:
        return any(block.loops > 1 for block in self.model.config.plan.blocks)


@dataclass(frozen=True)
class Exploration:
    """Models of one vocabulary, and what they read: examples of a task, or text."""

    subjects: Sequence[Subject]
    task: Task | None
    codec: Codec

    @property
    def longest(self) -> int:
        """Returns the tokens of the longest input that every model reads."""
        return min([MOST_TOKENS, *(one.model.config.max_len - (one.start is not None) for one in self.subjects)])

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of what a person typed, or raises an InputError. A sum may be typed without its digits."""
        tokens = self.codec.encode(text)
        if isinstance(self.task, Addition):
            tokens = _with_sum(self.task, tokens)
        if not 1 <= len(tokens) <= self.longest:
            raise InputError(f"input of {len(tokens)} tokens: allowed are 1 to {self.longest}")
        if self.task is not None:
            self.task.solve(tokens)  # refuses what is no problem of this task
        return tokens

    def word(self, token: int) -> str:
        """Returns the text of a token; a task's vocabulary may have fewer words than the model has tokens."""
        if self.task is not None:
            words = self.task.vocabulary
            return words[token] if token < len(words) else f"<{token}>"
        return self.codec.decode([token])

    @property
    def allowed(self) -> str:
        """Returns in words what a person may type."""
        if self.task is None:
            return f"allowed is text of up to {self.longest} tokens"
        ((_, tokens),) = draw_examples(self.task, 0, 1)
        tokens = [token for token in tokens if self.word(token) not in UNTYPED]
        one = self.task.document(tokens) if isinstance(self.task, Addition) else self.codec.decode(tokens)
        return f"allowed are problems of {self.task.name} of up to {self.longest} tokens, such as {one}"

    def describe_models(self) -> list[Data]:
        """Returns what a page says of each model whatever the example."""
        found = []
        for one in self.subjects:
            plan = one.model.config.plan
            layers = plan.blocks[plan.loopable or 0].layers if one.loops_further else 1
            found.append(
                {
                    "name": one.name,
                    "made": made_of(plan),
                    "note": one.note,
                    "start": one.start is not None,
                    "by": "loop" if one.loops_further else "layer",
                    "trained": steps_trained(one.model),
                    "steps": one.steps,
                    "layers": layers,
                    "heads": one.model.config.n_heads,
                    "probes": [asdict(score) | {"sure": is_sure(score)} for score in one.probes.scores]
                    if one.probes
                    else [],
                }
            )
        return found

    def describe(self, examples: Sequence[tuple[str, list[int]]], seconds: float | None = None) -> list[Data]:
        """Returns all that a page shows of examples, each given by its title and its tokens. Raises TimeoutError when
        it has not looked at them after so many seconds."""
        deadline = None if seconds is None else time.monotonic() + seconds
        room = ATTENTION_BYTES / sum(self._bytes_of_look(len(tokens)) for _, tokens in examples)
        looks = min(MOST_LOOKS, int(room))
        return [self._describe_one(title, tokens, looks, deadline) for title, tokens in examples]

    def _bytes_of_look(self, length: int) -> int:
        """Returns how much text one looked-at position of every row takes, for all models."""
        described = self.describe_models()
        return sum(4 * one["steps"] * one["layers"] * one["heads"] * length for one in described)  # 3 bytes in base64

    def _describe_one(self, title: str, tokens: list[int], looks: int, deadline: float | None) -> Data:
        labels = [*tokens[1:], IGNORE] if self.task is None else asked(self.task, tokens)
        inside = [
            look_inside(
                one.model, tokens, one.steps if one.loops_further else None, TOP, one.start, max(1, looks), deadline
            )
            for one in self.subjects
        ]
        words, ids = self._words(tokens, labels, inside)
        right = [ids[label] if label != IGNORE else -1 for label in labels]
        found = {} if self.task is None else quantities(self.task, tokens)
        return {
            "title": title,
            "words": words,
            "tokens": [ids[token] for token in tokens],
            "right": right,
            "ask": self._ask(labels),
            "problem": {"kind": "text"} if self.task is None else structure(self.task, tokens),
            "quantities": {name: [None if v == IGNORE else v for v in values] for name, values in found.items()},
            "looks": [
                self._describe_look(one, latents, ids, right, looks)
                for one, latents in zip(self.subjects, inside, strict=True)
            ],
        }

    def _ask(self, labels: list[int]) -> int:
        """Returns the position to look at first: where a sum begins to be written, else the last that has an answer."""
        answered = [i for i, label in enumerate(labels) if label != IGNORE]
        if self.task is None or not answered:
            return len(labels) - 1
        return answered[0] if isinstance(self.task, Addition) and self.task.supervision == "last" else answered[-1]

    def _words(
        self, tokens: list[int], labels: list[int], inside: Sequence[Latents]
    ) -> tuple[list[str], dict[int, int]]:
        """Returns the words that an example needs, and the place of each token's word among them. A task has few, and
        they keep their order, so that a label is its own place."""
        if self.task is not None:
            size = max(one.model.config.vocab_size for one in self.subjects)
            return [self.word(token) for token in range(size)], {token: token for token in range(size)}
        seen = {token for one in inside for answer in one.answers for row in answer.choices for token in row}
        used = sorted({*tokens, *seen, *(label for label in labels if label != IGNORE)})
        return [self.word(token) for token in used], {token: i for i, token in enumerate(used)}

    def _describe_look(self, one: Subject, latents: Latents, ids: dict[int, int], right: list[int], looks: int) -> Data:
        choices = [[[ids[token] for token in row] for row in answer.choices] for answer in latents.answers]
        orbit, variance = latents.orbit()
        states = [one.model.final_norm(x.to(one.model.token_embedding.weight.dtype)) for x in latents.states]
        return {
            "choices": [_flat(rows) for rows in choices],
            "probabilities": [[round(p, 4) for p in _flat(answer.probabilities)] for answer in latents.answers],
            "entropy": [[round(value, 3) for value in answer.entropy] for answer in latents.answers],
            **when_right(choices, right, latents.trained),
            "attention": _packed(latents) if looks else None,
            "change": _rounded(latents.change()),
            "cosine": _rounded(latents.cosine()),
            "orbit": _rounded(orbit.flatten(1)),
            "variance": [round(share, 4) for share in variance],
            "movement": [latents.movement(position) for position in range(len(right))],
            "probe": one.probes.read([x.double().cpu() for x in states]) if one.probes else {},
        }


def is_sure(score: Score) -> bool:
    """Returns whether a probe may be taken at its word: it is mostly right, and not because guessing is.

    >>> [is_sure(Score("carry", 1, accuracy, control=0.3, baseline=0.6, rows=9)) for accuracy in (0.89, 0.91, 0.93)]
    [False, False, True]
    """
    luck = max(score.baseline, score.control)
    return luck < 1 and score.accuracy >= SURE and 1 - score.accuracy <= ERRORS * (1 - luck)


def made_of(plan: LoopPlan) -> str:
    """Returns a plan in words.

    >>> made_of(LoopPlan.parse("1x4")), made_of(LoopPlan.parse("4x(1,3)"))
    ('1 layer, run 4 times', '4 layers, run once, then 4 layers, run 3 times')
    """
    return ", then ".join(
        f"{block.layers} layer{'s' * (block.layers > 1)}, run {f'{block.loops} times' if block.loops > 1 else 'once'}"
        for block in plan.blocks
    )


def when_right(choices: Sequence[Sequence[Sequence[int]]], right: Sequence[int], trained: int) -> dict[str, list[int]]:
    """Returns for each position the step after which the first choice is first right, from which on it stays right up
    to the trained number of steps, the first further step at which it is then wrong again, and where it is never right
    up to there, the first further step at which it is; 0 where there is none.

    >>> when_right([[[1]], [[2]], [[1]], [[1]], [[3]]], right=[1], trained=4)
    {'first': [1], 'stays': [3], 'lost': [5], 'late': [0]}
    >>> when_right([[[2]], [[2]], [[2]], [[1]]], right=[1], trained=2)
    {'first': [0], 'stays': [0], 'lost': [0], 'late': [4]}
    """
    first, stays, lost, late = [], [], [], []
    for position, label in enumerate(right):
        hits = [step[position][0] == label for step in choices]
        within = hits[:trained]
        first.append(within.index(True) + 1 if True in within else 0)
        wrong = [step for step, hit in enumerate(within, start=1) if not hit]
        last_wrong = wrong[-1] if wrong else 0
        stays.append(last_wrong + 1 if last_wrong < len(within) else 0)
        beyond = hits[trained:]
        lost.append(trained + beyond.index(False) + 1 if False in beyond and stays[-1] else 0)
        late.append(trained + beyond.index(True) + 1 if True in beyond and not first[-1] else 0)
    return {"first": first, "stays": stays, "lost": lost, "late": late}


def _with_sum(task: Addition, tokens: list[int]) -> list[int]:
    """Returns a sum with its digits written behind it, if none are."""
    question = tokens if EQUALS in tokens else [*tokens, EQUALS]
    if tokens and question[-1] == EQUALS:
        room = [PAD] * (len(question) + 1)  # a sum has fewer digits than all that is added
        labels = task.solve([*question, *room])[len(question) - 1 :]
        return [*question, *(label for label in labels if label not in (END, IGNORE))]
    return tokens


def draw_examples(task: Task, first: int, count: int) -> list[tuple[str, list[int]]]:
    """Returns test examples of a task, by title and tokens."""
    tokens = task.sample(range(first, first + count), 0, "test").tokens.tolist()
    return [(f"test example {first + i}", row) for i, row in enumerate(tokens)]


def _flat(rows: Sequence[Sequence[Any]]) -> list[Any]:
    return [value for row in rows for value in row]


def _rounded(values: Tensor) -> list[list[float]]:
    return [[round(value, 3) for value in row] for row in values.tolist()]


def _packed(latents: Latents) -> dict[str, Any]:
    """Returns the attention in base64, for each step, layer, head and position: which positions it looks at most, two
    bytes each, and with which weight, in 255ths."""
    index = latents.looked_at.to(torch.int16).numpy().astype("<u2")
    weight = (255 * latents.look_weights).round().to(torch.uint8).numpy()
    return {
        "k": index.shape[-1],
        "index": base64.b64encode(index.tobytes()).decode(),
        "weight": base64.b64encode(weight.tobytes()).decode(),
    }
