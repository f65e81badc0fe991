"""Weights from ``LoopedTransformer`` to ``LoopedForCausalLM`` and back. Only the names differ."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from loopt.hf.configuration_looped import LoopedConfig
from loopt.hf.modeling_looped import LoopedForCausalLM
from loopt.model import LoopedTransformer, empty_model

READOUT, LM_HEAD = "readout_projection.weight", "lm_head.weight"


def to_transformers(model: LoopedTransformer, **more: Any) -> LoopedForCausalLM:
    """Returns the model as one of Transformers, with ``more`` fields of its config. Weights are copied."""
    config = LoopedConfig.from_model_config(model.config, **more)
    converted = LoopedForCausalLM(config).to(model.token_embedding.weight.dtype)
    weights = {_name_in_transformers(name): tensor for name, tensor in model.state_dict().items()}
    if config.tied_readout:
        weights[LM_HEAD] = model.token_embedding.weight
    converted.load_state_dict(weights)
    return converted.eval()


def to_loopt(model: LoopedForCausalLM) -> LoopedTransformer:
    """Returns the model as ``LoopedTransformer``, in float32. Weights are copied."""
    converted = empty_model(model.config.model_config())
    weights: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if name != LM_HEAD:
            weights[name.removeprefix("model.")] = tensor.to(torch.float32)
        elif not model.config.tied_readout:
            weights[READOUT] = tensor.to(torch.float32)
    converted.load_state_dict(weights)
    return converted


def _name_in_transformers(name: str) -> str:
    return LM_HEAD if name == READOUT else f"model.{name}"
