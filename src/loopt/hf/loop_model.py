"""Any decoder of Transformers as a looped one.

>>> import transformers
>>> gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=4, n_embd=8, n_head=2, vocab_size=16))
>>> looped = loop_model(gpt2, "2x2")  # its first two layers, run twice
>>> looped.config.text_config.num_hidden_layers, len(looped.looped_layers)
(4, 2)
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache
from transformers.generation import GenerationMixin
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from loopt.errors import InputError, require
from loopt.hf.decoder_layers import check_alike, find_layers, layer_types, with_places
from loopt.hf.modeling_looped import LoopedPreTrainedModel
from loopt.plan import LoopPlan, Step

Choice = Literal["first", "average"] | Sequence[int]


class LoopedDecoderConfig(PreTrainedConfig):
    """A decoder's own config, as ``text_config``, with a plan. Its num_hidden_layers is the depth that runs."""

    model_type = "loopt-decoder"
    sub_configs = {"text_config": PreTrainedConfig}  # noqa: RUF012

    text_config: dict[str, Any] | PreTrainedConfig | None = None
    plan: str = "4x6"
    loops: int | None = None
    damping: float | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if isinstance(self.text_config, dict):
            described = dict(self.text_config)
            self.text_config = CONFIG_MAPPING[described.pop("model_type")](**described)
        self.running_plan  # noqa: B018 (refuses a plan that cannot be)
        super().__post_init__(**kwargs)
        if isinstance(self.text_config, PreTrainedConfig):
            self.tie_word_embeddings = getattr(self.text_config, "tie_word_embeddings", False)

    @property
    def running_plan(self) -> LoopPlan:
        """Returns the plan with the loops that run."""
        plan = LoopPlan.parse(self.plan)
        return plan if self.loops is None else plan.with_loops(self.loops)


class Damping(nn.Module):
    """A learned factor for each extra loop of a block, on what its layers add to the residual stream."""

    def __init__(self, extra_loops: int, start: float) -> None:
        super().__init__()
        self.start = start
        self.factors = nn.Parameter(torch.full((extra_loops,), start))

    def forward(self, x: Tensor, after: Tensor, loop: int) -> Tensor:
        """Returns x with a part of what a layer added to it in a loop after the first. Loops beyond those that were
        trained share the last factor."""
        return x + self.factors[min(loop, len(self.factors)) - 1].to(x.dtype) * (after - x)


