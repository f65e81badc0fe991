"""The shape of a model: its plan, its sizes and its options, and what they cost in parameters and operations.

An exported model carries this file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args, get_origin, get_type_hints

from loopt.attention import Heads
from loopt.errors import require, require_numbers
from loopt.limits import LARGEST
from loopt.plan import LoopPlan

Positions = Literal["rope", "learned", "none"]
Norm = Literal["rms", "layer"]
NormPlacement = Literal["pre", "sandwich", "none"]
FeedForwardKind = Literal["gelu", "relu", "swiglu"]
Biases = Literal["none", "feed_forward", "all"]
LoopNorm = Literal["none", "own", "final"]
Injection = Literal["none", "added", "matrix"]


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a model."""

    plan: LoopPlan
    """Which layers run in which order, e.g. 4x6, 4x(1,4,1) or 2x1+4x5+2x1."""
    d_model: int
    """Width of the residual stream."""
    n_heads: int
    """Attention heads."""
    d_ff: int
    """Hidden width of the feed-forward."""
    vocab_size: int = 0
    """Tokens in the vocabulary; 0 when training: as many as the source has."""
    max_len: int = 0
    """Longest sequence; 0 when training: the task's."""
    head_dim: int | None = None
    """Width of one head; d_model / n_heads unless given."""
    attention_scale: float | None = None
    """Factor on the attention scores; 1 / sqrt(head_dim) unless given."""
    positions: Positions = "rope"
    """How a token knows its place: rotary, learned, or not at all."""
    rope_base: float = 10_000.0
    """Wavelengths of the rotary positions run from 2π to 2π·rope_base."""
    norm: Norm = "rms"
    """RMSNorm or LayerNorm."""
    norm_placement: NormPlacement = "pre"
    """pre: before each sublayer; sandwich: before and after; none: no norm anywhere, as the theory has it."""
    feed_forward: FeedForwardKind = "gelu"
    """The feed-forward's nonlinearity; swiglu is gated."""
    biases: Biases = "none"
    """Which linear layers have one; feed_forward is the theory's choice. LayerNorm has one with all."""
    tied_readout: bool = False
    """Read out with the token embedding's own weights."""
    n_kv_heads: int | None = None
    """Heads of keys and values, which groups of query heads share; n_heads unless given."""
    qk_norm: bool = False
    """RMSNorm of queries and keys, head by head, before rotary positions."""
    loop_norm: LoopNorm = "none"
    """Norm of the state before every loop of a looped block but its first: one of the block's own, or the final one."""
    injection: Injection = "none"
    """What went into a looped block comes in again before every loop but the first: added to the state, or both through
    a matrix, which starts as that sum."""
    loop_embedding: bool = False
    """A learned vector added before each loop of a looped block; loops beyond the plan's share the last one."""
    residual_scaling: bool = False
    """Multiply what the layers of a looped block (k⊗L) add to the residual stream by 1/(L·√k), whatever loops run."""
    exit_gate: bool = False
    """Learn to tell after each loop of the loopable block whether the answer will stay; trained beside the model."""

    def __post_init__(self) -> None:
        if isinstance(self.plan, str):
            object.__setattr__(self, "plan", LoopPlan.parse(self.plan))
        require_numbers(self, "model.")
        for name in ("d_model", "n_heads", "d_ff"):
            self._require(1 <= getattr(self, name) <= LARGEST, name, f"1 to {LARGEST}")
        for name in ("vocab_size", "max_len"):
            allowed = f"1 to {LARGEST} (0 when training: the source's)"
            self._require(0 <= getattr(self, name) <= LARGEST, name, allowed)
        for name, allowed_values in _choices().items():
            self._require(getattr(self, name) in allowed_values, name, " | ".join(allowed_values))
        if self.head_dim is None:
            allowed = f"a divisor of d_model={self.d_model}, or give head_dim"
            self._require(self.d_model % self.n_heads == 0, "n_heads", allowed)
        else:
            self._require(1 <= self.head_dim <= LARGEST, "head_dim", f"1 to {LARGEST}")
        if self.positions == "rope":
            even = self.width_of_head % 2 == 0
            require(even, "model.head_dim", self.width_of_head, "an even number with rotary positions")
            self._require(0 < self.rope_base < math.inf, "rope_base", "a finite number, more than 0")
        self._require(math.isfinite(self.scale), "attention_scale", "a finite number")
        if self.n_kv_heads is not None:
            divides = 1 <= self.n_kv_heads <= self.n_heads and self.n_heads % self.n_kv_heads == 0
            self._require(divides, "n_kv_heads", f"a divisor of n_heads={self.n_heads}")

    def _require(self, holds: bool, name: str, allowed: str) -> None:
        require(holds, f"model.{name}", getattr(self, name), allowed)

    @property
    def width_of_head(self) -> int:
        return self.head_dim if self.head_dim is not None else self.d_model // self.n_heads

    @property
    def scale(self) -> float:
        return self.attention_scale if self.attention_scale is not None else self.width_of_head**-0.5

    @property
    def heads(self) -> Heads:
        return Heads(self.n_heads, self.n_kv_heads or self.n_heads, self.scale)

    @property
    def looped_blocks(self) -> tuple[int, ...]:
        """Returns the blocks that loop more than once, for which the options about loops are."""
        return tuple(i for i, block in enumerate(self.plan.blocks) if block.loops > 1)

    @property
    def has_exit_gate(self) -> bool:
        return self.exit_gate and self.plan.loopable in self.looped_blocks

    def branch_factor(self, block: int) -> float:
        """Returns the factor on what the layers of a block add to the residual stream."""
        layers, loops = self.plan.blocks[block].layers, self.plan.blocks[block].loops
        return 1 / (loops * math.sqrt(layers)) if self.residual_scaling and loops > 1 else 1.0

    def parameters(self) -> int:
        """Returns how many numbers are learned."""
        embedding = self.vocab_size * self.d_model
        positions = self.max_len * self.d_model if self.positions == "learned" else 0
        readout = 0 if self.tied_readout else embedding
        layers = self.plan.distinct_layers * self._layer_parameters()
        loops = sum(self._loop_entry_parameters(self.plan.blocks[block].loops) for block in self.looped_blocks)
        gate = self.d_model + 1 if self.has_exit_gate else 0
        return embedding + positions + layers + loops + self._norm() + gate + readout

    def memory(self) -> int:
        """Returns the bytes of the float32 weights and of the rope, which is computed in float64."""
        return 4 * self.parameters() + (16 * self.max_len * self.width_of_head if self.positions == "rope" else 0)

    def _layer_parameters(self) -> int:
        queries, keys_and_values = self.n_heads * self.width_of_head, 2 * self.heads.keys * self.width_of_head
        up = 2 * self.d_ff if self.feed_forward == "swiglu" else self.d_ff
        weights = self.d_model * (2 * queries + keys_and_values + up + self.d_ff)
        of_feed_forward = up + self.d_model
        of_attention = queries + keys_and_values + self.d_model
        biases = {"none": 0, "feed_forward": of_feed_forward, "all": of_feed_forward + of_attention}
        norms = {"pre": 2, "sandwich": 4, "none": 0}[self.norm_placement]
        of_heads = 2 * self.width_of_head if self.qk_norm else 0
        return weights + biases[self.biases] + norms * self._norm() + of_heads

    def _loop_entry_parameters(self, loops: int) -> int:
        norm = self._norm() if self.loop_norm == "own" else 0
        injection = 2 * self.d_model**2 if self.injection == "matrix" else 0
        return norm + injection + (loops * self.d_model if self.loop_embedding else 0)

    def _norm(self) -> int:
        if self.norm_placement == "none":
            return 0
        return self.d_model * (2 if self.norm == "layer" and self.biases == "all" else 1)

    def flops(self, length: int) -> int:
        """Returns the matrix-product operations of one forward pass over ``length`` tokens. A multiply-add is two;
        attention counts over the full square, as is usual; the backward pass takes twice as many again. The exit gate
        is not part of a forward pass."""
        attention, keys_and_values = self.n_heads * self.width_of_head, 2 * self.heads.keys * self.width_of_head
        feed_forward = (3 if self.feed_forward == "swiglu" else 2) * self.d_model * self.d_ff
        per_token = 2 * (self.d_model * (2 * attention + keys_and_values) + feed_forward)
        scores_and_mix = 4 * length * attention
        injections = sum(self.plan.blocks[block].loops - 1 for block in self.looped_blocks)
        injected = 4 * self.d_model**2 * injections if self.injection == "matrix" else 0
        readout = 2 * self.d_model * self.vocab_size
        return length * (self.plan.depth * (per_token + scores_and_mix) + injected + readout)


@cache
def _choices() -> dict[str, tuple[str, ...]]:
    """Returns the allowed values of the fields that have a few."""
    return {name: get_args(kind) for name, kind in get_type_hints(ModelConfig).items() if get_origin(kind) is Literal}
