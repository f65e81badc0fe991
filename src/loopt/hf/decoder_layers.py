"""The layers of any decoder of Transformers, found by structure: GPT-2, Llama, Qwen, Gemma, Mistral and their kin."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from loopt.errors import InputError
from loopt.hf.modeling_looped import LoopedForCausalLM, LoopedModel
from loopt.similarity import layer_groups

OF_NO_MATTER = ("layer_idx", "training", "_is_hf_initialized")
KEYS_AND_VALUES = {"past_key_values", "layer_past"}
STATES = {"cache_params"}
"""What a forward calls its cache: attention keeps keys and values there, a state-space module its states."""


def find_layers(model: PreTrainedModel) -> tuple[nn.Module, str]:
    """Returns the module that holds a decoder's layers, and the name of their ModuleList in it."""
    count, unlike = _count(model), []
    for path, holder, name in _lists_of_layers(model):
        if all(_mixes_by_attention(layer) for layer in getattr(holder, name)):
            return holder, name
        unlike.append(f"{path}.{name}".lstrip("."))
    found = f"not all layers of {', '.join(unlike)} are like that" if unlike else "there is none of that length"
    raise InputError(
        f"{type(model).__name__}: cannot be looped; looked for an nn.ModuleList of num_hidden_layers={count} layers, "
        "each with attention that is given a cache and has its place in it, layer_idx, and with no state-space module, "
        f"as GPT-2, Llama, Qwen, Gemma and Mistral have; {found}"
    )


def _lists_of_layers(model: PreTrainedModel) -> Iterator[tuple[str, nn.Module, str]]:
    """Yields where a ModuleList has as many modules as the decoder has layers: path and holder, and its name there."""
    for path, holder in model.base_model.named_modules():
        for name, child in holder.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == _count(model):
                yield path, holder, name


def _count(model: PreTrainedModel) -> int:
    count: int = model.base_model.config.get_text_config(decoder=True).num_hidden_layers
    return count


def _mixes_by_attention(layer: nn.Module) -> bool:
    attends = any(hasattr(one, "is_causal") or _has_heads(one) for one in with_places(layer))
    return attends and not any(_takes(one, STATES) for one in layer.modules() if one is not layer)


def _has_heads(module: nn.Module) -> bool:
    """Tells attention that does not say whether it is causal from convolutions, which keep what they read, too."""
    return any("head" in name for name in vars(module))


def with_places(layer: nn.Module) -> list[nn.Module]:
    """Returns the modules of a layer that have a place in the cache: attention, and what goes with it."""
    modules = [one for one in layer.modules() if one is not layer and isinstance(getattr(one, "layer_idx", None), int)]
    return [one for one in modules if hasattr(one, "is_causal") or _takes(one, KEYS_AND_VALUES)]


def _takes(module: nn.Module, names: set[str]) -> bool:
    return not names.isdisjoint(inspect.signature(module.forward).parameters)


def check_alike(layer: nn.Module, other: nn.Module, what: str) -> None:
    """Raises an InputError where two layers differ in more than the values of their weights and their place: models
    such as SmolLM3, where some layers go without rotary positions, decide that by a layer's place."""
    one, another = _described(layer), _described(other)
    for name in sorted(one.keys() | another.keys()):
        if one.get(name) != another.get(name):
            raise InputError(f"{what}: they differ in {name or 'class'}, {one.get(name)} and {another.get(name)}")


def _described(layer: nn.Module) -> dict[str, Any]:
    """Returns the shapes of a layer's weights, and the classes and plain attributes of its modules."""
    found: dict[str, Any] = {name: list(tensor.shape) for name, tensor in layer.state_dict().items()}
    for path, module in layer.named_modules():
        found[path] = type(module).__name__
        for name, value in vars(module).items():
            if name not in OF_NO_MATTER and isinstance(value, bool | int | float | str | None):
                found[f"{path}.{name}".lstrip(".")] = value
    return found


def matrices_by_layer(model: PreTrainedModel) -> list[dict[str, Tensor]]:
    """Returns the weight matrices of every layer that has weights of its own, by their names within the layer. Those
    of looped models of ours go by parameter group, where queries, keys and values are three."""
    if isinstance(model, LoopedForCausalLM | LoopedModel):
        return [layer_groups(layer) for layer in model.base_model.loop.layers]
    layers = getattr(model, "looped_layers", None)
    if layers is None:  # any will do, also those that keep no keys and values
        lists = [getattr(holder, name) for _, holder, name in _lists_of_layers(model)]
        if not lists:
            looked_for = f"an nn.ModuleList of num_hidden_layers={_count(model)} modules"
            raise InputError(f"{type(model).__name__}: its layers are not found; looked for {looked_for}")
        layers = lists[0]
    return [
        {key.removesuffix(".weight"): tensor for key, tensor in layer.named_parameters() if tensor.dim() == 2}
        for layer in layers
    ]


def layer_types(config: PreTrainedConfig, count: int) -> list[str] | None:
    """Returns the kind of attention of each layer, where a config tells them apart."""
    types = getattr(config, "layer_types", None)
    return list(types[:count]) if types else None
