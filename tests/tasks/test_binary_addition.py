"""Binary addition by chain of thought is addition of integers, bit by bit."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopt.errors import InputError
from loopt.tasks import IGNORE, BinaryAddition


@st.composite
def two_numbers(draw: st.DrawFn) -> tuple[int, int, int]:
    bits = draw(st.integers(1, 64))
    return bits, draw(st.integers(0, 2**bits - 1)), draw(st.integers(0, 2**bits - 1))


@settings(deadline=None)
@given(two_numbers())
def test_the_labels_are_the_bits_of_the_sum_and_its_carries(drawn: tuple[int, int, int]) -> None:
    bits, a, b = drawn
    for form, places in (("chain", ""), ("dummies", " #" * bits)):
        task = BinaryAddition(bits=bits, form=form)  # type: ignore[arg-type]
        chain = [] if form == "dummies" else [4] * (bits - 1)  # it never reads the answer
        tokens = task.encode(f"{a:0{bits}b}+{b:0{bits}b}={places}") + chain
        labels = task.solve(tokens)
        assert len(labels) == task.length
        assert [label for label in labels if label == IGNORE] == [IGNORE] * (task.length - bits)
        said = [task.vocabulary[label] for label in labels[-bits:]]
        assert sum(int(word[0]) << j for j, word in enumerate(said)) + (int(said[-1][-1]) << bits) == a + b
        for j, word in enumerate(said, start=1):
            assert int(word[-1]) == (a % 2**j + b % 2**j) >> j


@pytest.mark.parametrize("form", ["chain", "dummies"])
@pytest.mark.parametrize("bits", [1, 2, 7, 64])
def test_the_sampler_agrees_with_the_solver(bits: int, form: str) -> None:
    task = BinaryAddition(bits=bits, form=form)  # type: ignore[arg-type]
    batch = task.sample(range(40), 0, "train")
    assert torch.equal(batch.targets, batch.answers)
    assert [task.solve(tokens) for tokens in batch.tokens.tolist()] == batch.targets.tolist()
    assert batch.tokens.shape == (40, task.length)
    if form == "chain":
        first = 2 * bits + 2
        assert torch.equal(batch.tokens[:, first:], batch.answers[:, first - 1 : -1])  # each token is answered before


@pytest.mark.parametrize(
    ("form", "typed", "wrong"),
    [
        ("chain", "110+01=", "allowed are two numbers of 3 bits, as in 111+000=, and then tokens of the sum"),
        ("chain", "110-011=", "'-011=' in the input"),
        ("chain", "110+011", "allowed are two numbers"),
        ("chain", "", "allowed are two numbers"),
        ("chain", "110+011=1", "and then tokens of the sum"),
        ("chain", "110+011=1c0 1c0 1c0 1c0", "12 tokens; allowed are up to 10"),
        ("dummies", "110+011=1c0", "and then a # for each token of the sum"),
        ("dummies", "110+011=####", "12 tokens; allowed are up to 11"),
    ],
)
def test_what_is_no_addition_is_refused(form: str, typed: str, wrong: str) -> None:
    task = BinaryAddition(bits=3, form=form)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=re.escape(wrong)):
        task.solve(task.encode(typed))
    with pytest.raises(InputError, match="token=9; allowed are integers, 0 to"):
        task.solve([9])
