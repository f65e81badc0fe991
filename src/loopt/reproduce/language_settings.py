"""What each scale of the language experiments fixes, all in one place: model, budget, rates, and what text is mixed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from loopt.model import ModelConfig
from loopt.plan import LoopPlan
from loopt.reproduce.experiment import Scale
from loopt.runs import AdafactorConfig, AdamWConfig, MuonConfig, OptimizerConfig, TrainConfig
from loopt.runs.stacking import StackingConfig
from loopt.text.source import Text
from loopt.training import presets


@dataclass(frozen=True)
class Setting:
    """One scale. Rows differ in their plan and their regularizer alone."""

    preset: Callable[[str], TrainConfig]
    """Prepared text -> the config that the rest here changes."""
    steps: int
    batch_size: int
    """Sequences of the model's max_len in an update."""
    optim: OptimizerConfig
    share: float
    """Of the training tokens, how much is variable assignment; the rest is text."""
    depths: tuple[int, ...]
    """Of variable assignment in the text, in equal shares, each as math and as code."""
    vocabulary: int
    """Tokens of the tokenizer that is trained where text is given instead of a prepared directory."""
    held_out: float
    """Share of the documents for validation, and as much for test, likewise."""
    primitives: int
    """Examples of each of the four primitives."""
    limit: int
    """Examples of each of the 15 tasks."""
    fewer: int
    """Examples of each task and primitive for every further number of loops and checkpoint."""
    loops: tuple[int, ...]
    """Numbers of loops to measure looped models with; their own is one in any case."""
    fractions: tuple[float, ...]
    """Of training, at which rows of isoplots are measured; the paper's are every 20,000 steps from 120,000 on."""
    eval_every: int
    eval_examples: int
    test_examples: int

    def config(self, plan: LoopPlan, recipe: str, data: str) -> TrainConfig:
        """Returns the config of a row, but for its regularizer and its seed."""
        base = self.preset(data)
        config = replace(
            base,
            model=replace(base.model, plan=plan),
            optim=self.optim,
            steps=self.steps,
            batch_size=self.batch_size,
            eval_every=self.eval_every,
            eval_examples=self.eval_examples,
            test_examples=self.test_examples,
        )
        return RECIPES[recipe](config, self)

    @property
    def mixture(self) -> list[str]:
        """Returns the tasks to mix into the text, as `loopt data prepare --source` takes them."""
        forms = [(depth, rendering) for depth in self.depths for rendering in ("math", "code")]
        return [
            f"task:assignment?depth={depth}&rendering={rendering}&shots=5&share={self.share / len(forms):.4g}"
            for depth, rendering in forms
        ]


def _miniature(data: str) -> TrainConfig:
    """The paper's plans at d=32: depth 24 and all, for a laptop."""
    model = ModelConfig(
        LoopPlan.parse("24x1"), d_model=32, n_heads=2, d_ff=96, max_len=256, feed_forward="swiglu", rope_base=1000.0
    )
    return TrainConfig(Text(data), model, log_every=2)


def _grown(config: TrainConfig, setting: Setting) -> TrainConfig:
    """MidAS: from 4 layers on, 4 at a time; a stage of n times as many layers takes n times as many steps."""
    stages = config.model.plan.depth // STACKED
    ends = [config.steps * stage * (stage + 1) // (stages * (stages + 1)) for stage in range(1, stages)]
    return replace(config, stacking=StackingConfig(STACKED, tuple(ends)))


def _at_rate(factor: float) -> Callable[[TrainConfig, Setting], TrainConfig]:
    return lambda config, setting: replace(config, optim=replace(config.optim, lr=factor * config.optim.lr))


RECIPES: dict[str, Callable[[TrainConfig, Setting], TrainConfig]] = {
    "": lambda config, setting: config,
    "injection": lambda config, setting: replace(config, model=replace(config.model, injection="added")),
    "residual": lambda config, setting: replace(config, model=replace(config.model, residual_scaling=True)),
    "midas": _grown,
    "half rate": _at_rate(0.5),
    "double rate": _at_rate(2.0),
}
"""Ways to train a row; what has no name is the table's own."""
STACKED = 4

SETTINGS: dict[Scale, Setting] = {
    "cpu": Setting(
        preset=_miniature,
        steps=100,
        batch_size=2,
        optim=AdamWConfig(lr=3e-3, warmup_steps=20, weight_decay=0.1),
        share=0.2,
        depths=(0, 1),
        vocabulary=1024,
        held_out=0.1,
        primitives=8,
        limit=2,
        fewer=2,
        loops=(1, 3, 9),
        fractions=(0.3, 0.65, 1.0),
        eval_every=50,
        eval_examples=16,
        test_examples=32,
    ),
    "short": Setting(
        preset=presets.lm_75m,
        steps=2400,
        batch_size=16,
        optim=MuonConfig(lr=3e-3, warmup_steps=100),
        share=0.2,
        depths=(0, 1),
        vocabulary=50_304,
        held_out=0.01,
        primitives=500,
        limit=200,
        fewer=50,
        loops=tuple(range(1, 13)),
        fractions=(0.3, 0.5, 0.7, 0.85, 1.0),
        eval_every=1200,
        eval_examples=128,
        test_examples=256,
    ),
    # The appendix's: 400,000 steps of 512 sequences are 262 billion tokens of the Pile, where its text says 250.
    "paper": Setting(
        preset=presets.lm_1b,
        steps=400_000,
        batch_size=512,
        optim=AdafactorConfig(lr=1e-2, warmup_steps=2000),
        share=0.0,
        depths=(),
        vocabulary=50_304,
        held_out=0.001,
        primitives=1000,
        limit=1000,
        fewer=200,
        loops=tuple(range(1, 13)),
        fractions=(0.3, 0.5, 0.7, 0.85, 1.0),
        eval_every=2000,
        eval_examples=512,
        test_examples=4096,
    ),
}
