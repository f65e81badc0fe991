"""Perplexity is e to the cross-entropy by hand, whatever the batch size and the number of ranks, and what a run reports
is that of its best checkpoint."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from loopt import LoopedTransformer
from loopt.runs import Run
from loopt.scoring.perplexity import mean_loss, perplexity, text_fit, text_loss
from loopt.source import Split
from loopt.text.token_data import TokenData
from loopt.training import train
from loopt.training.text_learner import LanguageLoss
from tiny_runs import CPU, metrics, result
from tiny_text_runs import text_directory, tiny_text

LENGTH = 12
HELD_OUT: dict[Split, int] = {"validation": 69, "test": 56}
WILD = replace(tiny_text().optim, lr=1.0, warmup_steps=16)
"""A rate that rises until nothing is learned any more."""


@functools.cache
def data() -> TokenData:
    return TokenData.open(text_directory())


@functools.cache
def model() -> LoopedTransformer:
    torch.manual_seed(1)
    return LoopedTransformer(replace(tiny_text(plan="1x1+1x2").model, vocab_size=300))


@torch.no_grad()
def losses(model: LoopedTransformer, split: Split = "validation", loops: int | None = None) -> list[float]:
    """Of each held-out sequence, per token, by hand."""
    tokens = [token for chunk in data().chunks(split) for token in chunk.tolist()]
    rows = [tokens[first : first + LENGTH + 1] for first in range(0, len(tokens) - LENGTH, LENGTH)]
    assert len(rows) == HELD_OUT[split]
    exact = LoopedTransformer(model.config).double()
    exact.load_state_dict(model.state_dict())
    return [
        F.cross_entropy(exact(torch.tensor([row[:-1]]), loops=loops)[0], torch.tensor(row[1:])).item() for row in rows
    ]


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


@settings(max_examples=25, deadline=None)
@given(sequences=st.integers(1, 100), batch_size=st.integers(1, 70), ranks=st.integers(1, 5))
def test_the_shares_of_all_ranks_are_the_cross_entropy_by_hand(sequences: int, batch_size: int, ranks: int) -> None:
    calls = [0] * ranks
    shares = []
    for rank in range(ranks):

        def counted(tokens: Tensor, weights: Tensor, rank: int = rank) -> Tensor:
            calls[rank] += 1
            return LanguageLoss(model(), compiled=False)(tokens, weights)

        device = torch.device("cpu")
        shares.append(mean_loss(counted, data(), "validation", LENGTH, sequences, batch_size, device, rank, ranks))
    assert torch.stack(shares).sum().item() == pytest.approx(mean(_losses()[:sequences]), rel=1e-6)
    assert len(set(calls)) == 1  # a rank that runs ahead would wait for the others for ever


@functools.cache
def _losses() -> list[float]:
    return losses(model())


def test_measuring_needs_no_gradient() -> None:
    loss = LanguageLoss(model(), compiled=False)
    assert not mean_loss(loss, data(), "validation", LENGTH, 9, 4, torch.device("cpu")).requires_grad
    assert all(weight.grad is None for weight in model().parameters())


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("loops", [None, 1, 3])
def test_the_loss_of_a_model_with_any_number_of_loops(split: Split, loops: int | None) -> None:
    expected = mean(losses(model(), split, loops)[:30])
    assert text_loss(model(), data(), split, 30, loops) == pytest.approx(expected, rel=1e-6)


def test_token_accuracy_is_the_share_of_first_choices() -> None:
    right = []
    for row in data().read("test", range(30), LENGTH):
        said = model()(row[None, :-1], loops=2)[0].argmax(-1)
        right += (said == row[1:]).tolist()
    found = text_fit(model(), data(), "test", 30, loops=2)
    assert found.accuracy == pytest.approx(sum(right) / len(right))
    assert 0 < sum(right) < len(right)
    assert found.loss == text_loss(model(), data(), "test", 30, loops=2)


@pytest.mark.parametrize("sequences", [1, 30])
def test_the_loss_of_every_sequence_comes_with_the_mean(sequences: int) -> None:
    found = text_fit(model(), data(), "test", sequences)
    assert found.by_sequence == pytest.approx(losses(model(), "test")[:sequences], rel=1e-6)


@pytest.mark.parametrize("loss", [0.0, 1.5, 5.7, 1000.0])
def test_perplexity_is_a_number_even_of_a_model_that_is_lost(loss: float) -> None:
    assert perplexity(loss) == math.exp(loss) if loss < 100 else math.isfinite(perplexity(loss))


def test_a_run_reports_the_perplexity_of_its_best_checkpoint(tmp_path: Path) -> None:
    config = replace(tiny_text(steps=16, test_examples=1000, eval_examples=1000), optim=WILD)
    train(config, tmp_path, CPU)
    run = Run.load(tmp_path)
    validation = {entry["step"]: entry for entry in metrics(tmp_path) if "loss" not in entry}
    assert list(validation) == [4, 8, 12, 16]
    lowest = min(validation, key=lambda step: validation[step]["validation_loss"])
    assert lowest < 16  # so that the last is not the best
    assert run.find("best").step == result(tmp_path)["best_step"] == lowest

    found, best = result(tmp_path), run.load_model("best")
    by_hand, on_test = mean(losses(best)), mean(losses(best, "test"))
    assert abs(by_hand - on_test) > 1e-3  # what chose the checkpoint does not score it
    assert found["loss"] == pytest.approx(on_test, rel=1e-6)
    assert found["perplexity"] == pytest.approx(math.exp(on_test), rel=1e-5)
    assert (found["test_sequences"], found["test_tokens"]) == (HELD_OUT["test"], HELD_OUT["test"] * LENGTH)
    assert found["train_tokens"] == 16 * 4 * LENGTH
    assert found["data"] == data().fingerprint
    assert validation[lowest]["validation_loss"] == pytest.approx(by_hand, rel=1e-6)
    assert validation[lowest]["validation_perplexity"] == pytest.approx(math.exp(by_hand), rel=1e-5)
    assert mean(losses(run.load_model("last"))) > by_hand
