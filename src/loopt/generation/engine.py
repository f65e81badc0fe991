"""Generating text: prompts in, completions out, in batches whose rows do not know of each other.

>>> from loopt import LoopedTransformer, ModelConfig
>>> config = ModelConfig(plan="1x4", d_model=16, n_heads=2, d_ff=32, vocab_size=7, max_len=32)
>>> one, other = generate(LoopedTransformer(config), [[1, 2, 3], [4]], max_new_tokens=5)
>>> len(one.tokens), one.finish
(5, 'length')
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from loopt.errors import InputError
from loopt.generation.row import Completion, Piece, Row
from loopt.generation.row_text import RowText
from loopt.generation.settings import Settings
from loopt.generation.speculation import DraftedTurns
from loopt.generation.turns import OneTokenTurns, RowTurn, Turns
from loopt.model import LoopedTransformer
from loopt.source import Codec

Prompts = str | Sequence[str] | Sequence[Sequence[int]] | Tensor


def generate(
    model: LoopedTransformer,
    prompts: Prompts,
    settings: Settings | None = None,
    *,
    codec: Codec | None = None,
    seeds: Sequence[int] | None = None,
    **changes: Any,
) -> list[Completion]:
    """Completes prompts, texts or token ids, and returns a completion for each, or ``settings.samples`` of them, in
    order. Single settings can be given by name: ``generate(model, "It is", temperature=0.8, loops=12)``.

    A model that was loaded from a run knows how to turn text into tokens; for others give a ``codec``. ``seeds`` gives
    each prompt one of its own, in place of ``seed``."""
    engine, tokens = _engine_for(model, prompts, settings, codec, changes)
    return engine.generate(tokens, seeds)


def stream(
    model: LoopedTransformer,
    prompts: Prompts,
    settings: Settings | None = None,
    *,
    codec: Codec | None = None,
    seeds: Sequence[int] | None = None,
    **changes: Any,
) -> Iterator[Piece]:
    """Does what ``generate`` does, and yields each token with its text as soon as it is there."""
    engine, tokens = _engine_for(model, prompts, settings, codec, changes)
    return engine.stream(tokens, seeds)


def _engine_for(
    model: LoopedTransformer,
    prompts: Prompts,
    settings: Settings | None,
    codec: Codec | None,
    changes: dict[str, Any],
) -> tuple[Engine, list[list[int]]]:
    """Returns an engine just large enough, and the tokens of the prompts."""
    settings = replace(settings or Settings(), **changes)
    settings.check(model)
    tokens = read_prompts(model, prompts, codec or model.codec)
    return Engine(model, *room_for(model, tokens, settings), settings, codec), tokens


def room_for(model: LoopedTransformer, prompts: Sequence[Sequence[int]], settings: Settings) -> tuple[int, int]:
    """Returns how many rows, and tokens in each, an engine for these prompts needs."""
    rows = min(len(prompts) * settings.samples, settings.batch_size)
    return rows, max(len(prompt) + _limit(model, prompt, settings) - 1 for prompt in prompts)


class Engine:
    """A model ready to generate, ``rows`` prompts at a time, each of up to ``length`` tokens with the new ones. Its
    cache and, on CUDA, its captured graphs are kept for the next prompts."""

    def __init__(
        self,
        model: LoopedTransformer,
        rows: int,
        length: int,
        settings: Settings | None = None,
        codec: Codec | None = None,
    ) -> None:
        self.model, self.rows, self.length = model, rows, length
        self.settings, self.codec = settings or Settings(), codec or model.codec
        self.settings.check(model)
        words = model.config.vocab_size if self.codec is None else self.codec.vocab_size
        kind = OneTokenTurns if self.settings.draft_loops is None else DraftedTurns
        self._turns: Turns = kind(model, self.settings, rows, length, words)

    def generate(self, prompts: Prompts, seeds: Sequence[int] | None = None) -> list[Completion]:
        """Returns a completion for each prompt and sample."""
        rows = self.rows_for(prompts, seeds)
        for _ in self.run(rows):
            pass
        return [row.completion() for row in rows]

    def stream(self, prompts: Prompts, seeds: Sequence[int] | None = None) -> Iterator[Piece]:
        """Yields each token with its text as soon as it is there."""
        return self.run(self.rows_for(prompts, seeds))

    def rows_for(self, prompts: Prompts, seeds: Sequence[int] | None = None) -> list[Row]:
        """Returns a row for each prompt and sample, for ``run``."""
        settings, tokens = self.settings, read_prompts(self.model, prompts, self.codec)
        if seeds is not None and len(seeds) != len(tokens):
            raise InputError(f"{len(seeds)} seeds: allowed is one for each of the {len(tokens)} prompts")
        stop_ids = {*settings.stop_ids} | ({self.codec.end} if self.codec and self.codec.end is not None else set())
        rows = []
        for number, prompt in enumerate(tokens):
            limit = _limit(self.model, prompt, settings)
            if len(prompt) + limit - 1 > self.length:
                raise InputError(
                    f"cache too small: prompt {number} of {len(prompt)} tokens with {limit} new ones, of which all but "
                    f"the last are kept; allowed are {self.length} tokens in all"
                )
            for sample in range(settings.samples):
                key = _row_key(settings.seed if seeds is None else seeds[number], prompt, sample)
                text = RowText(self.codec, settings.stop) if self.codec is not None else None
                rows.append(Row(prompt, key, limit, frozenset(stop_ids), text))
        return rows

    def run(self, rows: list[Row]) -> Iterator[Piece]:
        """Generates for all rows, some at a time, and yields each token as soon as it is there; afterwards every row
        has its completion."""
        for first in range(0, len(rows), self.rows):
            batch = rows[first : first + self.rows]
            idle = self.rows - len(batch)
            prompts, keys = [row.prompt for row in batch] + [[0]] * idle, [row.key for row in batch] + [0] * idle
            self._turns.begin(prompts, keys)
            for turns in self._turns_read():
                for number, (row, turn) in enumerate(zip(batch, turns, strict=False)):
                    if row.finish is None:
                        yield from row.take(first + number, turn)
                if all(row.finish is not None for row in batch):
                    break

    def _turns_read(self) -> Iterator[list[RowTurn]]:
        """Yields what each turn has found, for all rows. On CUDA the next turn is started before the last is read."""
        figures = self._turns.figures
        if self._turns.stream is None:
            while True:
                yield [RowTurn.read(row) for row in figures.tolist()]
                self._turns.next()
        copies = [(torch.empty_like(figures, device="cpu", pin_memory=True), torch.cuda.Event()) for _ in range(2)]
        turn = 0
        while True:
            copy, copied = copies[turn % 2]
            with torch.cuda.stream(self._turns.stream):
                copy.copy_(figures, non_blocking=True)
                copied.record()
            self._turns.next()
            copied.synchronize()
            yield [RowTurn.read(row) for row in copy.tolist()]
            turn += 1


def read_prompts(model: LoopedTransformer, prompts: Prompts, codec: Codec | None) -> list[list[int]]:
    """Returns the tokens of prompts, which are texts or token ids, and refuses what the model cannot read."""
    if codec is not None and codec.vocab_size > model.config.vocab_size:
        raise InputError(
            f"vocabulary: the tokenizer has {codec.vocab_size} tokens; the model reads {model.config.vocab_size}"
        )
    given: list[Any] = [prompts] if isinstance(prompts, str) else list(prompts)
    if not given:
        raise InputError("prompts: none given; allowed is one or more")
    return [_read_prompt(model, number, prompt, codec) for number, prompt in enumerate(given)]


def _read_prompt(model: LoopedTransformer, number: int, prompt: Any, codec: Codec | None) -> list[int]:
    if isinstance(prompt, str):
        if codec is None:
            raise InputError(f"prompt {number} is text, and this model has no tokenizer: give token ids, or a codec")
        tokens = codec.encode(prompt)
    else:
        tokens = [int(token) for token in prompt]
    longest, words = model.config.max_len, model.config.vocab_size
    if not tokens:
        raise InputError(f"prompt {number} is empty; allowed are 1 to {longest} tokens")
    if len(tokens) > longest:
        raise InputError(f"prompt {number} of {len(tokens)} tokens; allowed are 1 to {longest}, the model's max_len")
    for token in tokens:
        if not 0 <= token < words:
            raise InputError(f"prompt {number}: token {token}; allowed are 0 to {words - 1}, the model's vocabulary")
    return tokens


def _limit(model: LoopedTransformer, prompt: Sequence[int], settings: Settings) -> int:
    """Returns how many tokens a prompt may get: the last one is not read, so that all before it fit max_len."""
    return min(settings.max_new_tokens, model.config.max_len - len(prompt) + 1)


def _row_key(seed: int, prompt: Sequence[int], sample: int) -> int:
    digest = hashlib.blake2b(repr((seed, list(prompt), sample)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
