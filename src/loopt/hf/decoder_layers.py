"""The layers of any decoder of Transformers, found by structure: GPT-2, Llama, Qwen, Gemma, Mistral and their kin."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from loopt.errors import InputError
from loopt.hf.modeling_looped import LoopedForCausalLM, LoopedModel
from loopt.similarity import layer_groups


def find_layers(model: PreTrainedModel) -> tuple[nn.Module, str]:
    """Returns the module that holds a decoder's layers, and the name of their ModuleList in it."""
    base = model.base_model
    count = base.config.get_text_config(decoder=True).num_hidden_layers
    for holder in base.modules():
        for name, child in holder.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == count and all(attention_of(one) for one in child):
                return holder, name
    raise InputError(
        f"{type(model).__name__}: cannot be looped; looked for an nn.ModuleList of num_hidden_layers={count} layers, "
        "each with a module that has layer_idx and is_causal, as GPT-2, Llama, Qwen, Gemma and Mistral have"
    )


def attention_of(layer: nn.Module) -> list[nn.Module]:
    """Returns the attention modules of a layer, by their place in the cache; state-space layers have one, too."""
    modules = [module for module in layer.modules() if hasattr(module, "is_causal")]
    return [module for module in modules if isinstance(getattr(module, "layer_idx", None), int)]


def check_alike(layer: nn.Module, other: nn.Module, what: str) -> None:
    """Raises an InputError where two layers differ in more than the values of their weights and their place: models
    such as SmolLM3, where some layers go without rotary positions, decide that by a layer's place."""
    one, another = _described(layer), _described(other)
    for name in sorted(one.keys() | another.keys()):
        if one.get(name) != another.get(name):
            raise InputError(f"{what}: they differ in {name}, {one.get(name)} and {another.get(name)}")


def _described(layer: nn.Module) -> dict[str, Any]:
    """Returns the shapes of a layer's weights, and the plain attributes of its modules."""
    found: dict[str, Any] = {name: list(tensor.shape) for name, tensor in layer.state_dict().items()}
    for path, module in layer.named_modules():
        for name, value in vars(module).items():
            if name not in ("layer_idx", "training") and isinstance(value, bool | int | float | str | None):
                found[f"{path}.{name}".lstrip(".")] = value
    return found


def matrices_by_layer(model: PreTrainedModel) -> list[dict[str, Tensor]]:
    """Returns the weight matrices of every layer that has weights of its own, by their names within the layer. Those
    of looped models of ours go by parameter group, where queries, keys and values are three."""
    if isinstance(model, LoopedForCausalLM | LoopedModel):
        return [layer_groups(layer) for layer in model.base_model.loop.layers]
    holder, name = find_layers(model)
    layers = getattr(holder, "looped_layers", None) or getattr(holder, name)
    return [
        {key.removesuffix(".weight"): tensor for key, tensor in layer.named_parameters() if tensor.dim() == 2}
        for layer in layers
    ]


def layer_types(config: PreTrainedConfig, count: int) -> list[str] | None:
    """Returns the kind of attention of each layer, where a config tells them apart."""
    types = getattr(config, "layer_types", None)
    return list(types[:count]) if types else None
