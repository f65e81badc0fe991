from __future__ import annotations

import doctest
from collections import Counter
from itertools import combinations, pairwise, product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopt.errors import InputError
from loopt.random_bits import Stream
from loopt.tasks import IGNORE, PHop, phop
from loopt.tasks.phop import Sampler


@st.composite
def tasks(draw: st.DrawFn) -> PHop:
    p = draw(st.lists(st.integers(1, 32), min_size=1, max_size=4, unique=True))
    sampler: Sampler = draw(st.sampled_from(["planted", "uniform"]))
    smallest = 2 * max(p) + 1 if sampler == "planted" else max(2, max(p))
    return PHop(
        p=tuple(p),
        n=draw(st.integers(smallest, 256)),
        alphabet=draw(st.integers(2, 26)),
        sampler=sampler,
        supervision=draw(st.sampled_from(["last", "every"])),
    )


seeds = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.slow
@given(task=tasks(), seed=seeds, split=st.sampled_from(["train", "validation", "test"]), first=st.integers(0, 2**61))
@settings(max_examples=300, deadline=None)
def test_sampler_agrees_with_solver(task: PHop, seed: int, split: Any, first: int) -> None:
    batch = task.sample(range(first, first + 4), seed, split)
    assert batch.tokens.shape == batch.targets.shape == batch.answers.shape == (4, task.length)
    for tokens, targets, answers in zip(
        batch.tokens.tolist(), batch.targets.tolist(), batch.answers.tolist(), strict=True
    ):
        labels = task.solve(tokens)
        last_only = [IGNORE] * (task.length - 1) + labels[-1:]
        assert targets == (labels if task.supervision == "every" else last_only)
        assert answers == last_only


@given(task=tasks(), seed=seeds, indices=st.lists(st.integers(0, 30), min_size=1, max_size=12))
@settings(max_examples=50, deadline=None)
def test_an_example_does_not_depend_on_its_batch(task: PHop, seed: int, indices: list[int]) -> None:
    whole = task.sample(range(31), seed, "train")
    some = task.sample(torch.tensor(indices), seed, "train")
    for field in ("tokens", "targets", "answers"):
        assert torch.equal(getattr(some, field), getattr(whole, field)[indices])


def stops_by_hand(letters: list[int], p: int) -> list[int]:
    """Returns the positions, from 1, where the chain from the last letter stops."""
    stops = [len(letters)]
    for _ in range(p):
        i = stops[-1]
        stops.append(max([0, *(j for j in range(2, i + 1) if letters[j - 2] == letters[i - 1])]))
    return stops


@given(task=tasks().filter(lambda task: task.sampler == "planted"), seed=seeds)
@settings(max_examples=100, deadline=None)
def test_planted_chain_makes_exactly_p_hops(task: PHop, seed: int) -> None:
    batch = task.sample(range(4), seed, "train")
    for tokens, answers in zip(batch.tokens.tolist(), batch.answers.tolist(), strict=True):
        p = task.p[tokens.pop(0) - task.alphabet - 1] if task.mixed else task.p[0]
        stops = stops_by_hand(tokens, p)
        assert all(later < earlier for earlier, later in pairwise(stops))
        assert stops[-1] >= 2
        assert answers[-1] == tokens[stops[-1] - 1] < task.alphabet


def test_planted_answer_is_the_end_of_the_chain() -> None:
    task = PHop(p=(16,))
    batch = task.sample(range(2000), 0, "train")
    chain = task._chain(torch.arange(2000), Stream("phop", 0, "train"))
    assert torch.equal(batch.tokens[:, -1], chain[:, 0])
    assert torch.equal(batch.answers[:, -1], chain[:, 16])


