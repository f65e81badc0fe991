"""The reasoning primitives as requests to a language model: variable assignment with five solved problems in front."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from loopt.evaluation.exchange import Prediction, Request
from loopt.evaluation.predict import predict
from loopt.model import LoopedTransformer
from loopt.source import Codec
from loopt.tasks import VariableAssignment
from loopt.text.task_documents import SEED, TaskDocuments

SHOTS = 5
NEW_TOKENS = 6
"""An answer has up to two digits."""
PRIMITIVES = {
    f"assignment_{rendering}_{depth}": VariableAssignment(depth=depth, rendering=rendering, shots=SHOTS)
    for depth in (0, 1)
    for rendering in ("code", "math")
}


@dataclass(frozen=True)
class Problem:
    """A question, and the numbers that may be its answer."""

    request: Request
    choices: list[str]


def problems(name: str, examples: int) -> Iterator[Problem]:
    """Yields test problems of a primitive, which no prepared text has among its training documents."""
    task = PRIMITIVES[name]
    for document in islice(TaskDocuments(task, "test").documents(0), examples):
        index = document.next - 1
        tokens = task.sample(range(index, index + 1), SEED, "test").tokens[0].tolist()
        request = Request(
            task=name,
            id=str(index),
            shots=(),
            question=task.prompt(tokens),
            golds=(task.answer(tokens),),
            stop=("\n",),
            max_new_tokens=NEW_TOKENS,
        )
        yield Problem(request, task.choices(tokens))


@dataclass(frozen=True)
class PrimitiveScore:
    """What a model makes of a primitive; shares in percent, with their standard errors."""

    exact_match: float
    choice: float
    """How often the right one of the candidates is the likeliest; a guess is right one time in five."""
    bits_per_byte: float
    bits_error: float
    examples: int

    def metrics(self, name: str) -> dict[str, float]:
        return {name: self.exact_match, f"{name}/choice": self.choice, f"{name}/bits_per_byte": self.bits_per_byte}

    def standard_errors(self, name: str) -> dict[str, float]:
        def of_share(percent: float) -> float:
            return math.sqrt(percent * (100 - percent) / self.examples)

        errors = of_share(self.exact_match), of_share(self.choice), self.bits_error
        return dict(zip(self.metrics(name), errors, strict=True))


def score_primitive(
    model: LoopedTransformer, codec: Codec, name: str, examples: int, loops: int | None = None
) -> PrimitiveScore:
    """Returns exact match of what the model generates, its choice among the candidates, and bits per byte."""
    asked = list(problems(name, examples))
    said = {one.id: one for one in predict(model, codec, [problem.request for problem in asked], loops=loops)}
    posed = [
        replace(problem.request, id=f"{problem.request.id} {choice}", golds=(choice,))
        for problem in asked
        for choice in problem.choices
    ]
    likelihoods = {one.id: one.gold_nats for one in predict(model, codec, posed, loops=loops, generate=False)}
    exact = choice = 0
    for problem in asked:
        key, (gold,) = problem.request.id, problem.request.golds
        exact += (said[key].text or "").strip() == gold
        choice += min(problem.choices, key=lambda one: likelihoods[f"{key} {one}"]) == gold
    bits, error = bits_per_byte(list(said.values()))
    return PrimitiveScore(100 * exact / len(asked), 100 * choice / len(asked), bits, error, len(asked))


def bits_per_byte(predictions: list[Prediction]) -> tuple[float, float]:
    """Returns the bits per byte of all gold answers together, and their standard error, as that of a ratio."""
    nats = [one.gold_nats for one in predictions]
    count, size = len(predictions), sum(one.gold_bytes for one in predictions)
    ratio = sum(nats) / size
    residuals = (one.gold_nats - ratio * one.gold_bytes for one in predictions)
    error = math.sqrt(sum(r * r for r in residuals) * count / max(count - 1, 1)) / size
    return ratio / math.log(2), error / math.log(2)
