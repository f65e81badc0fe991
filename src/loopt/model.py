"""The looped transformer, in the order a token travels: embed, loop, read out.

>>> config = ModelConfig(plan="1x6", d_model=128, n_heads=8, d_ff=512, vocab_size=5, max_len=256)
>>> model = LoopedTransformer(config)
>>> model(torch.tensor([[0, 1, 2, 3]])).shape, model(torch.tensor([[0, 1, 2, 3]]), loops=12).shape
(torch.Size([1, 4, 5]), torch.Size([1, 4, 5]))

Sizes in the shape comments: B batch, T tokens, D d_model, F d_ff, V vocab_size.

Sequences of different lengths can be packed end to end, as one [N, D] with N tokens in all: only attention looks at
where a sequence begins and ends, and its ``Context`` says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init
from torch.utils.checkpoint import checkpoint

from loopt.attention import Attend, Attention, Context, Packing, attend, fastest_attention, rotations
from loopt.errors import InputError, require
from loopt.limits import require_affordable
from loopt.model_config import ModelConfig as ModelConfig
from loopt.plan import LoopPlan, Pass

Caches = Mapping[tuple[int, int], Any] | None
"""What the attention of each run of a layer keeps, by (layer, loop)."""

ONE_HOT_VOCABULARY = 256
"""Up to this vocabulary a GPU looks embeddings up by a product with one-hot rows, whose gradient repeats to the bit."""


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
        _require_memory(config)
        self.config = config
        self.attend: Attend = attend
        self.codec: Any = None  # what turns text into its tokens and back, where it was loaded from a run
        self.token_embedding = nn.Embedding(config.vocab_size, config.d_model)
        if config.positions == "learned":
            self.position_embedding = nn.Embedding(config.max_len, config.d_model)
        self.final_norm = make_norm(config)
        self.loop = Loop(config, self.final_norm)
        if not config.tied_readout:
            self.readout_projection = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.has_exit_gate:
            # without drawing weights, which would change the starting weights of all else
            self.exit_gate = skip_init(nn.Linear, config.d_model, 1, device=torch.get_default_device())
        self.reset_parameters()

    def forward(self, ids: Tensor, loops: int | None = None) -> Tensor:
        return self.readout(self.iterate(self.embed(ids), loops))  # [B, T] -> [B, T, V]

    def embed(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """Embeds tokens [B, T] as [B, T, D]. They are at the first positions, unless positions [B, T] are given, which
        are trusted to be below max_len."""
        longest = self.config.max_len
        if ids.dim() != 2 or not 1 <= ids.shape[1] <= longest:
            raise InputError(f"ids of shape {list(ids.shape)}: allowed is [batch, length] with length 1 to {longest}")
        one_hot = ids.is_cuda and self.config.vocab_size <= ONE_HOT_VOCABULARY
        x = look_up(ids, self.token_embedding.weight) if one_hot else self.token_embedding(ids)  # [B, T] -> [B, T, D]
        if self.config.positions == "learned":
            of_positions = self.position_embedding.weight
            x = x + (of_positions[: ids.shape[1]] if positions is None else of_positions[positions])
        return x

    def context(self, packing: Packing, positions: Tensor | None = None, attend: Attend | None = None) -> Context:
        """Returns the context of sequences at their first positions, or at positions [B, T]; with the model's own
        attention unless another is given."""
        rope = None if self.loop.cos is None else (self.loop.cos, self.loop.sin)
        if rope is not None and positions is not None:
            rope = (rope[0][positions], rope[1][positions])  # [B, T, E]
        return Context(packing, rope, attend or self.attend)

    def iterate(
        self, x: Tensor, loops: int | None = None, context: Context | None = None, record: list[Tensor] | None = None
    ) -> Tensor:
        """Runs the plan, its loopable block ``loops`` times, on a batch [B, T, D], or on packed sequences [N, D], whose
        context has to be given. ``record`` gets the state after each pass, without its gradient."""
        passes = self.plan_with(loops).passes
        return self.loop(x, passes, context or self.context(((x.shape[0], x.shape[1]),)), record)

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

    def exit_logit(self, x: Tensor) -> Tensor:
        """Reads the exit gate after a loop, [B, T, D] -> [B, T]: the log-odds that further loops keep the answer."""
        return self.exit_gate(self.final_norm(x)).squeeze(-1)

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
        for entry in self.loop.entries.values():
            if entry.injection is not None:
                entry.injection.weight.copy_(torch.eye(self.config.d_model).repeat(1, 2))  # type: ignore[operator, union-attr]


def empty_model(config: ModelConfig) -> LoopedTransformer:
    """Returns a model for weights to be loaded into, which holds no numbers of its own yet: drawing random ones takes
    ten seconds for a billion."""
    _require_memory(config)
    with torch.device("meta"):
        model = LoopedTransformer(config)
    model.to_empty(device=torch.get_default_device())
    model.loop.set_rope(config)
    return model


def _require_memory(config: ModelConfig) -> None:
    if torch.get_default_device().type == "cpu":  # on the meta device weights take no memory
        require_affordable(f"a model of {config.parameters():,} parameters", memory=config.memory())


class Loop(nn.Module):
    """All the layers, and the one place where they are looped: a module, so that sharding gathers it once for all
    loops."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig, final_norm: nn.Module) -> None:
        super().__init__()
        factors = [config.branch_factor(i) for i, block in enumerate(config.plan.blocks) for _ in range(block.layers)]
        self.layers = nn.ModuleList(Layer(config, factor) for factor in factors)
        has_entry = config.loop_norm != "none" or config.injection != "none" or config.loop_embedding
        blocks = config.looped_blocks if has_entry else ()
        self.entries = nn.ModuleDict({str(block): LoopEntry(config, block, final_norm) for block in blocks})
        self.recompute = False  # in the backward pass, all that happened within a pass: slower, with much less memory
        self.set_rope(config)

    def set_rope(self, config: ModelConfig) -> None:
        """Sets the angles of rotary positions, which are no weights."""
        rope = config.positions == "rope"
        cos, sin = rotations(config.max_len, config.width_of_head, config.rope_base) if rope else (None, None)
        self.register_buffer("cos", cos, persistent=False)  # [max_len, E]
        self.register_buffer("sin", sin, persistent=False)

    def forward(
        self, x: Tensor, passes: Sequence[Pass], context: Context, record: list[Tensor] | None = None
    ) -> Tensor:
        """Runs all passes. Training uses this alone, so that hooks, compilation and graph capture see one call."""
        for state in self.walk(x, passes, context):
            x = state
            if record is not None:
                record.append(x.detach())
        return x

    def walk(
        self, x: Tensor, passes: Sequence[Pass], context: Context, caches: Caches = None, entered: Tensor | None = None
    ) -> Iterator[Tensor]:
        """Runs the passes one by one and yields the state after each, [B, T, D] or [N, D]. ``entered`` is what
        went into the first loop of the block, for passes that begin with a later one."""
        for one_pass in passes:
            if one_pass.loop == 0:
                entered = x
            if self.recompute and torch.is_grad_enabled():
                arguments = (x, entered, one_pass, context, caches)
                x = checkpoint(self._run_pass, *arguments, use_reentrant=False, preserve_rng_state=False)
            else:
                x = self._run_pass(x, entered, one_pass, context, caches)
            yield x

    def _run_pass(self, x: Tensor, entered: Tensor | None, one_pass: Pass, context: Context, caches: Caches) -> Tensor:
        entry = str(one_pass.block)
        if entry in self.entries:
            x = self.entries[entry](x, entered, one_pass.loop)
        with fastest_attention(x.device):  # in here, so that a pass that is computed again chooses the same
            for layer in one_pass.layers:
                if caches is not None:
                    context = context._replace(cache=caches[layer, one_pass.loop])
                run = context.run_layer
                x = self.layers[layer](x, context) if run is None else run(self.layers[layer], x, context)
        return x


