"""The log-probability of a text, token by token, and what it comes to: bits per byte and perplexity.

Bits per byte compare models with different tokenizers: how many bits it takes, by the model, to tell the text, over the
bytes that the text has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from loopt.errors import InputError
from loopt.model import LoopedTransformer
from loopt.scoring.perplexity import perplexity
from loopt.scoring.precision import autocast
from loopt.scoring.readout import token_log_probabilities
from loopt.source import Codec


@dataclass(frozen=True)
class TextScore:
    """What a model makes of a text."""

    tokens: list[int]
    pieces: list[str]
    """The text of each token; a part of a character is shown as a mark."""
    log_probabilities: list[float]
    """Of each token, given all before it, in nats."""
    bytes: int
    """Of the text in UTF-8."""

    @property
    def bits_per_byte(self) -> float:
        return -sum(self.log_probabilities) / math.log(2) / self.bytes

    @property
    def perplexity(self) -> float:
        return perplexity(-sum(self.log_probabilities) / len(self.tokens))


@torch.no_grad()
def score_text(model: LoopedTransformer, text: str, codec: Codec, loops: int | None = None) -> TextScore:
    """Returns the log-probability of each token of a text. It is read as a document of its own, after the token that
    ends the one before. One that is longer than the model's max_len is read in windows, in which every token sees at
    least the half of max_len before it."""
    if codec.end is None:
        raise InputError("text: this model has no token that texts begin after; allowed is a language model's run")
    tokens = codec.encode(text)
    if not tokens:
        raise InputError("text: empty; allowed is a text of one token or more")
    words, most = model.config.vocab_size, codec.vocab_size
    if most > words:
        raise InputError(f"vocabulary: the tokenizer has {most} tokens; the model reads {words}")
    row, longest, device = [codec.end, *tokens], model.config.max_len, model.token_embedding.weight.device
    found: list[float] = []
    while len(found) < len(tokens):
        first = max(0, len(found) - longest // 2) if len(tokens) > longest else 0
        inputs = torch.tensor([row[first : min(first + longest, len(tokens))]], device=device)  # [1, T]
        targets = torch.tensor(row[first + 1 : first + 1 + inputs.shape[1]], device=device)  # [T]
        with autocast(device):
            x = model.final_norm(model.iterate(model.embed(inputs), loops))[0]  # [T, D]
            scores = token_log_probabilities(x, model.readout_weight, targets)
        found += scores[len(found) - first :].tolist()
    return TextScore(tokens, [codec.decode([token]) for token in tokens], found, len(text.encode()))
