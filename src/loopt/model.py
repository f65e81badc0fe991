"""The looped transformer, in the order a token travels: embed, loop, read out.

>>> config = ModelConfig(plan="1x6", d_model=128, n_heads=8, d_ff=512, vocab_size=5, max_len=256)
>>> model = LoopedTransformer(config)
>>> model(torch.tensor([[0, 1, 2, 3]])).shape, model(torch.tensor([[0, 1, 2, 3]]), loops=12).shape
(torch.Size([1, 4, 5]), torch.Size([1, 4, 5]))

Sizes in the shape comments: B batch, T tokens, D d_model, H heads, E head_dim, F d_ff, V vocab_size.

Sequences of different lengths can be packed end to end, as one [N, D] with N tokens in all: only attention looks at
where a sequence begins and ends, and its ``Context`` says so.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from loopt.errors import InputError, require
from loopt.limits import LARGEST, require_affordable
from loopt.plan import LoopPlan, Pass

Positions = Literal["rope", "learned", "none"]
Norm = Literal["rms", "layer"]
NormPlacement = Literal["pre", "sandwich", "none"]
FeedForwardKind = Literal["gelu", "relu", "swiglu"]
Biases = Literal["none", "feed_forward", "all"]
CHOICES = {
    "positions": Positions,
    "norm": Norm,
    "norm_placement": NormPlacement,
    "feed_forward": FeedForwardKind,
    "biases": Biases,
}
Packing = tuple[tuple[int, int], ...]
"""How many sequences of how many tokens lie end to end: ((205, 13), (205, 21))."""
Rope = tuple[Tensor, Tensor]
"""Cosines and signed sines of the rotary positions: [positions, E] each."""


class Context(NamedTuple):
    """What a layer needs besides its input."""

    packing: Packing
    """Which sequences the input holds."""
    rope: Rope | None
    """The rope of a sequence's positions, from its first token on."""
    attend: Attend
    """Which attention to use: a training kernel, prefill, or one query against a cache."""
    cache: Any = None
    """What this layer's attention keeps in this loop, such as keys and values; the walker puts it there."""


Attend = Callable[[Tensor, Context, float], Tensor]
"""[N, 3, H, E] queries, keys and values, a context, and the factor on the scores -> [N, H, E]."""
SplitAndRotate = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]

ONE_HOT_VOCABULARY = 256
"""Up to this vocabulary a GPU looks embeddings up by a product with one-hot rows, whose gradient repeats to the bit."""


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

    def __post_init__(self) -> None:
        if isinstance(self.plan, str):
            object.__setattr__(self, "plan", LoopPlan.parse(self.plan))
        for name in ("d_model", "n_heads", "d_ff"):
            self._require(1 <= getattr(self, name) <= LARGEST, name, f"1 to {LARGEST}")
        for name in ("vocab_size", "max_len"):
            allowed = f"1 to {LARGEST} (0 when training: the source's)"
            self._require(0 <= getattr(self, name) <= LARGEST, name, allowed)
        for name, kind in CHOICES.items():
            self._require(getattr(self, name) in get_args(kind), name, " | ".join(get_args(kind)))
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

    def _require(self, holds: bool, name: str, allowed: str) -> None:
        require(holds, f"model.{name}", getattr(self, name), allowed)

    @property
    def width_of_head(self) -> int:
        return self.head_dim if self.head_dim is not None else self.d_model // self.n_heads

    @property
    def scale(self) -> float:
        return self.attention_scale if self.attention_scale is not None else self.width_of_head**-0.5

    def parameters(self) -> int:
        """Returns how many numbers are learned."""
        embedding = self.vocab_size * self.d_model
        positions = self.max_len * self.d_model if self.positions == "learned" else 0
        readout = 0 if self.tied_readout else embedding
        return embedding + positions + self.plan.distinct_layers * self._layer_parameters() + self._norm() + readout

    def memory(self) -> int:
        """Returns the bytes of the float32 weights and of the rope, which is computed in float64."""
        return 4 * self.parameters() + (16 * self.max_len * self.width_of_head if self.positions == "rope" else 0)

    def _layer_parameters(self) -> int:
        attention = self.n_heads * self.width_of_head
        up = 2 * self.d_ff if self.feed_forward == "swiglu" else self.d_ff
        weights = self.d_model * (4 * attention + up + self.d_ff)
        of_feed_forward = up + self.d_model
        biases = {"none": 0, "feed_forward": of_feed_forward, "all": of_feed_forward + 3 * attention + self.d_model}
        norms = {"pre": 2, "sandwich": 4, "none": 0}[self.norm_placement]
        return weights + biases[self.biases] + norms * self._norm()

    def _norm(self) -> int:
        if self.norm_placement == "none":
            return 0
        return self.d_model * (2 if self.norm == "layer" and self.biases == "all" else 1)

    def flops(self, length: int) -> int:
        """Returns the matrix-product operations of one forward pass over ``length`` tokens. A multiply-add is two;
        attention counts over the full square, as is usual; the backward pass takes twice as many again."""
        attention = self.n_heads * self.width_of_head
        feed_forward = (3 if self.feed_forward == "swiglu" else 2) * self.d_model * self.d_ff
        per_token = 2 * (4 * self.d_model * attention + feed_forward)
        scores_and_mix = 4 * length * attention
        return length * (self.plan.depth * (per_token + scores_and_mix) + 2 * self.d_model * self.vocab_size)


