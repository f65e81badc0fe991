"""Published looped models, by the name that their config has for their kind: those whose weights fit
``LoopedTransformer``, and what it is about the others that does not.

Each is read from its config and its safetensors files alone. Its own code is not needed, and not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from loopt.errors import InputError, require
from loopt.hf.ouro import ouro_config, ouro_weights
from loopt.model import LoopedTransformer, empty_model
from loopt.model_config import ModelConfig

Weights = dict[str, Tensor]


class Published(NamedTuple):
    """How a published model becomes one of ours."""

    config: Callable[[dict[str, Any]], ModelConfig]
    weights: Callable[[Weights, ModelConfig], Weights]


PUBLISHED = {"ouro": Published(ouro_config, ouro_weights)}
DO_NOT_FIT = {
    "huginn_raven": "Huginn's layers norm the sum of a sublayer and its input; what went into the block comes in "
    "before the first loop, too, to a state that starts as noise; a norm stands behind the block",
    "ParcaeConfig": "Parcae adds gated embeddings of the tokens to the values of every second layer; what went into "
    "the block comes in before the first loop, too, to a state that starts as noise; a norm stands before the block "
    "and a matrix behind it; its feed-forward has squared ReLU",
}
"""Kinds that ``loopt`` has no options for, and why: docs/transformers.md says which they would be."""


def kind_of(described: Any) -> str | None:
    """Returns what a config.json says its model is; Parcae's is named by the class of its config."""
    return described.get("model_type", described.get("_class_name")) if isinstance(described, dict) else None


def load_published(folder: Path, described: dict[str, Any]) -> LoopedTransformer:
    """Returns the model of a folder, given what its config.json says."""
    published = PUBLISHED[described["model_type"]]
    model = empty_model(published.config(described))
    weights = published.weights(dict(_tensors(folder)), model.config)
    expected = model.state_dict()
    for name in sorted(expected.keys() ^ weights.keys()):
        raise InputError(f"{folder}: {name} is {'missing' if name in expected else 'not a weight that is known'}")
    for name, tensor in weights.items():
        shape = list(expected[name].shape)
        require(list(tensor.shape) == shape, f"{folder}: {name}", list(tensor.shape), str(shape), InputError)
    model.load_state_dict(weights)
    return model


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors of all safetensors files of a folder, in float32."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InputError(f"{folder}: no safetensors in it, the only format of weights that is read")
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (it is no dict)
                yield name, opened.get_tensor(name).to(torch.float32)
