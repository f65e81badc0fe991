"""Quality against loops: what exit rules give for the loops they take, beside fixed numbers of loops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loopt.analysis.forced import Decoded, Given, decode_given
from loopt.generation.exits import RULES, Gate, check_exit
from loopt.model import LoopedTransformer

THRESHOLDS: dict[str, tuple[float, ...]] = {
    "change": (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6),
    "kl": (0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
    "entropy": (0.01, 0.1, 0.3, 0.6, 1.0, 2.0, 4.0),
    "gate": (0.99, 0.97, 0.95, 0.9, 0.8, 0.7, 0.5),
}
"""For each rule, from leaving late to leaving early."""


@dataclass(frozen=True)
class ExitPoint:
    """A rule with its threshold, or a fixed number of loops, and what came of it."""

    rule: str
    """fixed, or the name of a rule."""
    setting: float
    """The number of loops, or the threshold."""
    decoded: Decoded


def rules_for(model: LoopedTransformer, asked: Sequence[str]) -> list[str]:
    """Returns the rules to try: those asked for, or all that the model has what it takes for."""
    for name in asked:
        check_exit(RULES[name](0.5), model)
    return list(asked) or [name for name, rule in RULES.items() if rule is not Gate or model.config.has_exit_gate]


def exit_points(model: LoopedTransformer, given: Given, rules: Sequence[str]) -> Iterator[ExitPoint]:
    """Yields a point for every number of loops up to the plan's, then for each rule and threshold."""
    _, looped, _ = model.config.plan.around_loop()
    for loops in range(1, len(looped) + 1):
        yield ExitPoint("fixed", loops, decode_given(model, given, loops=loops))
    for name in rules:
        for threshold in THRESHOLDS[name]:
            yield ExitPoint(name, threshold, decode_given(model, given, exit_rule=RULES[name](threshold)))