@dataclass(frozen=True)
class Thought:
    """What the model would read out if its loopable block ran ``loops`` times."""

    loops: int
    state: Tensor  # [B, T, D], for ``readout``


class LoopedTransformer(nn.Module):
    """A causal decoder that runs the layers of its plan.

    A (k⊗L) model read out after its l-th loop is the (k⊗l) model, so ``forward(ids, loops=n)`` runs any number of
    loops and ``thoughts`` shows what each would answer.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        for field in ("vocab_size", "max_len"):
            require(getattr(config, field) >= 1, f"model.{field}", getattr(config, field), "1 or more")
        if torch.get_default_device().type == "cpu":  # on the meta device weights take no memory
            require_affordable(f"a model of {config.parameters():,} parameters", memory=config.memory())
        self.config = config
        self.attend: Attend = attend
        self.token_embedding = nn.Embedding(config.vocab_size, config.d_model)
        if config.positions == "learned":
            self.position_embedding = nn.Embedding(config.max_len, config.d_model)
        self.loop = Loop(config)
        self.final_norm = _make_norm(config)
        if not config.tied_readout:
            self.readout_projection = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.reset_parameters()

    def forward(self, ids: Tensor, loops: int | None = None) -> Tensor:
        return self.readout(self.iterate(self.embed(ids), loops))  # [B, T] -> [B, T, V]

    def embed(self, ids: Tensor, start: int = 0) -> Tensor:
        """Embeds tokens [B, T], the first of which are at position ``start``, as [B, T, D]."""
        longest = self.config.max_len - start
        if ids.dim() != 2 or not 1 <= ids.shape[1] <= longest:
            raise InputError(f"ids of shape {list(ids.shape)}: allowed is [batch, length] with length 1 to {longest}")
        one_hot = ids.is_cuda and self.config.vocab_size <= ONE_HOT_VOCABULARY
        x = look_up(ids, self.token_embedding.weight) if one_hot else self.token_embedding(ids)  # [B, T] -> [B, T, D]
        if self.config.positions == "learned":
            x = x + self.position_embedding.weight[start : start + ids.shape[1]]
        return x

    def context(self, packing: Packing, start: int = 0, attend: Attend | None = None) -> Context:
        """Returns the context of sequences that begin at position ``start``; the model's own attention unless given."""
        rope = None if self.loop.cos is None else (self.loop.cos, self.loop.sin)
        if rope is not None and start > 0:
            rope = (rope[0][start:], rope[1][start:])
        return Context(packing, rope, attend or self.attend)

    def iterate(self, x: Tensor, loops: int | None = None, context: Context | None = None) -> Tensor:
        """Runs the plan, its loopable block ``loops`` times, on a batch [B, T, D], or on packed sequences [N, D], whose
        context has to be given."""
        passes = self.plan_with(loops).passes
        return self.loop(x, passes, context or self.context(((x.shape[0], x.shape[1]),)))

    def walk(self, x: Tensor, loops: int | None = None, context: Context | None = None) -> Iterator[Tensor]:
        """Yields the state after every pass of the plan, where ``iterate`` returns the last one alone."""
        passes = self.plan_with(loops).passes
        return self.loop.walk(x, passes, context or self.context(((x.shape[0], x.shape[1]),)))

    def plan_with(self, loops: int | None) -> LoopPlan:
        """Returns the plan with the loopable block run ``loops`` times; None: as often as the config says."""
        return self.config.plan if loops is None else self.config.plan.with_loops(loops)

    def readout(self, x: Tensor) -> Tensor:
        """Reads the logits out of the last state, [B, T, D] -> [B, T, V]."""
        return F.linear(self.final_norm(x), self.readout_weight)

    @property
    def readout_weight(self) -> Tensor:
        """Returns the matrix that logits are read out with, [V, D]."""
        return self.token_embedding.weight if self.config.tied_readout else self.readout_projection.weight

    def thoughts(self, ids: Tensor, loops: int | None = None) -> list[Thought]:
        """Returns one thought for each loop of the loopable block: number l, counted from 1, is what the model with
        l loops would say, since the blocks behind it run from each of these states."""
        before, looped, after = self.plan_with(loops).around_loop()
        x = self.embed(ids)
        context = self.context(((x.shape[0], x.shape[1]),))
        x = self.loop(x, before, context)
        states = self.loop.walk(x, looped, context)
        return [Thought(count, self.loop(state, after, context)) for count, state in enumerate(states, start=1)]

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws every matrix with deviation 1/sqrt(its inputs). What writes into the residual stream is divided by
        sqrt(2·depth) as well, with the depth that runs, not the layers that exist: each loop writes again."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=self.config.d_model**-0.5)
        for layer in self.loop.layers:
            for projection in (layer.attention.output, layer.feed_forward.down):  # type: ignore[union-attr]
                projection.weight /= math.sqrt(2 * self.config.plan.depth)  # type: ignore[union-attr, operator]


