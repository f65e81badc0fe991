"""What a run is: what it trains on, the model, the optimizer and the schedule. Everything here decides the result."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from loopt.errors import require, require_numbers
from loopt.limits import LARGEST
from loopt.model import ModelConfig
from loopt.plan import LoopPlan
from loopt.runs.loop_counts import LoopCounts
from loopt.runs.optimizers import AdafactorConfig, OptimizerConfig
from loopt.runs.stacking import StackingConfig
from loopt.source import PLACE, Source

RegularizerKind = Literal["cosine", "l2"]


@dataclass(frozen=True)
class RegularizerConfig:
    """Draws blocks of layers towards each other (the paper's Section 4)."""

    block: int = 0
    """k: layers in a block; layer i is drawn towards layer i + k. 0: no regularizer."""
    weight: float = 0.0
    """λ; 0 changes nothing. The paper's strong setting is 10."""
    kind: RegularizerKind = "cosine"
    """cosine is the paper's; l2 pulls the sizes together as well."""

    def __post_init__(self) -> None:
        require(self.block >= 0, "regularizer.block", self.block, "1 or more, or 0 for none")
        finite = math.isfinite(self.weight) and self.weight >= 0
        require(finite, "regularizer.weight", self.weight, "0 or more")
        kinds = get_args(RegularizerKind)
        require(self.kind in kinds, "regularizer.kind", self.kind, " | ".join(kinds))

    @property
    def active(self) -> bool:
        return self.block > 0

    def check(self, layers: int) -> None:
        """Raises a ConfigError unless ``layers``, the distinct layers of a model, are two or more blocks."""
        smaller = [k for k in range(1, layers) if layers % k == 0]
        choice = " | ".join(map(str, smaller)) or "nothing"
        allowed = f"{choice}, to divide the model's {layers} distinct layers and leave some to compare"
        require(self.block in smaller, "regularizer.block", self.block, allowed)


@dataclass(frozen=True)
class StartConfig:
    """Starts from the weights of another run: to fine-tune it, or to go on with a harder task."""

    run: str = field(default="", metadata=PLACE)
    """Directory of the run whose best checkpoint has the weights to start from; random weights unless given. Its model
    has the same layers, and may loop them another number of times; or kL layers, and (k⊗L) starts from their mean."""
    weights: str = ""
    """SHA-256 of the file of these weights, filled in when the run starts."""

    def __post_init__(self) -> None:
        is_hash = re.fullmatch("([0-9a-f]{64})?", self.weights) is not None
        require(is_hash, "start.weights", self.weights, "a SHA-256, or none")

    @property
    def active(self) -> bool:
        return bool(self.run or self.weights)


@dataclass(frozen=True)
class TrainConfig:
    """Everything that defines a training run. The same config and seed give the same run."""

    source: Source
    """What to train on: a task, or text."""
    model: ModelConfig
    """The architecture."""
    optim: OptimizerConfig = field(default_factory=AdafactorConfig)
    """The optimizer and its learning rate."""
    steps: int = 200_000
    """Updates in all; the learning rate is zero at the end."""
    batch_size: int = 256
    """Examples, or sequences of text, in an update."""
    seed: int = 0
    """Of the starting weights and of the training examples; validation and test are the same for every seed."""
    start: StartConfig = field(default_factory=StartConfig)
    """Starts from the weights of another run."""
    regularizer: RegularizerConfig = field(default_factory=RegularizerConfig)
    """Draws blocks of layers towards each other."""
    stacking: StackingConfig = field(default_factory=StackingConfig)
    """Grows the model while it trains."""
    loop_counts: LoopCounts = field(default_factory=LoopCounts)
    """Trains with other numbers of loops than the plan's."""
    log_every: int = 100
    """Steps between lines of the log."""
    eval_every: int = 1000
    """Steps between evaluations; a checkpoint is kept at each."""
    eval_examples: int = 2048
    """Validation examples, or sequences of text, at each evaluation."""
    test_examples: int = 8192
    """Test examples, or sequences of text, for the final figure, measured on the best checkpoint."""

    def __post_init__(self) -> None:
        require_numbers(self)
        for name in ("steps", "batch_size", "log_every", "eval_every", "eval_examples", "test_examples"):
            require(1 <= getattr(self, name) <= LARGEST, name, getattr(self, name), f"1 to {LARGEST}")
        fewest = self.source.smallest_batch
        allowed = f"{fewest} or more, one example for each task of the mixture"
        require(self.batch_size >= fewest, "batch_size", self.batch_size, allowed)
        if self.regularizer.active:
            self.regularizer.check(self.model.plan.distinct_layers)
            require(not self.stacking.active, "stacking.block", self.stacking.block, "0 with a regularizer")
        if self.stacking.active:
            self.stacking.check(self.model.plan, self.steps)
        if self.loop_counts.active:
            self.loop_counts.check(self.model.plan, self.steps)
            require(not self.stacking.active, "stacking.block", self.stacking.block, "0 with loop_counts")
            between = self.model.loop_norm == "own" or self.model.injection == "matrix" or self.model.has_exit_gate
            allowed = "2 or more with loop_norm=own, injection=matrix or exit_gate, which learn nothing from one loop"
            one_loop = self.loop_counts.low < 2 and not self.loop_counts.problems_only
            require(not (one_loop and between), "loop_counts.low", self.loop_counts.low, allowed)
        require(0 <= self.seed < 2**63, "seed", self.seed, "0 to 2^63 - 1")
        warmup = self.optim.warmup_steps
        require(warmup <= self.steps, "optim.warmup_steps", warmup, f"at most steps={self.steps}")

    def plan_of_checkpoint(self, step: int) -> LoopPlan:
        """Returns the plan that the model had after ``step`` updates; with stacking it was shallower earlier."""
        return self.stacking.plan_at(max(0, step - 1)) if self.stacking.active else self.model.plan

    def resolved(self) -> TrainConfig:
        """Returns the config with the sizes that the model leaves to its source filled in, and checked."""
        words, length = self.source.vocab_size, self.source.max_len
        model = replace(self.model, vocab_size=self.model.vocab_size or words, max_len=self.model.max_len or length)
        allowed = f"{words} or more, as many as {self.source.name} has tokens"
        require(model.vocab_size >= words, "model.vocab_size", model.vocab_size, allowed)
        allowed = f"{length} or more, the length of {self.source.name}" if length else "1 or more: a sequence's length"
        require(model.max_len >= max(length, 1), "model.max_len", model.max_len, allowed)
        self.source.check_length(model.max_len)
        return replace(self, model=model)
