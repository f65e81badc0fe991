"""The middle stage: what a model makes of rendered requests. It needs torch and a tokenizer, and nothing else.

A prompt is the token that ends a document, then the shots and the question. The likelihood of the first gold answer is
measured behind the very prompt that the model answers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loopt.errors import InputError
from loopt.evaluation.exchange import Prediction, Request
from loopt.evaluation.language_model import Continuation, LanguageModel, Prompt
from loopt.evaluation.looped import LoopedModel
from loopt.model import LoopedTransformer
from loopt.source import Codec


def predict(
    model: LoopedTransformer,
    codec: Codec,
    requests: Sequence[Request],
    *,
    loops: int | None = None,
    generate: bool = True,
) -> Iterator[Prediction]:
    """Yields one of our models' predictions as ``predict_with`` does, with any number of loops."""
    return predict_with(LoopedModel(model, codec, loops), requests, generate=generate)


def predict_with(model: LanguageModel, requests: Sequence[Request], *, generate: bool = True) -> Iterator[Prediction]:
    """Yields a prediction for each request, batch by batch, those with the longest prompts first. With ``generate`` off
    only likelihoods are measured."""
    fitted = sorted(fit_prompts(model, requests), key=lambda one: -len(one.tokens))
    for first in range(0, len(fitted), model.batch):
        batch = fitted[first : first + model.batch]
        likelihoods = model.likelihoods([Continuation(one.tokens, one.gold) for one in batch])
        prompts = [Prompt(one.tokens, one.request.stop, one.request.max_new_tokens) for one in batch]
        texts: Sequence[str | None] = model.complete(prompts) if generate else [None] * len(batch)
        for one, likelihood, text in zip(batch, likelihoods, texts, strict=True):
            request, gold_bytes = one.request, len(gold_text(one.request).encode())
            dropped = (one.shots_dropped, one.tokens_cut)
            if not math.isfinite(likelihood.log_probability):
                raise InputError(f"{request.task}: the model's probabilities are not numbers: its weights are broken")
            yield Prediction(request.task, request.id, text, -likelihood.log_probability, gold_bytes, *dropped)


@dataclass(frozen=True)
class FittedPrompt:
    """The tokens of a request, as many as the model has room for."""

    request: Request
    tokens: list[int]
    gold: list[int]
    """The tokens of the gold answer whose likelihood is measured."""
    shots_dropped: int
    tokens_cut: int


def gold_text(request: Request) -> str:
    """Returns the answer whose likelihood is measured, as it stands behind the prompt."""
    return f" {request.golds[0]}"


def prompt_text(request: Request, shots_dropped: int = 0) -> str:
    return "".join(request.shots[shots_dropped:]) + request.question


def fit_prompts(model: LanguageModel, requests: Sequence[Request]) -> list[FittedPrompt]:
    """Returns the prompts of requests, in order. Of one that is too long whole shots are dropped, the first one first;
    a question that is too long even alone is cut on its left."""
    golds = model.encode_answers([gold_text(request) for request in requests])
    fitted: dict[int, FittedPrompt] = {}
    dropped = 0
    while len(fitted) < len(requests):
        waiting = [number for number in range(len(requests)) if number not in fitted]
        texts = model.encode([prompt_text(requests[number], dropped) for number in waiting])
        for number, tokens in zip(waiting, texts, strict=True):
            request, gold = requests[number], golds[number]
            room = _room(model, request, gold)
            if len(tokens) <= room or dropped == len(request.shots):
                cut = max(0, len(tokens) - room)
                fitted[number] = FittedPrompt(request, [model.start, *tokens[cut:]], gold, dropped, cut)
        dropped += 1
    return [fitted[number] for number in range(len(requests))]


def _room(model: LanguageModel, request: Request, gold: Sequence[int]) -> int:
    """Returns how many tokens a prompt may have besides the first: what answers leave of max_len, at least half. The
    last token of an answer is not read, so that it takes no room."""
    answer = max(request.max_new_tokens, len(gold)) - 1
    return max(0, max(model.max_len - answer, model.max_len // 2) - 1)
