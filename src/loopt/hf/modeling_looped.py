"""The looped model in Transformers. An exported model carries this file.

The layers and their loop are those of ``loopt.model``. What is Transformers' here: its caches, masks, attention
functions and outputs. Each step of the plan has a place in the cache, and a module without parameters that says which:
serving engines look attention up by ``layer_idx``, which one shared layer cannot tell for all its loops.

Sizes in the shape comments: B batch, T tokens, S tokens with those in the cache, D d_model, H heads, K heads of keys
and values, E head_dim, V vocab_size.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache
from transformers.generation import GenerationMixin
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from loopt.attention import Context, Heads, rotations, split_and_rotate
from loopt.errors import InputError, require
from loopt.hf.carried_code import AUTO_MAP, write_code
from loopt.hf.configuration_looped import LoopedConfig
from loopt.model import Layer, Loop, make_norm
from loopt.plan import Pass

OF_PUSHES = ("repo_id", "commit_message", "private", "create_pr")
"""What ``save_pretrained`` takes for the hub alone."""


class AttentionSlot(nn.Module):
    """The attention of one step of the plan: a place in the cache, and no parameters."""

    is_causal = True

    def __init__(self, config: LoopedConfig, layer_idx: int, heads: Heads) -> None:
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.num_key_value_groups = heads.queries // heads.keys
        self.scaling = heads.scale
        self.head_dim = config.head_dim

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Any, past_key_values: Cache | None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Mixes values, queries [B, H, T, E] against keys [B, K, S, E], to [B, T, H, E]; with the weights [B, H, T, S]
        where the attention function returns them. Paged attention has its own cache among ``kwargs``."""
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        interface: Callable[..., Any] = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention
        )
        return interface(self, q, k, v, mask, dropout=0.0, scaling=self.scaling, **kwargs)


class LayerStep(GradientCheckpointingLayer):
    """One step of the plan: a run of one of the layers, which has no parameters of its own."""

    def __init__(self, config: LoopedConfig, layer_idx: int, heads: Heads) -> None:
        super().__init__()
        self.attention = AttentionSlot(config, layer_idx, heads)

    def forward(self, x: Tensor, layer: Layer, context: Context) -> Tensor:
        return layer(x, context)


class StepInputs(NamedTuple):
    """What a step gets besides its input, and its attention besides queries, keys and values."""

    step: LayerStep
    mask: Any
    cache: Cache | None
    kwargs: dict[str, Any]


def attend(qkv: Tensor, context: Context, heads: Heads) -> Tensor:
    """Does what ``loopt.attention.attend`` does, [B * T, H + 2K, E] -> [B * T, H, E], by Transformers' means."""
    given: StepInputs = context.cache
    q, k, v = split_and_rotate(qkv.unflatten(0, context.packing[0]), heads, context.rope)  # [B, T, H, E] …
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # [B, T, H, E] -> [B, H, T, E]
    mixed, _ = given.step.attention(q, k, v, given.mask, given.cache, **given.kwargs)  # [B, T, H, E]
    return mixed.flatten(0, 1)


def run_layer(layer: Layer, x: Tensor, context: Context) -> Tensor:
    """Runs a layer as a step of the plan, which may compute it again in the backward pass."""
    given: StepInputs = context.cache
    return given.step(x, layer, context)


