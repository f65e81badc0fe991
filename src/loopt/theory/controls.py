"""Negative controls: ways to damage a construction on purpose, so that its checks can be seen to say no."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from loopt.errors import InputError, require
from loopt.theory.formal import FormalLayer, FormalTransformer, Head

Damage = Callable[[FormalTransformer], FormalTransformer]


@dataclass(frozen=True)
class Control:
    """What to do to every transformer that a proof builds, before it is checked."""

    loops: int = 0
    """Added to the number of loops."""
    damage: Damage | None = None

    def __call__(self, formal: FormalTransformer) -> FormalTransformer:
        if self.damage is not None:
            formal = self.damage(formal)
        if self.loops:
            (block,) = formal.plan.blocks
            loops = block.loops + self.loops
            require(loops >= 1, "loops", self.loops, f"{1 - block.loops} or more here, so that one is left", InputError)
            formal = replace(formal, plan=formal.plan.with_loops(loops))
        return formal


def control(breaks: Mapping[str, Damage], loops: int, broken: str | None) -> Control:
    """Returns the control that ``--loops`` and ``--break`` name, of the ``breaks`` that a theorem has."""
    if broken is not None and broken not in breaks:
        raise InputError(f"break={broken}: allowed are {', '.join(breaks)}")
    return Control(loops, None if broken is None else breaks[broken])


def scaled(weights: Tensor, factor: float, *where: slice | int) -> Tensor:
    """Returns a copy of ``weights`` with the part at ``where`` multiplied."""
    weights = weights.clone()
    weights[where] = weights[where] * factor
    return weights


def change_layer(
    formal: FormalTransformer, index: int, change: Callable[[FormalLayer], FormalLayer]
) -> FormalTransformer:
    layers = list(formal.layers)
    layers[index] = change(layers[index])
    return replace(formal, layers=tuple(layers))


def change_heads(layer: FormalLayer, change: Callable[[Head], Head]) -> FormalLayer:
    return replace(layer, heads=tuple(change(head) for head in layer.heads))


def cool(factor: float, index: int) -> Damage:
    """Returns the damage that multiplies the keys of a layer: attention is less sharp below 1."""

    def damage(formal: FormalTransformer) -> FormalTransformer:
        return change_layer(
            formal, index, lambda layer: change_heads(layer, lambda head: replace(head, key=factor * head.key))
        )

    return damage


def weight_groups(formal: FormalTransformer) -> dict[str, Callable[[float], FormalTransformer]]:
    """Returns for each group of weights that is not 0, by name, a function that multiplies it: every matrix of every
    head, the four parts of every feed-forward, embeddings and output."""
    groups: dict[str, Callable[[float], FormalTransformer]] = {}

    def of_whole(name: str) -> Callable[[float], FormalTransformer]:
        return lambda factor: replace(formal, **{name: factor * getattr(formal, name)})

    def of_layer(index: int, name: str) -> Callable[[float], FormalTransformer]:
        return lambda factor: change_layer(
            formal, index, lambda layer: replace(layer, **{name: factor * getattr(layer, name)})
        )

    def of_head(index: int, h: int, name: str) -> Callable[[float], FormalTransformer]:
        def change(layer: FormalLayer, factor: float) -> FormalLayer:
            heads = list(layer.heads)
            heads[h] = replace(heads[h], **{name: factor * getattr(heads[h], name)})
            return replace(layer, heads=tuple(heads))

        return lambda factor: change_layer(formal, index, lambda layer: change(layer, factor))

    for name in ("tokens", "positions", "output"):
        if torch.any(getattr(formal, name)):
            groups[name] = of_whole(name)
    for index, layer in enumerate(formal.layers):
        for name in ("W1", "b1", "W2", "b2"):
            if torch.any(getattr(layer, name)):
                groups[f"layer {index}: {name}"] = of_layer(index, name)
        for h, head in enumerate(layer.heads):
            for name in ("query", "key", "value", "output"):
                if torch.any(getattr(head, name)):
                    groups[f"layer {index}, head {h}: {name}"] = of_head(index, h, name)
    return groups
