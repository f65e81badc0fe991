"""Exit rules: when a row has looped enough for its next token.

A rule looks at the state before and after each loop of the loopable block, and at what would be read out then, and
tells for each row whether to leave. Prompts always run all loops. On the command line a rule is written with its
threshold, ``entropy:0.5``.

>>> parse_exit("change:0.01")
StateChange(threshold=0.01)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from loopt.errors import InputError
from loopt.model import LoopedTransformer


class Moment(NamedTuple):
    """A row's state after a loop, or before the first one."""

    state: Tensor  # [B, D]
    log_probabilities: Tensor | None
    """[B, V]: what would be read out, for rules that read out; none before the first loop."""


class ExitRule(Protocol):
    """Decides after each loop but the last which rows leave."""

    reads_out: ClassVar[bool]
    """Whether it looks at log-probabilities, which take a readout after each loop."""

    def leaves(self, model: LoopedTransformer, before: Moment, now: Moment) -> Tensor:
        """Tells, [B] booleans, which rows leave after the loop that led from ``before`` to ``now``."""


@dataclass(frozen=True)
class StateChange:
    """Leaves when a loop has changed the state by less than a share of its size."""

    reads_out: ClassVar[bool] = False
    threshold: float

    def leaves(self, model: LoopedTransformer, before: Moment, now: Moment) -> Tensor:
        size, change = now.state.float().norm(dim=1), (now.state.float() - before.state.float()).norm(dim=1)
        return change < self.threshold * size


@dataclass(frozen=True)
class Divergence:
    """Leaves when a loop has changed what is read out by less than so much KL divergence, in nats."""

    reads_out: ClassVar[bool] = True
    threshold: float

    def leaves(self, model: LoopedTransformer, before: Moment, now: Moment) -> Tensor:
        if before.log_probabilities is None or now.log_probabilities is None:
            return torch.zeros(len(now.state), dtype=torch.bool, device=now.state.device)
        ratio = (now.log_probabilities - before.log_probabilities).nan_to_num(0.0)  # 0 where neither can be
        return (now.log_probabilities.exp() * ratio).sum(1) < self.threshold


@dataclass(frozen=True)
class Entropy:
    """Leaves when what is read out has less than so much entropy, in nats."""

    reads_out: ClassVar[bool] = True
    threshold: float

    def leaves(self, model: LoopedTransformer, before: Moment, now: Moment) -> Tensor:
        assert now.log_probabilities is not None
        return -(now.log_probabilities.exp() * now.log_probabilities).nan_to_num(0.0).sum(1) < self.threshold


@dataclass(frozen=True)
class Gate:
    """Leaves when the model's exit gate is at least so sure that the answer will stay."""

    reads_out: ClassVar[bool] = False
    threshold: float

    def leaves(self, model: LoopedTransformer, before: Moment, now: Moment) -> Tensor:
        return model.exit_logit(now.state).float().sigmoid() >= self.threshold


RULES: dict[str, type[StateChange | Divergence | Entropy | Gate]] = {
    "change": StateChange,
    "kl": Divergence,
    "entropy": Entropy,
    "gate": Gate,
}


def parse_exit(written: str) -> ExitRule:
    """Returns the rule written ``name:threshold``."""
    name, _, threshold = written.partition(":")
    try:
        value = float(threshold)
        if name not in RULES or not (math.isfinite(value) and value >= 0):
            raise ValueError
    except ValueError:
        forms = ", ".join(f"{rule}:THRESHOLD" for rule in RULES)
        raise InputError(f"exit={written}: allowed are {forms}, with a threshold of 0 or more") from None
    return RULES[name](value)


def check_exit(rule: ExitRule, model: LoopedTransformer) -> None:
    """Raises an InputError where the model does not have what the rule looks at."""
    if isinstance(rule, Gate) and not model.config.has_exit_gate:
        raise InputError("exit=gate: this model has no exit gate; allowed for models trained with model.exit_gate")
