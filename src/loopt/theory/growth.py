"""How the sizes of the constructions grow with n, p and |G|: curves by their formulas, points from what was built."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count

from loopt.tasks.groups import group
from loopt.theory import sizes
from loopt.theory.formal import FormalTransformer
from loopt.theory.group_composition import build_group_composition, build_in_precision
from loopt.theory.group_composition_proof import certify
from loopt.theory.phop import build_phop
from loopt.theory.phop_certificate import certify_counting
from loopt.theory.phop_counting import build_counting
from loopt.theory.sizes import Sizes

LENGTHS, HOPS, GROUPS = (4, 8, 24, 64, 200), (1, 3, 4, 12, 32, 100), ("Z2", "S3", "Z9", "S4", "A5", "S5")
CERTIFIED = (4, 8, 16, 32, 64)
"""The n at which certificates are asked whether the bits are enough."""

Points = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Curve:
    name: str
    formula: Points
    built: Points


@dataclass(frozen=True)
class Panel:
    """Curves of one size over one number, on a logarithmic scale."""

    size: str
    over: str
    curves: tuple[Curve, ...]
    logarithmic: bool = False
    """Whether the size is on such a scale too."""


def panels() -> tuple[Panel, ...]:
    """Returns loops, widths, bits and hidden units, of Theorem 5.1 and Corollary 5.3."""
    words = {name: {n: build_group_composition(group(name), n) for n in LENGTHS} for name in ("S3", "S5")}
    pointers = {p: build_phop(p, 200) for p in HOPS}
    counting = {p: build_counting(p, 200, sizes.phop_by_counting(p, 200).bits or 0) for p in HOPS}
    lookups = {n: build_counting(4, n, sizes.phop_by_counting(4, n).bits or 0) for n in LENGTHS}
    groups = {group(name).order: build_group_composition(group(name), 2) for name in GROUPS}
    depth, width = (lambda one: one.plan.depth), (lambda one: one.d)

    def composition(order: int) -> Callable[[int], Sizes]:
        return lambda n: sizes.composition(order, n)

    def by_counting(n: int) -> Sizes:
        return sizes.phop_by_counting(4, n)

    return (
        Panel(
            "loops",
            "number of elements n, or of hops p",
            (
                _curve("Theorem 5.1 (groups), over n", composition(6), words["S3"], _loops, depth),
                _curve("Corollary 5.3 (p-hop), over p", sizes.phop, pointers, _loops, depth),
                _curve(
                    "the same, rounded to s bits", lambda p: sizes.phop_by_counting(p, 200), counting, _loops, depth
                ),
            ),
        ),
        Panel(
            "width d",
            "number of elements or letters n",
            (
                _curve("Theorem 5.1 (group S5)", composition(120), words["S5"], _width, width),
                _curve("Theorem 5.1 (group S3)", composition(6), words["S3"], _width, width),
                _curve("Corollary 5.3 (4-hop), rounded", by_counting, lookups, _width, width),
            ),
        ),
        Panel(
            "bits of precision s",
            "number of elements or letters n",
            (
                Curve("Corollary 5.3 (4-hop)", _points(by_counting, range(2, 201), _bits), _certified_hops()),
                Curve("Theorem 5.1 (group S3)", _points(composition(6), range(2, 201), _bits), _certified_words()),
            ),
        ),
        Panel(
            "hidden units",
            "size of the group |G|",
            (
                _curve(
                    "Theorem 5.1 (groups)",
                    lambda order: sizes.composition(order, 2),
                    groups,
                    lambda one: one.d_ff,
                    lambda one: one.d_ff,
                ),
            ),
            logarithmic=True,
        ),
    )


def _curve(
    name: str,
    formula: Callable[[int], Sizes],
    built: dict[int, FormalTransformer],
    of_formula: Callable[[Sizes], int],
    of_built: Callable[[FormalTransformer], int],
) -> Curve:
    to = max(built)
    points = tuple((x, of_built(one)) for x, one in built.items())
    return Curve(name, _points(formula, range(min(built), to + 1), of_formula), points)


def _points(formula: Callable[[int], Sizes], over: Iterable[int], size: Callable[[Sizes], int]) -> Points:
    return tuple((x, size(formula(x))) for x in over)


def _loops(one: Sizes) -> int:
    return one.loops


def _width(one: Sizes) -> int:
    return one.d


def _bits(one: Sizes) -> int:
    assert one.bits is not None
    return one.bits


def _certified_hops() -> Points:
    """Returns the fewest bits that the certificate of 4-hop takes."""

    def right(n: int, s: int) -> bool:
        return certify_counting(build_counting(4, n, s), 4, n, s).wrong == 0

    return _fewest(right)


def _certified_words() -> Points:
    s3 = group("S3")

    def right(n: int, s: int) -> bool:
        return certify(build_in_precision(s3, n, s), s3, n, s).wrong == 0

    return _fewest(right)


def _fewest(right: Callable[[int, int], bool]) -> Points:
    return tuple((n, next(s for s in count(1) if right(n, s))) for n in CERTIFIED)
