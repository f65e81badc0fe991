from __future__ import annotations

import hashlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from loopt.random_bits import Stream

WORD = 2**64


def test_equals_splitmix_in_big_integers() -> None:
    def mix(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % WORD
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % WORD
        return x ^ (x >> 31)

    indices = [0, 1, 2, 12345, 2**31, 2**62]
    digest = hashlib.blake2b(b"('phop', -3, 'test', 'letters')", digest_size=16).digest()
    row_key, column_key = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
    golden = 0x9E3779B97F4A7C15
    expected = [
        [mix((mix((i ^ row_key) * golden % WORD) + mix((d ^ column_key) * golden % WORD)) % WORD) for d in range(5)]
        for i in indices
    ]
    bits = Stream("phop", -3, "test").bits(torch.tensor(indices), 5, "letters")
    assert [[x % WORD for x in row] for row in bits.tolist()] == expected


@given(
    seed=st.integers(-(2**63), 2**63 - 1),
    indices=st.lists(st.integers(0, 2**62), min_size=1, max_size=20),
    draws=st.integers(1, 40),
    high=st.integers(1, 2**31 - 1),
)
@settings(max_examples=50, deadline=None)
def test_a_draw_depends_on_its_own_index_and_column_only(seed: int, indices: list[int], draws: int, high: int) -> None:
    stream = Stream("phop", seed, "train")
    together = stream.integers(torch.tensor(indices), draws, high, "letters")
    assert together.shape == (len(indices), draws)
    assert ((together >= 0) & (together < high)).all()
    for row, index in zip(together, indices, strict=True):
        alone = stream.integers(torch.tensor([index]), draws + 3, high, "letters")
        assert row.tolist() == alone[0, :draws].tolist()


@pytest.mark.parametrize("high", [2, 3, 4, 7, 26])
def test_integers_are_uniform(high: int) -> None:
    draws = Stream("phop", 0, "train").integers(torch.arange(4000), 64, high, "letters")
    assert_uniform(draws, high)
    assert_uniform(draws[:, 0], high)
    assert_uniform(draws[0:1].expand(1, -1), high)


def test_every_bit_is_fair() -> None:
    bits = Stream("phop", 0, "train").bits(torch.arange(4000), 16, "letters")
    for place in range(64):
        ones = ((bits >> place) & 1).double().mean().item()
        assert abs(ones - 0.5) < 5 * 0.5 / bits.numel() ** 0.5


def pairs_that_must_be_unrelated() -> dict[str, tuple[Tensor, Tensor]]:
    indices = torch.arange(2000)

    def draws(seed: int = 7, split: str = "train", purpose: str = "letters", name: str = "phop") -> Tensor:
        return Stream(name, seed, split).bits(indices, 50, purpose)

    here = draws()
    return {
        "neighboring indices": (here[:-1], here[1:]),
        "neighboring draws": (here[:, :-1], here[:, 1:]),
        "index and draw exchanged": (here[:50], here[:50].T),
        "neighboring seeds": (here, draws(seed=8)),
        "seed and minus seed": (here, draws(seed=-7)),
        "seeds far apart": (here, draws(seed=2**63 - 1)),
        "train and validation": (here, draws(split="validation")),
        "train and test": (here, draws(split="test")),
        "purposes": (here, draws(purpose="places")),
        "names": (here, draws(name="addition")),
    }


@pytest.mark.parametrize("pair", pairs_that_must_be_unrelated())
def test_no_correlation_between(pair: str) -> None:
    left, right = pairs_that_must_be_unrelated()[pair]
    # A square table of joint counts sees any dependence of the leading bits, not only a linear one.
    assert_uniform(((left >> 60) & 15) * 16 + ((right >> 60) & 15), 256)
    assert_uniform(((left >> 32) & 15) * 16 + ((right >> 32) & 15), 256)
    correlation = torch.corrcoef(torch.stack([left.flatten().double(), right.flatten().double()]))[0, 1].item()
    assert abs(correlation) < 5 / left.numel() ** 0.5


def test_no_two_rows_collide() -> None:
    streams = [Stream("phop", seed, split) for seed in (0, 1, -1) for split in ("train", "validation", "test")]
    near, far = torch.arange(5000), 2**62 - torch.arange(5000)
    rows = torch.cat([stream.bits(torch.cat([near, far]), 3, "letters") for stream in streams])
    assert len(rows.unique(dim=0)) == len(rows)


def test_sort_keys_order_at_random_and_never_tie() -> None:
    keys = Stream("phop", 0, "train").sort_keys(torch.arange(24_000), 4, "places")
    assert (keys >= 0).all()
    ordered = keys.sort(dim=1).values
    assert (ordered[:, 1:] > ordered[:, :-1]).all()
    permutation = (keys.argsort(dim=1) * torch.tensor([64, 16, 4, 1])).sum(1)
    found, which = permutation.unique(return_inverse=True)
    assert len(found) == 24
    assert_uniform(which, 24)


def assert_uniform(values: Tensor, kinds: int) -> None:
    """Checks that chi-square is within five standard deviations of what is expected."""
    counts = torch.bincount(values.flatten(), minlength=kinds).double()
    expected = values.numel() / kinds
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    freedom = kinds - 1
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5 + 10
