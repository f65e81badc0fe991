"""Gradual stacking by copying the middle block (MidAS: Saunshi et al. 2024, which the paper ties to looping).

Training starts with one block of k layers. At chosen steps the middle block is copied and the copy put right behind it:
of n blocks, block ⌈n/2⌉, counted from 1. The grown model computes what the smaller does with its middle block looped
twice, and from then on the two train apart. So growing does not keep the function: what the extra loop does is added.

The optimizer's state is copied with the weights. A copy gets gradients much like its original's, and the state says how
large those are. From zeros, AdamW's first update would move every weight by the whole learning rate, in mid-training.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from loopt.errors import ConfigError, require
from loopt.training.callbacks import Callback

if TYPE_CHECKING:
    from loopt.training.trainer import Trainer

_LAYER = re.compile(r"(loop\.layers\.)(\d+)(\..+)")  # loop.layers.3.attention.qkv.weight/exp_avg


class GradualStacking(Callback):
    """Puts the deeper model in the place of the last one when its time has come."""

    def stepping(self, trainer: Trainer) -> None:
        stacking, plan = trainer.config.stacking, trainer.learner.config.model.plan
        deeper = stacking.plan_at(trainer.step)
        if plan == deeper:
            return
        before, after = plan.distinct_layers, deeper.distinct_layers
        weights, optimizer = (grow(state, before, after, stacking.block) for state in trainer.tensors())
        trainer.replace_model(deeper, weights, optimizer)


def source_layers(from_layers: int, to_layers: int, block: int) -> list[int]:
    """Returns, for each layer of the grown model, the layer that it is a copy of.

    >>> source_layers(2, 4, 2), source_layers(4, 6, 2), source_layers(6, 8, 2)
    ([0, 1, 0, 1], [0, 1, 0, 1, 2, 3], [0, 1, 2, 3, 2, 3, 4, 5])
    """
    for name, layers in (("from_layers", from_layers), ("to_layers", to_layers)):
        require(layers >= block >= 1 and layers % block == 0, name, layers, f"a multiple of block={block}")
    require(to_layers >= from_layers, "to_layers", to_layers, f"from_layers={from_layers} or more")
    blocks = list(range(from_layers // block))
    while len(blocks) < to_layers // block:
        middle = (len(blocks) + 1) // 2 - 1
        blocks.insert(middle + 1, blocks[middle])
    return [source * block + layer for source in blocks for layer in range(block)]


def grow(state: Mapping[str, Tensor], from_layers: int, to_layers: int, block: int) -> dict[str, Tensor]:
    """Returns the weights, or the optimizer's tensors, of the grown model, by name. What is not of a layer stays what
    it is, and no two layers share memory."""
    copies: dict[int, list[int]] = {}
    for copy, original in enumerate(source_layers(from_layers, to_layers, block)):
        copies.setdefault(original, []).append(copy)
    grown: dict[str, Tensor] = {}
    for name, tensor in state.items():
        layer = _LAYER.fullmatch(name)
        if not layer:
            grown[name] = tensor
            continue
        before, number, after = layer.groups()
        if int(number) not in copies:
            raise ConfigError(f"{name}: allowed are layers 0 to {from_layers - 1}, since from_layers={from_layers}")
        for copy in copies[int(number)]:
            grown[f"{before}{copy}{after}"] = tensor.clone()
    return grown