class DecoderStep(nn.Module):
    """One step of the plan: runs a shared layer with the step's own place in the cache, and has no parameters."""

    def __init__(self, layer: nn.Module, slot: int, loop: int, damping: Damping | None) -> None:
        super().__init__()
        self._shared = (layer, damping, with_places(layer))  # in a tuple, and so not registered again
        self.slot, self.loop = slot, loop

    def __getattr__(self, name: str) -> Any:
        """Returns what a decoder asks of its layer, such as its kind of attention."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_shared"][0], name)

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        layer, damping, places = self._shared
        for module in places:
            module.layer_idx = self.slot  # type: ignore[assignment]
        found = layer(hidden_states, *args, **kwargs)
        if self.loop == 0 or damping is None:
            return found
        if isinstance(found, tuple):
            return (damping(hidden_states, found[0], self.loop), *found[1:])
        return damping(hidden_states, found, self.loop)


class LoopedDecoder(PreTrainedModel, GenerationMixin):
    """A causal language model of Transformers whose layers run in a plan. ``loop_model`` makes one."""

    config: LoopedDecoderConfig
    config_class = LoopedDecoderConfig
    base_model_prefix = "decoder"
    supports_gradient_checkpointing = True
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012

    def __init__(self, config: LoopedDecoderConfig) -> None:
        super().__init__(config)
        plan = LoopPlan.parse(config.plan)
        self.decoder = AutoModelForCausalLM.from_config(_of_distinct_layers(config))
        config.text_config = self.decoder.config
        self._holder, self._name = _found(*find_layers(self.decoder))
        looped = {str(i): block.loops for i, block in enumerate(plan.blocks) if block.loops > 1}
        damped = looped if config.damping is not None else {}
        self.damping = nn.ModuleDict({i: Damping(loops - 1, config.damping or 0.0) for i, loops in damped.items()})
        self._types = layer_types(config.text_config, plan.distinct_layers)
        self._make_steps()
        self.post_init()

    @property
    def looped_layers(self) -> nn.ModuleList:
        """Returns the layers that have weights of their own."""
        return self._holder[0].looped_layers  # type: ignore[return-value]

    def _make_steps(self) -> None:
        """Gives every step of the plan that runs its place in the cache."""
        steps = self.config.running_plan.steps
        made = [self._step(slot, step) for slot, step in enumerate(steps)]
        setattr(self._holder[0], self._name, nn.ModuleList(made))
        self.config.text_config.num_hidden_layers = len(steps)  # type: ignore[union-attr]
        if self._types:
            self.config.text_config.layer_types = [self._types[step.layer] for step in steps]  # type: ignore[union-attr]

    def _step(self, slot: int, step: Step) -> DecoderStep:
        damping = self.damping[str(step.block)] if str(step.block) in self.damping else None  # noqa: SIM401 (no get)
        return DecoderStep(self.looped_layers[step.layer], slot, step.loop, damping)  # type: ignore[arg-type]

    def set_loops(self, loops: int) -> None:
        """Has the loopable block run ``loops`` times from now on. Caches made before have other places."""
        self.config.running_plan.with_loops(loops)  # refuses what cannot be, before anything changes
        self.config.loops = loops
        self._make_steps()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, Damping):
            init.constant_(module.factors, module.start)

    def get_input_embeddings(self) -> nn.Module:
        return self.decoder.get_input_embeddings()

    def get_output_embeddings(self) -> nn.Module:
        return self.decoder.get_output_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.decoder.set_input_embeddings(value)

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.decoder.set_output_embeddings(value)

    def prepare_inputs_for_generation(self, *args: Any, inputs_embeds: Tensor | None = None, **kwargs: Any) -> Any:
        """Returns what the decoder makes of a step's inputs: some make masks or positions in a way of their own.
        Transformers generates from embeddings where it finds ``inputs_embeds`` among the names."""
        return self.decoder.prepare_inputs_for_generation(*args, inputs_embeds=inputs_embeds, **kwargs)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        return self.decoder(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            labels=labels,
            use_cache=use_cache,
            **kwargs,
        )


@torch.no_grad()
def loop_model(
    model: PreTrainedModel, plan: str | LoopPlan, *, layers: Choice = "first", damping: float | None = None
) -> LoopedDecoder:
    """Returns a new model that runs layers of a decoder in a plan; the given one stays as it is.

    ``layers`` says which of its n layers the plan's are: "first", those that would run first, or "average", the mean of
    all that a layer stands for (either where the plan's depth is n; a plan with n layers of its own takes all), or one
    number for each. ``damping`` is where a learned factor on the additions of every extra loop starts: with 0 looping
    changes nothing at first, 1/L divides them by the loops; None adds them whole."""
    _check_decoder(model)
    require(isinstance(plan, str | LoopPlan), "plan", plan, "a LoopPlan, or text such as 4x6", InputError)
    plan = LoopPlan.parse(plan) if isinstance(plan, str) else plan
    is_number = isinstance(damping, int | float) and math.isfinite(damping)
    require(damping is None or is_number, "damping", damping, "a number or None", InputError)
    holder, name = find_layers(model)
    given = getattr(holder, name)
    chosen = _chosen(plan, len(given), layers)
    text = copy.deepcopy(model.config)
    types = layer_types(text, len(given))
    if types:
        for group in chosen:
            if len({types[i] for i in group}) > 1:
                raise InputError(f"layers={layers}: layers {group} have different kinds of attention")
        text.layer_types = [types[chosen[step.layer][0]] for step in plan.steps]
    try:
        text.num_hidden_layers = plan.depth
    except NotImplementedError as error:  # of those that have an encoder, too
        raise InputError(f"{type(model).__name__}: cannot be looped; {error}") from None
    looped = LoopedDecoder(LoopedDecoderConfig(text_config=text, plan=str(plan), damping=damping))
    looped.set_attn_implementation(model.config._attn_implementation)
    for number, group in enumerate(chosen):
        for i in group:
            what = f"plan={plan}, layers={layers}: layer {i} cannot be layer {number} of the looped model"
            check_alike(given[i], looped.looped_layers[number], what)
    looped.to(model.dtype)
    weights, expected = _weights(model, given, chosen), looped.decoder.state_dict()
    for weight in sorted(weights.keys() | expected.keys()):
        if weight not in weights or weight not in expected or weights[weight].shape != expected[weight].shape:
            raise InputError(f"{type(model).__name__}: cannot be looped; {weight} goes by how many layers there are")
    if model.config.is_heterogeneous:
        raise InputError(f"{type(model).__name__}: cannot be looped; its per_layer_config goes by a layer's place")
    looped.decoder.load_state_dict(weights)
    looped.generation_config = copy.deepcopy(model.generation_config)
    return looped.to(model.device).train(model.training)


def _check_decoder(model: PreTrainedModel) -> None:
    """Raises an InputError where a model is not what AutoModelForCausalLM builds for text, which the looped one has."""
    kind = type(model).__name__
    if isinstance(model, LoopedDecoder | LoopedPreTrainedModel):
        raise InputError(f"{kind}: is looped already; set_loops changes how often")
    if not isinstance(model, PreTrainedModel):
        raise InputError(f"model={model!r:.80}: allowed is a model of Transformers, as AutoModelForCausalLM loads it")
    expected = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(model.config), ())
    kinds = expected if isinstance(expected, tuple) else (expected,)
    if type(model) not in kinds:
        allowed = " or ".join(one.__name__ for one in kinds) or "a decoder with a readout, such as LlamaForCausalLM"
        raise InputError(f"{kind}: cannot be looped; allowed is {allowed}, as AutoModelForCausalLM loads it")
    text = model.config.get_text_config(decoder=True)
    if text is not model.config:
        of_text = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(text), None)
        alone = f", {of_text.__name__}" if isinstance(of_text, type) else ""
        raise InputError(f"{kind}: cannot be looped, as it reads more than text; allowed is its decoder alone{alone}")


def _weights(model: PreTrainedModel, given: nn.ModuleList, chosen: list[list[int]]) -> dict[str, Tensor]:
    """Returns the weights of the looped model: those beside the layers, and the means of the chosen layers."""
    holder, name = find_layers(model)
    prefix = next(key for key, module in model.named_modules() if module is holder)
    place = f"{prefix}.{name}." if prefix else f"{name}."
    found = {key: tensor for key, tensor in model.state_dict().items() if not key.startswith(place)}
    for number, group in enumerate(chosen):
        states = [given[i].state_dict() for i in group]
        for key in states[0]:
            mean = torch.stack([state[key].float() for state in states]).mean(0).to(states[0][key].dtype)
            found[f"{place.removesuffix(name + '.')}looped_layers.{number}.{key}"] = mean
    return found


def _chosen(plan: LoopPlan, count: int, layers: Choice) -> list[list[int]]:
    """Returns, for every layer of the plan, the layers of the model that it is the mean of."""
    distinct = plan.distinct_layers
    if not isinstance(layers, str):
        if len(layers) != distinct or not all(isinstance(i, int) and 0 <= i < count for i in layers):
            raise InputError(f"layers={list(layers)}: allowed with plan {plan} are {distinct} of 0 to {count - 1}")
        return [[i] for i in layers]
    if layers not in ("first", "average"):
        raise InputError(f"layers={layers}: allowed is first | average | a list of numbers of layers")
    if distinct == count:
        return [[i] for i in range(count)]
    if plan.depth != count:
        allowed = f"a plan of depth {count} or with {count} layers, or layers=[…] with {distinct} numbers"
        raise InputError(f"plan={plan}: allowed for a model of {count} layers is {allowed}")
    stands_for = [[slot for slot, step in enumerate(plan.steps) if step.layer == i] for i in range(distinct)]
    return stands_for if layers == "average" else [group[:1] for group in stands_for]


def _of_distinct_layers(config: LoopedDecoderConfig) -> PreTrainedConfig:
    """Returns the config to build the decoder with, which has each layer once."""
    plan, text = config.running_plan, copy.deepcopy(config.text_config)
    if not isinstance(text, PreTrainedConfig):
        raise InputError("text_config=None: allowed is the config of a decoder")
    first = [next(slot for slot, step in enumerate(plan.steps) if step.layer == i) for i in range(plan.distinct_layers)]
    types = layer_types(text, plan.depth)
    text.num_hidden_layers = plan.distinct_layers
    if types:
        text.layer_types = [types[slot] for slot in first]
    return text


def _found(holder: nn.Module, name: str) -> tuple[tuple[nn.Module], str]:
    """Registers the layers under a name of their own, so that the decoder's list can hold the steps."""
    holder.looped_layers = getattr(holder, name)
    return (holder,), name
