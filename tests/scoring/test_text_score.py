"""Bits per byte and log-probabilities of a text are those of the model, also where it is longer than it reads."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopt import InputError, LoopedTransformer, LoopPlan, ModelConfig
from loopt.scoring import score_text
from loopt.source import Codec
from loopt.tasks import get
from loopt.text.tokenizer import END_OF_DOCUMENT, TokenizerCodec, train_tokenizer


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> Codec:
    path: Path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(train_tokenizer(["the cat sees a dog, and the dog hears it"] * 9, 290).text, encoding="utf-8")
    return TokenizerCodec(path, END_OF_DOCUMENT)


def build(max_len: int, vocab_size: int = 290) -> LoopedTransformer:
    torch.manual_seed(0)
    return LoopedTransformer(ModelConfig(LoopPlan.parse("1x3"), 16, 2, 24, vocab_size, max_len)).double()


@settings(max_examples=30, deadline=None)
@given(st.text("thecasdog, é", min_size=1, max_size=40), st.integers(1, 20), st.sampled_from([None, 1, 5]))
def test_every_token_is_scored_once_with_what_the_model_sees(
    codec: Codec, text: str, max_len: int, loops: int | None
) -> None:
    """In a window of max_len, which begins so that at least half of it lies before a token."""
    model = build(max_len)
    score = score_text(model, text, codec, loops)
    row = [codec.end, *codec.encode(text)]
    assert score.tokens == row[1:]
    first = 0
    for place, token in enumerate(score.tokens):
        if place - first >= max_len:  # the window is full: the next one keeps half of it
            first = place - max_len // 2
        with torch.no_grad():
            said = model(torch.tensor([row[first : place + 1]]), loops)[0, -1].log_softmax(0)
        assert score.log_probabilities[place] == pytest.approx(said[token].item(), abs=1e-9)
    nats = -sum(score.log_probabilities)
    assert score.bytes == len(text.encode())
    assert score.bits_per_byte == pytest.approx(nats / math.log(2) / len(text.encode()))
    assert score.perplexity == pytest.approx(math.exp(nats / len(score.tokens)))


def test_a_model_that_knows_nothing_takes_the_bits_of_its_vocabulary(codec: Codec) -> None:
    model = build(32)
    with torch.no_grad():
        model.readout_projection.weight.zero_()
    score = score_text(model, "the cat", codec)
    assert score.bits_per_byte == pytest.approx(len(score.tokens) * math.log2(290) / 7)
    assert score.perplexity == pytest.approx(290)


def test_what_cannot_be_scored_is_refused(codec: Codec) -> None:
    with pytest.raises(InputError, match=r"^text: empty"):
        score_text(build(8), "", codec)
    with pytest.raises(
        InputError, match=rf"^vocabulary: the tokenizer has {codec.vocab_size} tokens; the model reads 100"
    ):
        score_text(build(8, vocab_size=100), "the", codec)
    with pytest.raises(InputError, match=r"^text: this model has no token that texts begin after"):
        score_text(build(8), "abc", get("phop").codec(Path("unused")))
