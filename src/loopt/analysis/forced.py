"""Decoding examples that are given, token by token, as generation would: what exits and smaller caches cost."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loopt.errors import InputError
from loopt.generation.cache import CachePolicy
from loopt.generation.decoder import Decoder
from loopt.generation.exits import ExitRule
from loopt.model import LoopedTransformer
from loopt.scoring.exact_match import EVALUATION_SEED
from loopt.source import Source, Split
from loopt.tasks import IGNORE, Task
from loopt.text.source import Text


@dataclass(frozen=True)
class Given:
    """Examples to decode: the first ``prompt`` tokens are read at once, the others one by one."""

    tokens: Tensor
    """[B, T]"""
    targets: Tensor
    """[B, T]: what comes after each token."""
    asked: Tensor
    """[B, T]: where that counts, among the tokens that are decoded."""
    prompt: int

    @classmethod
    def of(cls, source: Source, length: int, rows: int, split: Split, device: torch.device) -> Given:
        """Returns the first examples of a split: of a task those of its first test, decoded from its answer on; of text
        sequences of ``length``, decoded from their middle on."""
        if isinstance(source, Task):
            (test, *_) = source.tests.values()
            batch = test.sample(range(rows), EVALUATION_SEED, split, device)
            asked = batch.answers != IGNORE
            prompt = int(asked.any(0).long().argmax())
            if prompt < 1:
                raise InputError(f"task {source.name}: answers at its first token; there is no prompt to decode after")
            return cls(batch.tokens, batch.answers.clamp(min=0), asked, prompt)
        assert isinstance(source, Text)
        if length < 2:
            raise InputError(f"model.max_len={length}: allowed is 2 or more, a prompt and what comes after it")
        rows = min(rows, source.tokens.sequences(split, length))
        text = source.tokens.read(split, range(rows), length).to(device)  # [B, T + 1]
        asked = torch.arange(length, device=device).expand(rows, -1) >= length // 2
        return cls(text[:, :-1], text[:, 1:], asked, length // 2)


@dataclass(frozen=True)
class Decoded:
    """How well given examples were decoded."""

    loss: float
    """Mean cross-entropy of what was asked for, in nats."""
    accuracy: float
    """Share of examples all of whose answers were the model's first choice."""
    mean_loops: float
    """Of the tokens that were decoded."""


def decode_given(
    model: LoopedTransformer,
    given: Given,
    *,
    loops: int | None = None,
    policy: CachePolicy | None = None,
    exit_rule: ExitRule | None = None,
) -> Decoded:
    """Decodes given examples, whatever the model would have said, and returns how well."""
    rows, length = given.tokens.shape
    decoder = Decoder(model, rows, length, loops=loops, policy=policy, exit_rule=exit_rule)
    decoder.prefill(given.tokens[:, : given.prompt].tolist())
    loss, used = torch.zeros((), dtype=torch.float64), 0.0
    right = torch.ones(rows, dtype=torch.bool, device=given.tokens.device)
    for position in range(given.prompt, length):
        decoder.step(given.tokens[:, position])
        target, asked = given.targets[:, position], given.asked[:, position]
        found = decoder.logits.log_softmax(1).gather(1, target[:, None])[:, 0]
        loss -= torch.where(asked, found, 0.0).sum().cpu()
        right &= (decoder.logits.argmax(1) == target) | ~asked
        used += decoder.loops_used.sum().item()
    decoded = rows * (length - given.prompt)
    return Decoded((loss / given.asked.sum().cpu()).item(), right.float().mean().item(), used / decoded)
