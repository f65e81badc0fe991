"""What is read out in chunks is what the full logits say, whatever the size of a chunk."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopt import LoopedTransformer, ModelConfig
from loopt.plan import LoopPlan
from loopt.scoring import read_out, token_log_probabilities
from loopt.scoring.precision import STATE_ELEMENTS, scoring_batch

CONFIG = ModelConfig(LoopPlan.parse("1x2"), d_model=8, n_heads=2, d_ff=16, vocab_size=13, max_len=7)


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 20), words=st.integers(1, 30), chunk_bytes=st.integers(1, 5000), seed=st.integers(0, 99))
def test_log_probabilities_are_those_of_the_full_logits(rows: int, words: int, chunk_bytes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, readout = (torch.randn(n, 5, generator=generator, dtype=torch.float64) for n in (rows, words))
    targets = torch.randint(words, (rows,), generator=generator)
    found = token_log_probabilities(x, readout, targets, chunk_bytes=chunk_bytes)
    wanted = (x @ readout.T).log_softmax(-1)[torch.arange(rows), targets]
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("chunk_bytes", [1, 300, 2**28])
@pytest.mark.parametrize("top", [1, 4, 99])
def test_a_reading_is_what_the_full_logits_say(top: int, chunk_bytes: int) -> None:
    torch.manual_seed(0)
    model = LoopedTransformer(CONFIG).double()
    ids, targets = torch.randint(13, (2, 3, 7)).unbind()
    state = model.iterate(model.embed(ids))
    said = read_out(model, state, top, targets, chunk_bytes)
    probabilities = model(ids).softmax(-1)  # [B, T, V]
    best = probabilities.topk(min(top, 13))
    assert torch.equal(said.tokens, best.indices)
    torch.testing.assert_close(said.probabilities, best.values)
    torch.testing.assert_close(said.entropy, -(probabilities * probabilities.log()).sum(-1))
    assert said.target_log_probability is not None
    wanted = probabilities.gather(-1, targets[..., None])[..., 0].log()
    torch.testing.assert_close(said.target_log_probability, wanted)
    assert read_out(model, state, top).target_log_probability is None
    assert not said.entropy.requires_grad


def test_the_entropy_of_a_sure_answer_is_zero() -> None:
    model = LoopedTransformer(CONFIG)
    with torch.no_grad():
        model.final_norm.weight.fill_(1e4)  # type: ignore[operator]
    said = read_out(model, model.embed(torch.tensor([[3, 1]])))
    assert said.entropy.tolist() == [[0.0, 0.0]]


@given(length=st.integers(1, 10**6), width=st.integers(1, 10**5))
def test_a_scored_batch_has_a_bounded_size(length: int, width: int) -> None:
    config = ModelConfig(LoopPlan.parse("1x1"), d_model=2 * width, n_heads=1, d_ff=1)
    batch = scoring_batch(config, length, torch.device("cpu"))
    assert batch >= 1
    assert batch == 1 or batch * length * config.d_model <= STATE_ELEMENTS["cpu"]
    assert (batch + 1) * length * config.d_model > STATE_ELEMENTS["cpu"]
    assert math.isfinite(batch)