class Loop(nn.Module):
    """All the layers, and the one place where they are looped: a module, so that sharding gathers it once for all
    loops."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.plan.distinct_layers))
        self.recompute = False  # in the backward pass, all that happened within a pass: slower, with much less memory
        cos, sin = _rotations(config) if config.positions == "rope" else (None, None)
        self.register_buffer("cos", cos, persistent=False)  # [max_len, E]
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x: Tensor, passes: Sequence[Pass], context: Context) -> Tensor:
        """Runs all passes. Training uses this alone, so that hooks, compilation and graph capture see one call."""
        for state in self.walk(x, passes, context):
            x = state
        return x

    def walk(
        self,
        x: Tensor,
        passes: Sequence[Pass],
        context: Context,
        caches: Mapping[tuple[int, int], Any] | None = None,
    ) -> Iterator[Tensor]:
        """Runs the passes one by one and yields the state after each, [B, T, D] or [N, D]. ``caches`` has what the
        attention of each run of a layer keeps, by (layer, loop)."""
        for one_pass in passes:
            if self.recompute and torch.is_grad_enabled():
                arguments = (x, one_pass, context, caches)
                x = checkpoint(self._run_pass, *arguments, use_reentrant=False, preserve_rng_state=False)
            else:
                x = self._run_pass(x, one_pass, context, caches)
            yield x

    def _run_pass(
        self, x: Tensor, one_pass: Pass, context: Context, caches: Mapping[tuple[int, int], Any] | None
    ) -> Tensor:
        with fastest_attention(x.device):  # in here, so that a pass that is computed again chooses the same
            for layer in one_pass.layers:
                if caches is not None:
                    context = context._replace(cache=caches[layer, one_pass.loop])
                x = self.layers[layer](x, context)
        return x


class Layer(nn.Module):
    """Attention, then feed-forward, each added to what came in."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = _make_norm(config)
        self.attention = Attention(config)
        self.feed_forward_norm = _make_norm(config)
        self.feed_forward = FeedForward(config)
        sandwich = config.norm_placement == "sandwich"
        self.attention_out_norm = _make_norm(config) if sandwich else nn.Identity()
        self.feed_forward_out_norm = _make_norm(config) if sandwich else nn.Identity()

    def forward(self, x: Tensor, context: Context) -> Tensor:
        x = x + self.attention_out_norm(self.attention(self.attention_norm(x), context))
        return x + self.feed_forward_out_norm(self.feed_forward(self.feed_forward_norm(x)))


class Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_heads, self.head_dim, self.scale = config.n_heads, config.width_of_head, config.scale
        width = self.n_heads * self.head_dim
        self.qkv = nn.Linear(config.d_model, 3 * width, bias=config.biases == "all")  # rows: queries, keys, values
        self.output = nn.Linear(width, config.d_model, bias=config.biases == "all")

    def forward(self, x: Tensor, context: Context) -> Tensor:
        qkv = self.qkv(x).view(-1, 3, self.n_heads, self.head_dim)  # [B, T, D] or [N, D] -> [N, 3, H, E]
        mixed = context.attend(qkv, context, self.scale)  # [N, H, E]
        return self.output(mixed.reshape(*x.shape[:-1], -1))  # [N, H, E] -> as x


