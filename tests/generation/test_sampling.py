"""Choosing tokens: filters by their definitions, shares as the probabilities say, and keys that decide alone."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from loopt.generation.sampling import BROKEN, Sampler, Sampling, filtered
from loopt.random_bits import RowStream

CPU = torch.device("cpu")
scores_of = st.lists(st.floats(-8, 8), min_size=1, max_size=12, unique=True)


def sampler(sampling: Sampling, keys: list[int], words: int, prompts: list[list[int]] | None = None) -> Sampler:
    one = Sampler(sampling, len(keys), words, words, CPU)
    one.begin(keys, prompts or [[0]] * len(keys))
    return one


def kept(scores: list[float], sampling: Sampling) -> set[int]:
    found = filtered(torch.tensor([scores], dtype=torch.float64), sampling)[0]
    for score, one in zip(scores, found.tolist(), strict=True):
        assert one in (score, -math.inf)
    return {i for i, score in enumerate(found.tolist()) if score > -math.inf}


@given(scores_of, st.integers(1, 14))
def test_top_k_keeps_the_k_likeliest(scores: list[float], k: int) -> None:
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    assert kept(scores, Sampling(top_k=k)) == set(order[:k])


@given(scores_of, st.floats(0.01, 1.0))
def test_top_p_keeps_the_fewest_that_add_up_to_p(scores: list[float], p: float) -> None:
    shares = torch.tensor(scores, dtype=torch.float64).softmax(0).tolist()
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    wanted, total = set[int](), 0.0
    for i in order:
        if total >= p:
            break
        if math.isclose(total, p, rel_tol=1e-9):
            return  # rounding decides
        wanted.add(i)
        total += shares[i]
    assert kept(scores, Sampling(top_p=p)) == wanted


@given(scores_of, st.floats(0.0, 1.0))
def test_min_p_keeps_what_is_nearly_as_likely_as_the_likeliest(scores: list[float], p: float) -> None:
    ratios = [math.exp(score - max(scores)) for score in scores]
    if any(math.isclose(ratio, p, rel_tol=1e-6) for ratio in ratios):
        return
    assert kept(scores, Sampling(min_p=p)) == {i for i, ratio in enumerate(ratios) if ratio >= p}


@given(scores_of, st.integers(1, 5), st.floats(0.1, 1.0), st.floats(0.0, 0.9))
def test_the_likeliest_token_is_always_kept(scores: list[float], k: int, p: float, least: float) -> None:
    assert scores.index(max(scores)) in kept(scores, Sampling(top_k=k, top_p=p, min_p=least))


def test_tokens_come_as_often_as_their_probabilities_say() -> None:
    rows, logits = 40_000, torch.tensor([0.0, 1.0, 2.0, -1.0, -20.0])
    for temperature in (0.7, 1.0, 2.0):
        one = sampler(Sampling(temperature=temperature), list(range(rows)), 5)
        tokens, log_probabilities = one.choose(logits.expand(rows, 5))
        shares = (logits / temperature).softmax(0)
        counts = Counter(tokens.tolist())
        for token, share in enumerate(shares.tolist()):
            deviation = math.sqrt(rows * share * (1 - share))
            assert abs(counts[token] - rows * share) < 4 * deviation + 1
        torch.testing.assert_close(log_probabilities, logits.log_softmax(0)[tokens])  # of the model as it is


def test_a_token_that_cannot_be_is_never_drawn() -> None:
    logits = torch.tensor([-math.inf, 0.0, -math.inf, 0.0, -math.inf]).expand(5000, 5)
    tokens, _ = sampler(Sampling(temperature=1.0), list(range(5000)), 5).choose(logits)
    assert set(tokens.tolist()) == {1, 3}


def test_greedy_takes_the_likeliest_and_draws_nothing() -> None:
    logits = torch.randn(7, 9)
    tokens, _ = sampler(Sampling(), [1] * 7, 9).choose(logits)
    assert torch.equal(tokens, logits.argmax(1))


@settings(max_examples=25)
@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 3))
def test_a_rows_draws_depend_on_its_key_and_count_alone(key: int, place: int) -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(0))
    alone = sampler(Sampling(temperature=1.0), [key], 50)
    others = [3, 5, 7, 9]
    others[place] = key
    together = sampler(Sampling(temperature=1.0), others, 50)
    for _ in range(5):
        (mine, _), (ours, _) = alone.choose(logits[None]), together.choose(logits.expand(4, 50))
        assert mine[0] == ours[place]


def test_numbers_of_rows_are_even_and_unrelated() -> None:
    keys = torch.arange(200)
    drawn = torch.stack([RowStream(keys).uniform(torch.full((200,), count), "token") for count in range(200)])
    assert bool((drawn >= 0).all()) and bool((drawn < 1).all())  # noqa: PT018
    counts = torch.histc(drawn, 16, 0, 1)
    assert float((counts - 2500).abs().max()) < 5 * math.sqrt(2500)
    together = torch.corrcoef(drawn)  # between counts
    assert float((together - torch.eye(200)).abs().max()) < 0.4


def test_repetition_is_penalized_by_the_definition() -> None:
    logits = torch.tensor([[2.0, 1.9, -1.0, 0.5]])
    prompts = [[0, 2]]
    one = sampler(Sampling(repetition_penalty=1.25), [0], 4, prompts)
    scores = one._penalized(logits)
    torch.testing.assert_close(scores, torch.tensor([[2.0 / 1.25, 1.9, -1.25, 0.5]]))
    said = [int(one.choose(logits)[0]) for _ in range(3)]
    assert said == [1, 0, 0]  # token 1 until it has been said, then 2.0 / 1.25 is more than 1.9 / 1.25


def test_rows_whose_logits_are_not_numbers_are_marked() -> None:
    logits: Tensor = torch.zeros(3, 4)
    logits[1, 2] = math.nan
    for sampling in (Sampling(), Sampling(temperature=1.0)):
        tokens, _ = sampler(sampling, [1, 2, 3], 4).choose(logits)
        assert tokens[1] == BROKEN
        assert tokens[0] >= 0
        assert tokens[2] >= 0


@pytest.mark.parametrize("words", [1, 2, 50_304])
def test_any_vocabulary_can_be_drawn_from(words: int) -> None:
    tokens, _ = sampler(Sampling(temperature=1.0), [5] * 16, words).choose(torch.randn(16, words))
    assert bool((tokens < words).all())