def test_planted_examples_are_as_likely_as_they_should_be() -> None:
    """Every chain, every way to place its bigrams and every filler that is allowed there is written out here."""
    p, n, letters = 2, 7, (0, 1, 2)
    chains = [chain for chain in product(letters, repeat=p + 1) if all(a != b for a, b in pairwise(chain))]
    placings = [starts for starts in combinations(range(n - 2), p) if all(b - a >= 2 for a, b in pairwise(starts))]
    likelihood: Counter[tuple[int, ...]] = Counter()
    for chain, starts in product(chains, placings):
        allowed: list[tuple[int, ...]] = []
        for i in range(n - 1):
            hops_done = sum(start > i for start in starts)
            if i in starts:
                allowed.append((chain[hops_done],))
            elif i - 1 in starts:
                allowed.append((chain[hops_done + 1],))
            else:
                allowed.append(tuple(x for x in letters if hops_done == p or x != chain[hops_done]))
        fillings = list(product(*allowed, (chain[0],)))
        for filling in fillings:
            likelihood[filling] += 1 / (len(chains) * len(placings) * len(fillings))  # type: ignore[assignment]

    rows = 60_000
    tokens = PHop(p=(p,), n=n, alphabet=len(letters)).sample(range(rows), 0, "train").tokens
    counts = Counter(map(tuple, tokens.tolist()))
    assert counts.keys() == likelihood.keys()
    chi_square = sum((counts[x] - rows * likelihood[x]) ** 2 / (rows * likelihood[x]) for x in likelihood)
    freedom = len(likelihood) - 1
    assert abs(chi_square - freedom) < 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("sampler", ["planted", "uniform"])
def test_agrees_with_solver_at_the_size_of_the_paper(sampler: Any) -> None:
    task = PHop(p=(32,), sampler=sampler, supervision="every")
    batch = task.sample(range(40), 0, "test")
    assert batch.targets.tolist() == [task.solve(tokens) for tokens in batch.tokens.tolist()]


def test_tightest_planted_instance_has_no_filler() -> None:
    task = PHop(p=(3,), n=7, alphabet=26)
    for tokens in task.sample(range(50), 0, "train").tokens.tolist():
        assert stops_by_hand(tokens, 3) == [7, 6, 4, 2]


def test_mixed_p_is_drawn_evenly_and_told_first() -> None:
    task = PHop(p=(1, 2, 5), n=20)
    assert task.vocabulary == ("a", "b", "c", "d", "⊥", "p=1", "p=2", "p=5")
    assert task.length == 21
    batch = task.sample(range(6000), 0, "train")
    told = torch.bincount(batch.tokens[:, 0], minlength=8)
    assert told[:5].sum() == 0
    assert ((told[5:] - 2000).abs() < 5 * 2000**0.5).all()
    assert (batch.tokens[:, 1:] < 4).all()
    assert (batch.targets[:, 0] == IGNORE).all()


def test_one_p_needs_no_token() -> None:
    assert PHop(p=(3,)).vocabulary == ("a", "b", "c", "d", "⊥")
    assert PHop(p=(3,)).length == 256
    assert PHop(p=3) == PHop(p=(3,)) == PHop(p=[3])  # type: ignore[arg-type]


@pytest.mark.slow
def test_uniform_letters_get_stuck_a_quarter_of_the_time() -> None:
    batch = PHop(p=(16,), sampler="uniform").sample(range(20_000), 0, "train")
    stuck = (batch.tokens[:, -1] == batch.tokens[:, -2]).double().mean().item()
    assert abs(stuck - 0.25) < 5 * (0.25 * 0.75 / 20_000) ** 0.5
    letters = torch.bincount(batch.tokens.flatten(), minlength=4) / batch.tokens.numel()
    assert ((letters - 0.25).abs() < 0.002).all()


def test_splits_share_no_example() -> None:
    for sampler in ("planted", "uniform"):
        task = PHop(p=(4,), n=64, sampler=sampler)
        rows = torch.cat([task.sample(range(10_000), 0, split).tokens for split in ("train", "validation", "test")])
        assert len(rows.unique(dim=0)) == len(rows)


