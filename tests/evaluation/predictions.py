"""Predictions of models that are no models: one looks the answers up, one says nothing, one garbles answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from loopt.evaluation.exchange import Prediction, Request


def predict(requests: Sequence[Request], say: Callable[[Request], str | None]) -> list[Prediction]:
    """Returns predictions with the given texts; every gold costs one nat a byte."""
    found = []
    for request in requests:
        size = len(f" {request.golds[0]}".encode())
        found.append(Prediction(request.task, request.id, say(request), float(size), size, 0))
    return found


def look_up(request: Request) -> str:
    return request.golds[0]


def say_nothing(request: Request) -> str:
    return ""


def garbler(requests: Sequence[Request], seed: int) -> Callable[[Request], str]:
    """Returns a model that says golds in other words: with articles, punctuation, other words, cut or of others."""
    random = Random(seed)
    all_golds = [gold for request in requests for gold in request.golds]

    def garble(request: Request) -> str:
        gold = random.choice(request.golds)
        words = gold.split()
        return random.choice(
            [
                gold,
                f"The {gold}.",
                gold.upper(),
                f"{gold} and {random.choice(all_golds)}",
                " ".join(words[: max(1, len(words) // 2)]),
                random.choice(all_golds),
                f"it is {gold}, {random.randint(0, 99)}",
                " and ".join(reversed(gold.split(" and "))),
                gold.replace(",", ""),
                f"{random.randint(1, 3)},000.50",
                "unanswerable",
                "",
            ]
        )

    return garble
