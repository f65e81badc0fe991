"""In which precision models compute, and how much is scored at a time: one policy for training and evaluation."""

from __future__ import annotations

import copy

import torch

from loopt.model import LoopedTransformer, ModelConfig

BFLOAT16_ON = ("cuda",)
"""Devices where matrix products are in bfloat16."""
STATE_ELEMENTS = {"cpu": 2**20, "cuda": 2**25, "mps": 2**25}
"""How many numbers the states of a scored batch have at most: a GPU wants more at a time than a training batch has."""


def computes_in_bfloat16(device: torch.device) -> bool:
    """Tells whether matrix products on this device are in bfloat16."""
    return device.type in BFLOAT16_ON


def autocast(device: torch.device) -> torch.autocast:
    """Returns the context in which a model with float32 weights computes on this device."""
    return torch.autocast(device.type, torch.bfloat16, enabled=computes_in_bfloat16(device))


def bfloat16_copy(model: LoopedTransformer) -> LoopedTransformer:
    """Returns a copy whose parameters are in bfloat16; the angles of rotary positions stay exact."""
    computing = copy.deepcopy(model)
    for parameter in computing.parameters():
        parameter.data = parameter.data.bfloat16()
    return computing


def scoring_batch(model: ModelConfig, length: int, device: torch.device) -> int:
    """Returns how many sequences of ``length`` tokens to score at a time."""
    return max(1, STATE_ELEMENTS[device.type] // (length * model.d_model))


def exact_type(device: torch.device) -> torch.dtype:
    """Returns the type to add many losses up in: float64, which MPS does not have."""
    return torch.float64 if device.type != "mps" else torch.float32
