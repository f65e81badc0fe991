"""Saved weights, read by an evaluator written from the paper's definitions alone, are right on adversarial inputs."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from loopt.tasks.groups import group
from loopt.theory.chain_of_thought import Constants, build_looped
from loopt.theory.examples import random_transformer, rounded
from loopt.theory.group_composition import build_group_composition, build_in_precision
from loopt.theory.phop import build_looped as build_looped_phop
from loopt.theory.phop_counting import build_looped_counting, precision_of
from loopt.theory.precision import forward
from loopt.theory.saved import save
from loopt.theory.simulation import Bounds, simulate
from paper_evaluator import Integers, SavedTransformer, order_of_layers

pytestmark = pytest.mark.slow


def hop(letters: list[int], p: int) -> list[int | None]:
    """p-hop by its definition: find_1(v, i) is the largest j ≤ i with v_{j-1} = v_i; None is ⊥. Positions from 1."""
    answers: list[int | None] = []
    for i in range(1, len(letters) + 1):
        at: int | None = i
        for _ in range(p):
            if at is not None:
                matches = [j for j in range(2, at + 1) if letters[j - 2] == letters[at - 1]]
                at = matches[-1] if matches else None
        answers.append(None if at is None else letters[at - 1])
    return answers


def adversarial(n: int, alphabet: int) -> list[list[int]]:
    """All letters equal; all but the last; two letters in turn; each letter once, then again; a few random ones."""
    draw = random.Random(0)
    return [
        [0] * n,
        [0] * (n - 1) + [1],
        [1] + [0] * (n - 1),
        [i % 2 for i in range(n)],
        [i % alphabet for i in range(n)],
        *([draw.randrange(alphabet) for _ in range(n)] for _ in range(4)),
    ]


@pytest.mark.parametrize(("p", "n", "alphabet"), [(1, 9, 4), (3, 10, 3), (8, 12, 2)])
def test_phop_looped_over_the_reals_and_in_integers(tmp_path: Path, p: int, n: int, alphabet: int) -> None:
    s = precision_of(p, n)
    save(build_looped_phop(p, n, alphabet).model(), tmp_path / "reals")
    save(build_looped_counting(p, n, s, alphabet).model(), tmp_path / "integers")
    reals, integers = SavedTransformer(tmp_path / "reals"), SavedTransformer(tmp_path / "integers", s)
    for letters in adversarial(n, alphabet):
        wanted = [alphabet if answer is None else answer for answer in hop(letters, p)]
        assert reals.answers([alphabet + 1, *letters])[1:] == wanted
        if letters in adversarial(n, alphabet)[1::3]:  # slow
            assert integers.answers([alphabet + 1, *letters])[1:] == wanted


def test_group_composition_over_the_reals_and_in_integers(tmp_path: Path) -> None:
    z, n = group("Z5"), 9
    save(build_group_composition(z, n).model(), tmp_path / "reals")
    save(build_in_precision(z, n, 2).model(), tmp_path / "integers")
    reals, integers = SavedTransformer(tmp_path / "reals"), SavedTransformer(tmp_path / "integers", 2)
    for word in adversarial(n, 5):
        total = z.index(z.elements[sum(word) % 5])
        assert reals.answers([5, *word])[-1] == total
        if word in adversarial(n, 5)[::4]:  # slow
            assert integers.answers([5, *word])[-1] == total


def test_simulation_and_chain_of_thought_in_integers(tmp_path: Path) -> None:
    s, n, m, V = 8, 3, 3, 3
    theta = rounded(random_transformer((0, 1, 0), 2, d=4, d_ff=5, vocabulary=V, n_max=n + m), s)
    save(theta.model(), tmp_path / "theta")
    save(simulate(theta, Bounds.largest(s)).model(), tmp_path / "simulated")
    save(build_looped(theta, n, m, Constants.of(s)).model(), tmp_path / "looped")
    original, simulated, looped = (SavedTransformer(tmp_path / name, s) for name in ("theta", "simulated", "looped"))
    for prompt in ([0, 0, 0], [2, 1, 0], [1, 1, 2]):
        tokens = list(prompt)
        for _ in range(m):
            logits = original.logits(tokens)
            assert np.array_equal(simulated.logits([V, *tokens])[1:, :V], logits)
            assert sorted(logits[-1])[-1] > sorted(logits[-1])[-2]
            tokens.append(int(logits[-1].argmax()))
        assert looped.answers([*prompt, *[V] * m]) == tokens


def test_integers_agree_with_the_runs_in_precision(tmp_path: Path) -> None:
    """Two implementations of F_s, on weights that use all of it."""
    for s in (3, 19):
        theta = rounded(random_transformer((0, 1), 5, d=4, d_ff=5, vocabulary=4, n_max=5), s)
        save(theta.model(), tmp_path / str(s))
        ids = [3, 0, 1, 1, 2]
        found = SavedTransformer(tmp_path / str(s), s).logits(ids)
        assert (torch.tensor(found.astype(float)) * 2.0**-s).equal(forward(theta, torch.tensor([ids]), s)[0])


def test_the_evaluators_own_parts() -> None:
    assert order_of_layers("1x3") == [0, 0, 0]
    assert order_of_layers("2x2") == [0, 1, 0, 1]
    assert order_of_layers("1x(1,1,2)") == [0, 1, 2, 2]
    F = Integers(2)
    assert [F.divided(k, 4) for k in (2, 3, -2, -3, 1000)] == [0, 1, 0, -1, 15]
    assert list(F.softmax(np.array([0, 0], dtype=object))) == [2, 2]
    assert all(a <= b for a, b in pairwise(F.softmax(np.array([-15, 0, 4], dtype=object))))
