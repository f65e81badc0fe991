"""What a loop is worth in parameters: the exponent φ of the law L = E + A·(N_once + r^φ·N_loop)^-α.

Parameters that run r times count r^φ times: φ = 0 where looping adds nothing, φ = 1 where a loop is worth as much as
layers of its own. The law is for models trained on equally many tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loopt.analysis.intervals import Interval, t_quantile
from loopt.analysis.points import Point

Array = NDArray[np.float64]

PHI_RANGE = (-1.0, 3.0)
"""Where φ is looked for."""
PHI_STEP = 0.01
ALPHA_RANGE = (0.005, 4.0)
ZOOMS = 6
"""How often the search looks closer around the best value; the last one is to within 1e-7 of it."""
UNKNOWNS = 4
"""E, A, α and φ."""


@dataclass(frozen=True)
class LoopLaw:
    """The law that fits some points best."""

    phi: float
    interval: Interval
    """The φ that fit nearly as well, by the profile of the squared residuals, as far as PHI_RANGE goes."""
    alpha: float
    floor: float
    """E, the loss that no size goes below."""
    factor: float
    """A, for sizes in parameters."""
    residual: float
    """Root of the mean squared residual, in nats."""

    @property
    def determined(self) -> bool:
        """Tells whether the points bound φ on both sides."""
        return self.interval.low > PHI_RANGE[0] and self.interval.high < PHI_RANGE[1]

    def loss(self, parameters: Mapping[int, int]) -> float:
        return self.floor + self.factor * self.size(parameters) ** -self.alpha

    def size(self, parameters: Mapping[int, int]) -> float:
        """Returns N_once + r^φ·N_loop, the size of the model without loops that would have this loss."""
        return effective_size(parameters, self.phi)


def effective_size(parameters: Mapping[int, int], phi: float) -> float:
    """Returns how many parameters count, where those that run r times count r^φ times.

    >>> effective_size({1: 100, 4: 10}, 0.5)
    120.0
    """
    return math.fsum(count * loops**phi for loops, count in parameters.items())


def fit_loop_law(points: Sequence[Point]) -> LoopLaw | str:
    """Returns the law by least squares with the interval of φ, or why the points do not determine one, in words."""
    sizes = [point.parameters for point in points if point.parameters is not None]
    losses = [point.loss for point in points if point.loss is not None]
    if len(sizes) < len(points) or len(losses) < len(points):
        return "not every file has a config, which gives its parameters and tokens, and a loss or perplexity"
    if len({point.tokens for point in points}) > 1:
        counts = sorted({point.tokens or 0 for point in points})
        return f"the models trained on {counts[0]:,} to {counts[-1]:,} tokens; the law is for equally many"
    if len(points) <= UNKNOWNS:
        return f"{len(points)} points for the {UNKNOWNS} unknowns E, A, α and φ; more are needed"
    if not any(max(size) > 1 for size in sizes):
        return "no model loops"
    plain = {size[1] for size in sizes if max(size) == 1}
    if len(plain) < 3:
        return f"{len(plain)} sizes of models without loops; 3 or more are needed for E, A and α"
    return _fit(sizes, np.array(losses))


def _fit(sizes: Sequence[Mapping[int, int]], losses: Array) -> LoopLaw:
    phis = np.arange(PHI_RANGE[0], PHI_RANGE[1] + PHI_STEP / 2, PHI_STEP)
    squares = _profile(sizes, losses, phis)[0]
    best, step = float(phis[squares.argmin()]), PHI_STEP
    for _ in range(ZOOMS):
        near = np.clip(np.linspace(best - step, best + step, 21), *PHI_RANGE)
        best, step = float(near[_profile(sizes, losses, near)[0].argmin()]), step / 10
    (least,), (alpha,), (floor,), (scaled,), unit = _profile(sizes, losses, np.array([best]))
    freedom = len(losses) - UNKNOWNS
    rounding = 1e-12 * float((losses**2).sum())  # points on the curve itself have no residuals but these
    bound = float(least) * (1 + t_quantile(freedom) ** 2 / freedom) + rounding
    interval = _around(phis, squares, best, bound)
    root = math.sqrt(float(least) / len(losses))
    return LoopLaw(best, interval, float(alpha), float(floor), float(scaled * unit**alpha), root)


def _profile(
    sizes: Sequence[Mapping[int, int]], losses: Array, phis: Array
) -> tuple[Array, Array, Array, Array, float]:
    """Returns, for each φ, the least squared residuals, and the α, E and A that have them, with the unit of size that
    A is for. Only α is searched for: given φ and α, the law is linear in E and A."""
    effective = np.array([[effective_size(size, phi) for size in sizes] for phi in phis])  # [φ, points]
    unit = float(np.exp(np.log(effective).mean()))  # keeps A and the powers near 1
    logs = np.log(effective / unit)[:, None, :]  # [φ, 1, points]
    low, high = (np.full(len(phis), math.log(end)) for end in ALPHA_RANGE)
    each = np.arange(len(phis))
    for _ in range(ZOOMS):
        alphas = np.exp(np.linspace(low, high, 31, axis=1))  # [φ, α]
        squares, floor, factor = _linear(np.exp(-alphas[:, :, None] * logs), losses)
        at = squares.argmin(1)
        middle, width = np.log(alphas[each, at]), (high - low) / 15
        low, high = np.maximum(middle - width, low), np.minimum(middle + width, high)
    return squares[each, at], alphas[each, at], floor[each, at], factor[each, at], unit


def _linear(powers: Array, losses: Array) -> tuple[Array, Array, Array]:
    """Returns the squared residuals of E + A·power, and the best E and A, neither below zero; powers [..., points]."""
    centered, mean = powers - powers.mean(-1, keepdims=True), losses.mean()
    spread = np.maximum((centered**2).sum(-1), np.finfo(float).tiny)
    factor = np.maximum((centered * (losses - mean)).sum(-1) / spread, 0.0)
    floor = mean - factor * powers.mean(-1)
    without_floor = (powers * losses).sum(-1) / (powers**2).sum(-1)
    factor, floor = np.where(floor < 0, without_floor, factor), np.maximum(floor, 0.0)
    squares = ((floor[..., None] + factor[..., None] * powers - losses) ** 2).sum(-1)
    return squares, floor, factor


def _around(phis: Array, squares: Array, best: float, bound: float) -> Interval:
    """Returns the values of φ next to the best one whose squared residuals are within the bound."""

    def reach(direction: int) -> float:
        inside, inside_squares = best, min(bound, float(squares.min()))
        beyond = phis[phis > best] if direction > 0 else phis[phis < best][::-1]
        of_beyond = squares[phis > best] if direction > 0 else squares[phis < best][::-1]
        for phi, value in zip(beyond, of_beyond, strict=True):
            if value > bound:
                share = (bound - inside_squares) / (value - inside_squares)
                return float(inside + share * (phi - inside))
            inside, inside_squares = phi, value
        return PHI_RANGE[direction > 0]

    return Interval(reach(-1), reach(1))