def test_no_examples_at_all() -> None:
    assert PHop(p=(1, 2)).sample(range(0), 0, "train").tokens.shape == (0, 257)


@pytest.mark.parametrize(
    ("letters", "p", "labels"),
    [
        ("abcab", 1, "⊥⊥⊥bc"),
        ("abcabca", 2, "⊥⊥⊥⊥⊥bc"),
        ("aab", 5, "⊥a⊥"),
        ("abacaba", 1, "⊥⊥b⊥cab"),
    ],
)
def test_solver_on_cases_worked_by_hand(letters: str, p: int, labels: str) -> None:
    task = PHop(p=(p,), n=16)
    ids = {symbol: i for i, symbol in enumerate(task.vocabulary)}
    assert task.solve([ids[letter] for letter in letters]) == [ids[label] for label in labels]


def test_docstring_example() -> None:
    assert doctest.testmod(phop).failed == 0


@given(task=tasks(), seed=seeds)
@settings(max_examples=60, deadline=None)
def test_render_fits_a_terminal_and_names_the_answer(task: PHop, seed: int) -> None:
    batch = task.sample(range(1), seed, "train")
    drawn = task.render(batch.tokens[0].tolist())
    answer = task.vocabulary[batch.answers[0, -1]]
    assert drawn.splitlines()[0].endswith(f"answer {answer}")
    assert all(len(line) <= 104 and line == line.rstrip() for line in drawn.splitlines())
    assert ("answer ▲" in drawn) == (answer != "⊥")


def test_render_of_chains_that_stay_or_run_out() -> None:
    task = PHop(p=(3,), n=8)
    assert "stays there for ever" in task.render([0, 1, 1])
    ran_out = task.render([0, 1, 2, 0])
    assert "hop  2: from b at 2, which has not occurred before, to ⊥" in ran_out
    assert "chain   ─────┴─────┘" in ran_out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"p": 40, "n": 64}, "p=40 with n=64 needs n of at least 81 for the planted sampler"),
        ({"p": (1, 40), "n": 64}, "p=40 with n=64 needs n of at least 81 for the planted sampler"),
        ({"p": 40, "n": 32, "sampler": "uniform"}, "p=40 with n=32 needs n of at least 40 for the uniform sampler"),
        ({"p": 0}, "p=0; allowed are integers, 1 to 1000000000"),
        ({"p": (2, -1)}, "p=-1; allowed are integers, 1 to 1000000000"),
        ({"p": "3"}, "p='3'; allowed are integers, 1 to 1000000000"),
        ({"p": ()}, "p=(); allowed are one or more integers"),
        ({"p": (2, 2)}, "p=(2, 2); allowed are different integers"),
        ({"n": 1}, "n=1; allowed are integers, 2 to 1000000000"),
        ({"n": 64.0}, "n=64.0; allowed are integers, 2 to 1000000000"),
        ({"alphabet": 1}, "alphabet=1; allowed are integers, 2 to 26"),
        ({"alphabet": 27}, "alphabet=27; allowed are integers, 2 to 26"),
        ({"sampler": "random"}, "sampler='random'; allowed are planted, uniform"),
        ({"supervision": "all"}, "supervision='all'; allowed are last, every"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        PHop(**settings)
    assert str(error.value).startswith(f"task phop: {message}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("task", "tokens", "message"),
    [
        (PHop(), [], "tokens have no letters"),
        (PHop(), [0, 4], "letter=4; allowed are integers, 0 to 3"),
        (PHop(p=(1, 2)), [0, 1], "tokens start with [0]; allowed, for the p of the rest, are 5 to 6"),
        (PHop(p=(1, 2)), [], "tokens start with []"),
    ],
)
def test_bad_tokens(task: PHop, tokens: list[int], message: str) -> None:
    for reader in (task.solve, task.render):
        with pytest.raises(InputError) as error:
            reader(tokens)
        assert str(error.value).startswith(f"task phop: {message}")
        assert "\n" not in str(error.value)
