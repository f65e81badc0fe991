"""The formulas of sizes are those of what is built."""

from __future__ import annotations

import pytest

from loopt.tasks.groups import group
from loopt.theory import growth, sizes
from loopt.theory.chain_of_thought import build_looped
from loopt.theory.examples import random_transformer
from loopt.theory.formal import FormalTransformer
from loopt.theory.group_composition import build_group_composition, precision_of
from loopt.theory.phop import build_phop
from loopt.theory.phop_counting import build_counting
from loopt.theory.simulation import Bounds, simulate


def built_like(one: sizes.Sizes, formal: FormalTransformer, loops: int) -> bool:
    return (one.loops, one.heads, one.d, one.d_ff) == (loops, formal.n_heads, formal.d, formal.d_ff)


@pytest.mark.parametrize("name", ["Z2", "S3", "A5", "Z9"])
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_composition(name: str, n: int) -> None:
    G, formula = group(name), sizes.composition(group(name).order, n)
    built = build_group_composition(G, n)
    assert built_like(formula, built, built.plan.depth)
    assert formula.bits == precision_of(G)


@pytest.mark.parametrize(("p", "n", "alphabet"), [(1, 4, 2), (2, 9, 4), (5, 12, 9), (16, 40, 4)])
def test_phop(p: int, n: int, alphabet: int) -> None:
    over_the_reals, counting = build_phop(p, n, alphabet), sizes.phop_by_counting(p, n, alphabet)
    assert built_like(sizes.phop(p, alphabet), over_the_reals, over_the_reals.plan.depth)
    assert counting.bits is not None
    built = build_counting(p, n, counting.bits, alphabet)
    assert built_like(counting, built, built.plan.depth)


def test_simulation_and_chain_of_thought() -> None:
    theta = random_transformer((0, 1, 2, 1), seed=0)
    looped, formula = simulate(theta, Bounds(1, 1, 1)), sizes.simulation(6, 2, 7, L=4, R=3)
    assert (formula.loops, formula.heads, formula.d) == (looped.plan.depth, looped.n_heads, looped.d)
    assert looped.d_ff <= formula.d_ff
    assert built_like(sizes.chain_of_thought(6, 2, 7, V=5, n=4, m=5), build_looped(theta, 4, 5), 5)


def test_what_was_built_lies_on_the_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits too: the certificate takes those of the formula, and no fewer."""
    monkeypatch.setattr(growth, "CERTIFIED", (4, 8, 16))
    monkeypatch.setattr(growth, "GROUPS", ("Z2", "S3", "Z9", "S4"))
    for panel in growth.panels():
        for curve in panel.curves:
            assert set(curve.built) <= set(curve.formula), (panel.size, curve.name)
            assert len(curve.built) >= 3
