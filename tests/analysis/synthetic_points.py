"""Points of models that follow given laws, with or without noise."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from loopt.analysis.loop_exponent import effective_size
from loopt.analysis.points import Point
from loopt.plan import LoopPlan

LOOPS = (1, 2, 3, 6, 9, 12)
PLANS = [f"4x{loops}" for loops in LOOPS] + [f"{4 * loops}x1" for loops in LOOPS[1:]]
"""The paper's Figure 3."""


def points_of(metric: str, score: Callable[[LoopPlan], float], plans: list[str] = PLANS) -> list[Point]:
    parsed = [LoopPlan.parse(plan) for plan in plans]
    return [Point(str(plan), plan, {metric: score(plan)}) for plan in parsed]


def on_depth_laws(alpha_looped: float, alpha_deep: float, beta: float, noise: float, seed: int) -> list[Point]:
    """Accuracies α·log(depth) + β, with laws that meet where both series have the same model."""
    draw = np.random.default_rng(seed)

    def score(plan: LoopPlan) -> float:
        alpha = alpha_looped if plan.depth > plan.distinct_layers else alpha_deep
        return alpha * math.log(plan.depth / 4) + beta + draw.normal(0, noise)

    return points_of("accuracy", score)


def on_loop_law(phi: float, noise: float = 0.0, seed: int = 0, plans: list[str] = PLANS) -> list[Point]:
    """Losses 2 + 20·(N_once + r^φ·N_loop)^-0.2 of models with layers of a million parameters and embeddings of two."""
    draw = np.random.default_rng(seed)
    points = []
    for text in plans:
        plan = LoopPlan.parse(text)
        parameters = {1: 2_000_000}
        for block in plan.blocks:
            parameters[block.loops] = parameters.get(block.loops, 0) + block.layers * 1_000_000
        loss = 2 + 20 * effective_size(parameters, phi) ** -0.2 + draw.normal(0, noise)
        points.append(Point(text, plan, {"loss": loss}, parameters=parameters, tokens=10**9))
    return points