def attend(qkv: Tensor, context: Context, scale: float) -> Tensor:
    """Has every head's queries look at the keys of their sequence up to their own: [N, 3, H, E] -> [N, H, E]."""
    return attend_with(split_and_rotate, qkv, context, scale)


def attend_with(split: SplitAndRotate, qkv: Tensor, context: Context, scale: float) -> Tensor:
    """Does what ``attend`` does, with ``split`` to prepare queries and keys that have rotary positions."""
    mixed = []
    for piece, shape in zip(
        qkv.split([count * length for count, length in context.packing]), context.packing, strict=True
    ):
        piece = piece.unflatten(0, shape)  # [B * T, 3, H, E] -> [B, T, 3, H, E]
        q, k, v = piece.unbind(2) if context.rope is None else split(piece, *context.rope)  # [B, T, H, E] each
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # [B, T, H, E] -> [B, H, T, E]
        one = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        mixed.append(one.transpose(1, 2).flatten(0, 1))  # [B, H, T, E] -> [B * T, H, E]
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def split_and_rotate(qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Splits fused QKV [B, T, 3, H, E] and applies rotary positions to queries and keys: [B, T, H, E] each."""
    qk, v = qkv.split((2, 1), dim=2)  # not by indexing, whose gradient is a sum of padded copies
    q, k = _rotate(qk, cos[: qkv.shape[1]], sin[: qkv.shape[1]]).unbind(2)
    # v as a copy: kept for the backward pass, a view of it would keep the unrotated queries and keys as well
    return q, k, v.squeeze(2).clone()


class FeedForward(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.kind = config.feed_forward
        bias = config.biases != "none"
        self.up = nn.Linear(config.d_model, config.d_ff, bias=bias)
        if self.kind == "swiglu":
            self.gate = nn.Linear(config.d_model, config.d_ff, bias=bias)
        self.down = nn.Linear(config.d_ff, config.d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x)  # [B, T, D] -> [B, T, F]
        if self.kind == "swiglu":
            hidden = F.silu(self.gate(x)) * hidden
        else:
            hidden = F.relu(hidden) if self.kind == "relu" else F.gelu(hidden)
        return self.down(hidden)  # [B, T, F] -> [B, T, D]


def look_up(ids: Tensor, table: Tensor) -> Tensor:
    """Returns the rows of the table [V, D] that ids [B, T] name, [B, T, D], by a product with one-hot rows: on a GPU
    the gradient of ``F.embedding`` adds up in another order every time, that of a product does not."""
    one_hot = (ids[..., None] == torch.arange(len(table), device=ids.device)).to(table.dtype)  # [B, T, V]
    with torch.autocast(ids.device.type, enabled=False):
        return one_hot @ table


def _make_norm(config: ModelConfig) -> nn.Module:
    if config.norm_placement == "none":
        return nn.Identity()
    if config.norm == "layer":
        return nn.LayerNorm(config.d_model, eps=1e-6, bias=config.biases == "all")
    return nn.RMSNorm(config.d_model, eps=1e-6)


def _rotations(config: ModelConfig) -> Rope:
    """Returns cosine and signed sine of position · frequency, what ``_rotate`` needs: [max_len, E] each."""
    pairs = config.width_of_head // 2
    frequencies = config.rope_base ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    angles = torch.outer(torch.arange(config.max_len, dtype=torch.float64), frequencies)  # [max_len, E/2]
    cos, sin = angles.cos().float(), angles.sin().float()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates coordinates e and e + E/2 of every query and key by their position's angle."""
    cos, sin = cos[:, None, None], sin[:, None, None]  # [T, E] -> [T, 1, 1, E], against x [B, T, 2, H, E]
    other = x.roll(x.shape[-1] // 2, dims=-1)  # the other coordinate of each pair
    return (x * cos + other * sin).to(x.dtype)


def fastest_attention(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Has CUDA try cuDNN's kernel first, then flash, then what works anywhere."""
    if device.type != "cuda":
        return contextlib.nullcontext()
    order = [
        SDPBackend.CUDNN_ATTENTION,
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.MATH,
    ]
    return sdpa_kernel(order, set_priority=True)