def eager_attention(
    module: AttentionSlot, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **_: Any
) -> tuple[Tensor, Tensor]:
    """Attention written out, which is asked for where its weights are wanted."""
    key, value = (t.repeat_interleave(module.num_key_value_groups, dim=1) for t in (key, value))  # [B, H, S, E]
    scores = query @ key.transpose(2, 3) * scaling  # [B, H, T, S]
    if mask is not None:
        scores = scores + mask
    weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class LoopedPreTrainedModel(PreTrainedModel):
    config: LoopedConfig
    config_class = LoopedConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules: Sequence[str] = ["Layer", "LoopEntry"]
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012 (Transformers takes a list)
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs = {"hidden_states": Layer, "attentions": AttentionSlot}  # noqa: RUF012

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draws weights as ``LoopedTransformer.reset_parameters`` does, and fills the tables of the rope."""
        shape = self.config.model_config()
        if isinstance(module, nn.Linear):
            if getattr(module, "starts_as_sum", False):
                init.copy_(module.weight, torch.eye(shape.d_model).repeat(1, 2))
            else:
                factor = 2 * shape.plan.depth if getattr(module, "writes_to_residual", False) else 1
                init.normal_(module.weight, std=(factor * module.in_features) ** -0.5)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=shape.d_model**-0.5)
        elif isinstance(module, Loop):
            if module.cos is not None:
                cos, sin = rotations(shape.max_len, shape.width_of_head, shape.rope_base)
                init.copy_(module.cos, cos)
                init.copy_(module.sin, sin)
        else:
            super()._init_weights(module)

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], *args: Any, push_to_hub: bool = False, **kwargs: Any
    ) -> None:
        """Saves the model with its code, so that it loads where loopt is not installed."""
        for_the_hub = {name: kwargs.pop(name) for name in OF_PUSHES if name in kwargs}
        self.config.auto_map = AUTO_MAP
        super().save_pretrained(save_directory, *args, **kwargs)
        write_code(save_directory)
        if push_to_hub:  # afterwards, with the code
            repo_id = for_the_hub.pop("repo_id", Path(save_directory).name)
            self.push_to_hub(repo_id, token=kwargs.get("token"), **for_the_hub)


class LoopedModel(LoopedPreTrainedModel):
    """The looped model without its readout."""

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__(config)
        shape = config.model_config()
        self.shape = shape
        self.token_embedding = nn.Embedding(shape.vocab_size, shape.d_model)
        if shape.positions == "learned":
            self.position_embedding = nn.Embedding(shape.max_len, shape.d_model)
        self.final_norm = make_norm(shape)
        self.loop = Loop(shape, self.final_norm)
        if shape.has_exit_gate:
            self.exit_gate = nn.Linear(shape.d_model, 1)
        self.gradient_checkpointing = False
        self._mark_starting_weights()
        self.make_steps()
        self.post_init()

    def _mark_starting_weights(self) -> None:
        """Tells ``_init_weights``, which sees one matrix at a time and each once, which start in a way of their own."""
        for layer in self.loop.layers:
            for projection in (layer.attention.output, layer.feed_forward.down):  # type: ignore[union-attr]
                projection.writes_to_residual = True  # type: ignore[union-attr]
        for entry in self.loop.entries.values():
            if entry.injection is not None:
                entry.injection.starts_as_sum = True  # type: ignore[union-attr]

    def make_steps(self) -> None:
        """Gives every step of the plan that runs its place in the cache."""
        self.plan = self.config.running_plan
        self.config.num_hidden_layers = self.plan.depth  # also where `from_pretrained(..., loops=5)` changed the loops
        heads, before = self.shape.heads, self._modules.get("steps")
        self.steps = nn.ModuleList(LayerStep(self.config, place, heads) for place in range(self.plan.depth))
        self.steps.train(self.training)
        if before is not None and before[0].gradient_checkpointing:
            self._set_gradient_checkpointing(True, before[0]._gradient_checkpointing_func)
        self._output_capturing_hooks_installed = False  # the new modules have none yet

    def set_loops(self, loops: int) -> None:
        """Has the loopable block run ``loops`` times from now on. Caches made before have other places."""
        self.config.running_plan.with_loops(loops)  # refuses what cannot be, before anything changes
        self.config.loops = loops
        self.make_steps()

    def get_input_embeddings(self) -> nn.Module:
        return self.token_embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.token_embedding = value  # type: ignore[assignment]

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("You must specify exactly one of input_ids or inputs_embeds")
        x = self.token_embedding(input_ids) if inputs_embeds is None else inputs_embeds  # [B, T, D]
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        if position_ids is None:
            seen = past_key_values.get_seq_length() if past_key_values is not None else 0
            position_ids = (torch.arange(x.shape[1], device=x.device) + seen).unsqueeze(0)  # [1, T]
        if self.shape.positions == "learned":
            x = x + self.position_embedding(position_ids)
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=x,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            position_ids=position_ids,
        )
        kwargs["position_ids"] = position_ids  # flash attention tells packed sequences apart by them
        x = self._run(x, mask, position_ids, past_key_values, kwargs)
        return BaseModelOutputWithPast(last_hidden_state=self.final_norm(x), past_key_values=past_key_values)

    def _run(
        self, x: Tensor, mask: Any, positions: Tensor, cache: Cache | None, kwargs: dict[str, Any]
    ) -> Tensor:  # [B, T, D] -> [B, T, D]
        rope = None
        if self.loop.cos is not None:
            rope = (self.loop.cos[positions], self.loop.sin[positions])  # [B, T, E] each
        context = Context(((x.shape[0], x.shape[1]),), rope, attend, run_layer=run_layer)
        passes = self.first_passes(self.config.num_hidden_layers)
        keys = [(layer, one.loop) for one in passes for layer in one.layers]
        inputs = {
            key: StepInputs(step, mask, cache, kwargs)  # type: ignore[arg-type]
            for key, step in zip(keys, self.steps, strict=False)
        }
        for state in self.loop.walk(x, passes, context, inputs):
            x = state
        return x

    def first_passes(self, depth: int, name: str = "num_hidden_layers") -> tuple[Pass, ...]:
        """Returns the passes that run ``depth`` layers: all, or the first loops, which
        ``generate(assistant_early_exit=depth)`` drafts with."""
        whole, layers = self.plan.depth, self.plan.distinct_layers
        if depth == whole:
            return self.plan.passes
        if len(self.plan.blocks) > 1:
            raise InputError(f"{name}={depth}: allowed is {whole} with plan {self.plan}; drafts need kxL")
        allowed = f"a multiple of {layers} below {whole}"
        require(0 < depth < whole and depth % layers == 0, name, depth, f"{allowed} with plan {self.plan}", InputError)
        return self.plan.passes[: depth // layers]


class LoopedForCausalLM(LoopedPreTrainedModel, GenerationMixin):
    """The looped model with its readout, which generates."""

    _tied_weights_keys = {"lm_head.weight": "model.token_embedding.weight"}  # noqa: RUF012

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__(config)
        self.model = LoopedModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.post_init()

    def set_loops(self, loops: int) -> None:
        """Has the loopable block run ``loops`` times from now on. Caches made before have other places."""
        self.model.set_loops(loops)

    def generate(self, inputs: Tensor | None = None, generation_config: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Generates as any model of Transformers does. With ``assistant_early_exit``, which drafts with the first
        layers, those have to be whole loops."""
        given = kwargs.get("assistant_early_exit", getattr(generation_config, "assistant_early_exit", None))
        if given is not None:
            self.model.first_passes(given, "assistant_early_exit")
        try:
            return super().generate(inputs, generation_config, *args, **kwargs)
        finally:  # a draft that is interrupted leaves its own depth there
            self.config.num_hidden_layers = self.model.plan.depth

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept, :])  # [B, T, D] -> [B, kept, V]
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