class LoopEntry(nn.Module):
    """What happens to the state before each loop of a block: norm, injection, embedding."""

    def __init__(self, config: ModelConfig, block: int, final_norm: nn.Module) -> None:
        super().__init__()
        self.norm = make_norm(config) if config.loop_norm == "own" else None
        self.final_norm = (final_norm,) if config.loop_norm == "final" else ()  # not registered twice
        self.added = config.injection == "added"
        matrix = config.injection == "matrix"
        self.injection = nn.Linear(2 * config.d_model, config.d_model, bias=False) if matrix else None
        loops = config.plan.blocks[block].loops
        self.embedding = nn.Embedding(loops, config.d_model) if config.loop_embedding else None

    def forward(self, x: Tensor, entered: Tensor | None, loop: int) -> Tensor:
        if loop > 0:
            for norm in (self.norm, *self.final_norm):
                x = x if norm is None else norm(x)
            if self.added or self.injection is not None:
                assert entered is not None, "a block's later loops need what went into its first one"
                x = x + entered if self.injection is None else self.injection(torch.cat([x, entered], dim=-1))
        if self.embedding is not None:
            x = x + self.embedding.weight[min(loop, self.embedding.num_embeddings - 1)]
        return x


class Layer(nn.Module):
    """Attention, then feed-forward, each added to what came in, times ``branch_factor``."""

    def __init__(self, config: ModelConfig, branch_factor: float = 1.0) -> None:
        super().__init__()
        self.branch_factor = branch_factor
        bias = config.biases == "all"
        self.attention_norm = make_norm(config)
        self.attention = Attention(
            config.d_model, config.heads, config.width_of_head, bias=bias, qk_norm=config.qk_norm
        )
        self.feed_forward_norm = make_norm(config)
        self.feed_forward = FeedForward(config)
        sandwich = config.norm_placement == "sandwich"
        self.attention_out_norm = make_norm(config) if sandwich else None
        self.feed_forward_out_norm = make_norm(config) if sandwich else None

    def forward(self, x: Tensor, context: Context) -> Tensor:
        x = self._add(x, self.attention(self.attention_norm(x), context), self.attention_out_norm)
        return self._add(x, self.feed_forward(self.feed_forward_norm(x)), self.feed_forward_out_norm)

    def _add(self, x: Tensor, branch: Tensor, norm: nn.Module | None) -> Tensor:
        return torch.add(x, branch if norm is None else norm(branch), alpha=self.branch_factor)


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


def make_norm(config: ModelConfig) -> nn.Module:
    """Returns the norm that a config asks for; without one, what changes nothing."""
    if config.norm_placement == "none":
        return nn.Identity()
    if config.norm == "layer":
        return nn.LayerNorm(config.d_model, eps=1e-6, bias=config.biases == "all")
    return nn.RMSNorm(config.d_model, eps=1e-6)
