"""What a run is: what it trains on, the model, the optimizer and the schedule. Everything here decides the result."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from loopt.errors import require
from loopt.model import ModelConfig
from loopt.plan import LoopPlan
from loopt.runs.loop_counts import LoopCounts
from loopt.runs.stacking import StackingConfig
from loopt.tasks import Task
from loopt.tasks.base import ADDED_LATER

OptimizerName = Literal["adafactor", "adamw", "muon"]

PLACE = {"place": True}
"""Marks a field that says where something lies, which is no part of what a run is."""


@dataclass(frozen=True)
class OptimConfig:
    name: OptimizerName = "adafactor"
    """adafactor is the paper's; muon trains the layers' matrices and leaves the rest to adamw."""
    lr: float = 1e-3
    """Peak learning rate, reached after the warm-up and decayed to zero by a cosine."""
    warmup_steps: int = 1000
    betas: tuple[float, float] = (0.9, 0.95)
    """Of AdamW."""
    weight_decay: float = 0.0
    """On matrices; norms and biases are left alone."""
    clip_norm: float = 1.0
    """Largest norm of the whole gradient."""
    scale_parameter: bool = True
    """Adafactor: the rate is relative to each matrix's own size."""

    def __post_init__(self) -> None:
        require(self.name in get_args(OptimizerName), "optim.name", self.name, " | ".join(get_args(OptimizerName)))
        require(math.isfinite(self.lr) and self.lr > 0, "optim.lr", self.lr, "more than 0")
        require(self.warmup_steps >= 0, "optim.warmup_steps", self.warmup_steps, "0 or more")
        require(all(0 <= beta < 1 for beta in self.betas), "optim.betas", self.betas, "0 up to, not including, 1")
        require(self.weight_decay >= 0, "optim.weight_decay", self.weight_decay, "0 or more")
        require(self.clip_norm > 0, "optim.clip_norm", self.clip_norm, "more than 0")


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
        """Refuse a block that a model with so many distinct layers is not made of, twice at least."""
        smaller = [k for k in range(1, layers) if layers % k == 0]
        choice = " | ".join(map(str, smaller)) or "nothing"
        allowed = f"{choice}, to divide the model's {layers} distinct layers and leave some to compare"
        require(self.block in smaller, "regularizer.block", self.block, allowed)


@dataclass(frozen=True)
class TrainConfig:
    # With text it is None. Were that part of its type, the command line would not see in the default which settings
    # a task has.
    task: Task
    """What to train on; none with text."""
    model: ModelConfig
    optim: OptimConfig = field(default_factory=OptimConfig)
    steps: int = 200_000
    """Updates in all; the learning rate is zero at the end."""
    batch_size: int = 256
    seed: int = 0
    """Of the starting weights and of the training examples; validation and test are the same for every seed."""
    train_examples: int | None = None
    """Size of the training set, gone through again and again; none: every example is new."""
    data: str | None = field(default=None, metadata=PLACE)
    """Text to train a language model on instead of a task: a directory that `loopt data prepare` made."""
    data_fingerprint: str = field(default="", metadata=ADDED_LATER)
    """Of that text; filled in when the run starts, which is then refused any other."""
    regularizer: RegularizerConfig = field(default_factory=RegularizerConfig, metadata=ADDED_LATER)
    stacking: StackingConfig = field(default_factory=StackingConfig, metadata=ADDED_LATER)
    loop_counts: LoopCounts = field(default_factory=LoopCounts, metadata=ADDED_LATER)
    answer_weight: float = field(default=0.0, metadata=ADDED_LATER)
    """Share of the loss that the answers get, what exact match looks at; the rest goes to all that is supervised."""
    log_every: int = 100
    eval_every: int = 1000
    """Steps between evaluations; a checkpoint is kept at each."""
    eval_examples: int = 2048
    """Validation examples at each evaluation."""
    test_examples: int = 8192
    """Test examples for the final figure, measured on the best checkpoint."""
    target_accuracy: float | None = None
    """Stop when validation accuracy gets there; none: run all steps."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "log_every", "eval_every", "eval_examples", "test_examples"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        if self.task is not None:
            parts = len(self.task.parts)
            allowed = f"{parts} or more, one for each of its parts"
            require(self.batch_size >= parts, "batch_size", self.batch_size, allowed)
            require(self.data is None, "data", self.data, "none, since there is a task")
        if self.regularizer.active:
            self.regularizer.check(self.model.plan.distinct_layers)
            require(not self.stacking.active, "stacking.block", self.stacking.block, "0 with a regularizer")
        if self.stacking.active:
            self.stacking.check(self.model.plan, self.steps)
        if self.loop_counts.active:
            self.loop_counts.check(self.model.plan, self.steps)
            require(not self.stacking.active, "stacking.block", self.stacking.block, "0 with loop_counts")
        require(0 <= self.seed < 2**63, "seed", self.seed, "0 to 2^63 - 1")
        if self.train_examples is not None:
            require(self.train_examples >= 1, "train_examples", self.train_examples, "1 or more, or none")
        require(0 <= self.answer_weight <= 1, "answer_weight", self.answer_weight, "0 to 1")
        if self.target_accuracy is not None:
            require(0 < self.target_accuracy <= 1, "target_accuracy", self.target_accuracy, "more than 0, at most 1")
        warmup = self.optim.warmup_steps
        require(warmup <= self.steps, "optim.warmup_steps", warmup, f"at most steps={self.steps}")

    def plan_of_checkpoint(self, step: int) -> LoopPlan:
        """What the model's plan was when so many updates had been done; with stacking it was shallower earlier."""
        return self.stacking.plan_at(max(0, step - 1)) if self.stacking.active else self.model.plan

    def resolved(self) -> TrainConfig:
        """The config with the sizes that the model leaves to the task filled in, and checked where it does not."""
        words = len(self.task.vocabulary)
        length = max(task.length for task in (self.task, *self.task.tests.values()))
        model = replace(self.model, vocab_size=self.model.vocab_size or words, max_len=self.model.max_len or length)
        require(model.vocab_size >= words, "model.vocab_size", model.vocab_size, f"the task's {words} or more")
        require(model.max_len >= length, "model.max_len", model.max_len, f"the task's {length} or more")
        return replace(self, model=model)

    def resolved_for_text(self, words: int, fingerprint: str) -> TrainConfig:
        """The same for text: with so many words in its vocabulary, and with this fingerprint."""
        model = replace(self.model, vocab_size=self.model.vocab_size or words)
        require(model.vocab_size >= words, "model.vocab_size", model.vocab_size, f"the text's {words} or more")
        require(model.max_len >= 1, "model.max_len", model.max_len, "1 or more: the length of a sequence")
        require(self.target_accuracy is None, "target_accuracy", self.target_accuracy, "none with text")
        require(self.train_examples is None, "train_examples", self.train_examples, "none with text: all of it counts")
        require(self.answer_weight == 0, "answer_weight", self.answer_weight, "0 with text, which has no answers")
        return replace(self, model=model, data_fingerprint=fingerprint)
