"""loopt plan PLAN"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import tyro

from loopt.commands.parsing import parse_options
from loopt.errors import InputError
from loopt.model_config import FeedForwardKind, ModelConfig
from loopt.plan import LoopPlan
from loopt.report.drawing import draw_plan
from loopt.report.screen import screen


@dataclass(frozen=True)
class Options:
    """Draw a plan, with the parameters and FLOPs of the model and its baselines. For example the paper's 24-layer
    language model with middle looping:

    loopt plan "4x(1,4,1)" --d-model 2048 --n-heads 32 --d-ff 5120 --vocab-size 50304 --max-len 1280
    """

    plan: tyro.conf.Positional[LoopPlan]
    """Such as 4x6, 4x(1,4,1), 2x1+4x5+2x1 or (4⊗6)."""
    d_model: int = 128
    """Width of the residual stream."""
    n_heads: int = 8
    """Attention heads."""
    d_ff: int = 512
    """Hidden width of the feed-forward."""
    vocab_size: int = 5
    """Tokens in the vocabulary."""
    max_len: int = 256
    """Length of the sequence that FLOPs are counted for."""
    feed_forward: FeedForwardKind = "gelu"
    """The feed-forward's nonlinearity; swiglu is gated, with a third matrix."""


def main(arguments: list[str]) -> int:
    options = parse_options(Options, arguments, "loopt plan")
    for name in ("vocab_size", "max_len"):
        if getattr(options, name) < 1:
            raise InputError(f"{name}={getattr(options, name)}: allowed is 1 or more")
    config = ModelConfig(**{**asdict(options), "plan": options.plan})
    screen().print(draw_plan(config))
    return 0
