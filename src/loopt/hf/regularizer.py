"""The paper's regularizer for any decoder of Transformers: layers ``block`` apart are drawn towards each other."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel, TrainerCallback

from loopt.errors import InputError
from loopt.hf.decoder_layers import matrices_by_layer
from loopt.runs.config import RegularizerConfig


class CosineRegularizer(TrainerCallback):
    """Minus ``weight`` times the mean cosine of layers i and i + ``block``, over all weight matrices.

    In a training loop of your own, add ``regularizer()`` to the loss. With the Trainer, give it as a callback instead:
    it adds its gradient before every update, after the Trainer clipped that of the loss."""

    def __init__(self, model: PreTrainedModel, block: int = 4, weight: float = 10.0) -> None:
        config = RegularizerConfig(weight=weight, block=block)
        layers = matrices_by_layer(model)
        config.check(len(layers))
        shapes = [{name: matrix.shape for name, matrix in layer.items()} for layer in layers]
        for number, shape in enumerate(shapes[block:], start=block):
            if shape != shapes[number - block]:
                raise InputError(f"block={block}: layers {number - block} and {number} have matrices of other shapes")
        self.model, self.block, self.weight = model, block, weight

    def __call__(self) -> Tensor:
        """Returns what to add to the loss, with its gradient."""
        return -self.weight * self.cosine()

    def cosine(self) -> Tensor:
        """Returns the mean cosine of layers ``block`` apart: each matrix counts alike, as in the paper."""
        layers = matrices_by_layer(self.model)
        pairs = zip(layers, layers[self.block :], strict=False)
        found = [_cosine(first[name], second[name]) for first, second in pairs for name in first]
        return torch.stack(found).mean()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Adds the gradient, before the Trainer updates the weights."""
        with torch.enable_grad():
            self().backward()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        """Adds the mean cosine to what the Trainer prints and to its ``state.log_history``. Trackers of Transformers'
        own have been called by then."""
        if logs is not None and "loss" in logs:
            with torch.no_grad():
                logs["cosine"] = state.log_history[-1]["cosine"] = float(self.cosine())


def _cosine(first: Tensor, second: Tensor) -> Tensor:
    return F.cosine_similarity(first.flatten().float(), second.flatten().float(), dim=0, eps=1e-30)
