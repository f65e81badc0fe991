"""The order is a shuffle per epoch, a function of data, seed and position alone, and looks random."""

from __future__ import annotations

import hashlib
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from loopt.errors import InputError
from loopt.text.order import sequence_at

SEEDS = st.integers(-(2**63), 2**63 - 1)


def epoch(number: int, sequences: int, fingerprint: str = "data", seed: int = 0) -> NDArray[np.int64]:
    return sequence_at(range(number * sequences, (number + 1) * sequences), sequences, fingerprint, seed).numpy()


@given(sequences=st.integers(1, 2000), number=st.integers(0, 2**40), seed=SEEDS, fingerprint=st.text())
@example(sequences=1, number=0, seed=0, fingerprint="")
@settings(max_examples=100, deadline=None)
def test_every_epoch_has_every_sequence_once(sequences: int, number: int, seed: int, fingerprint: str) -> None:
    assert np.array_equal(np.sort(epoch(number, sequences, fingerprint, seed)), np.arange(sequences))


def test_every_small_number_of_sequences() -> None:
    for sequences in range(1, 200):
        assert np.array_equal(np.sort(epoch(3, sequences)), np.arange(sequences))


@given(sequences=st.integers(1, 2**50), first=st.integers(0, 2**60), seed=SEEDS)
@settings(max_examples=50, deadline=None)
def test_more_sequences_than_a_table_could_hold(sequences: int, first: int, seed: int) -> None:
    positions = np.arange(first, first + 500)
    chosen = sequence_at(torch.from_numpy(positions), sequences, "data", seed).numpy()
    assert ((chosen >= 0) & (chosen < sequences)).all()
    for number in np.unique(positions // sequences):
        of_epoch = chosen[positions // sequences == number]
        assert len(np.unique(of_epoch)) == len(of_epoch)


@given(sequences=st.integers(1, 300), positions=st.lists(st.integers(0, 2**40), min_size=1, max_size=30), seed=SEEDS)
@settings(max_examples=50, deadline=None)
def test_a_position_is_looked_up_by_itself(sequences: int, positions: list[int], seed: int) -> None:
    together = sequence_at(positions, sequences, "data", seed)
    alone = [int(sequence_at([position], sequences, "data", seed)) for position in positions]
    assert together.tolist() == alone
    as_tensor = sequence_at(torch.tensor([positions, positions]), sequences, "data", seed)
    assert as_tensor.tolist() == [alone, alone]


def test_equals_the_definition_in_big_integers() -> None:
    """Runs that are resumed with a newer version rely on an order that does not change."""
    word, golden = 2**64, 0x9E3779B97F4A7C15

    def mix(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % word
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % word
        return x ^ (x >> 31)

    def drawn(index: int, high: int, i: int) -> int:
        digest = hashlib.blake2b(repr(("text", -5, "data", f"round {i}")).encode(), digest_size=16).digest()
        row_key, column_key = (int.from_bytes(half, "little") for half in (digest[:8], digest[8:]))
        row, column = mix((index ^ row_key) * golden % word), mix(column_key * golden % word)
        return (mix((row + column) % word) >> 32) * high >> 32

    def at(position: int, n: int, rows: int, columns: int) -> int:
        epoch, place = divmod(position, n)
        while True:
            row, column = divmod(place, columns)
            for i in range(12):
                if i % 2:
                    column = (column + drawn(epoch * rows + row, columns, i)) % columns
                else:
                    row = (row + drawn(epoch * columns + column, rows, i)) % rows
            place = row * columns + column
            if place < n:
                return place

    for n, rows, columns in ((31, 6, 6), (6, 3, 2), (2**40 + 3, 2**20 + 1, 2**20)):
        positions = [0, 1, 2, 30, 31, 1000, 2**41, 2**60]
        expected = [at(position, n, rows, columns) for position in positions]
        assert sequence_at(positions, n, "data", -5).tolist() == expected


def test_epochs_seeds_and_data_have_unrelated_orders() -> None:
    n = 400
    orders = [epoch(e, n, data, seed) for e in (0, 1, 2) for seed in (0, 1, -1) for data in ("data", "date")]
    for i, one in enumerate(orders):
        for other in orders[:i]:
            assert (one == other).sum() < 12  # about one in n agrees by chance
            assert abs(np.corrcoef(one, other)[0, 1]) < 5 / n**0.5


@pytest.mark.parametrize("n", [2, 3, 4])
def test_every_permutation_is_as_likely(n: int) -> None:
    epochs = 24_000
    orders = sequence_at(range(epochs * n), n, "data", 0).reshape(epochs, n).numpy()
    counts = Counter(map(tuple, orders.tolist()))
    assert_uniform(list(counts.values()), kinds=math.factorial(n))


@pytest.mark.parametrize("n", [1000, 4093, 65_536])
def test_looks_random(n: int) -> None:
    cells = 10
    first, second = epoch(0, n), epoch(1, n)
    part, next_part, digit = first * cells // n, second * cells // n, first % cells
    for name, left, right in (
        ("position and sequence", np.arange(n) * cells // n, part),
        ("neighbors", part[:-1], part[1:]),
        ("every second", part[:-2], part[2:]),
        ("epochs", part, next_part),
        ("last digits", np.arange(n) % cells, digit),
        ("last digits of neighbors", digit[:-1], digit[1:]),
    ):
        assert_uniform(np.bincount(left * cells + right, minlength=cells * cells).tolist(), cells * cells, name)
    assert abs((np.diff(first) > 0).mean() - 0.5) < 5 * (1 / 12 / n) ** 0.5  # ascents of a random permutation


def test_few_sequences_stay_where_they_were() -> None:
    """A random permutation has one fixed point on average, with variance one."""
    n, epochs = 100, 4000
    orders = sequence_at(range(epochs * n), n, "data", 0).reshape(epochs, n).numpy()
    fixed = (orders == np.arange(n)).sum(1)
    assert abs(fixed.mean() - 1) < 5 / epochs**0.5
    assert abs(fixed.var() - 1) < 0.2


@pytest.mark.parametrize(("position", "sequences"), [(0, 0), (0, -3), (-1, 5)])
def test_refused(position: int, sequences: int) -> None:
    with pytest.raises(InputError, match="allowed is"):
        sequence_at([position], sequences, "data", 0)


def assert_uniform(counts: list[int], kinds: int, name: str = "") -> None:
    """Checks that chi-square is within five standard deviations of what is expected."""
    expected = sum(counts) / kinds
    chi_square = sum((count - expected) ** 2 / expected for count in counts) + (kinds - len(counts)) * expected
    assert chi_square < kinds - 1 + 5 * (2 * (kinds - 1)) ** 0.5, name
