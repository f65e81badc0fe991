"""Cosine similarity between the weights of different layers, one parameter group at a time.

The functions know nothing of models: a layer is a dict from names of groups to tensors, which ``layer_groups`` makes.

>>> east, north = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0])
>>> cosine_matrix([{"up": east}, {"up": north}, {"up": 3 * east}])["up"].tolist()
[[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from loopt.model import Layer

Groups = Mapping[str, Tensor]
Take = Callable[[Tensor, slice], Tensor]


def layer_groups(layer: Layer, take: Take = operator.getitem) -> dict[str, Tensor]:
    """Returns a layer's weight matrices by parameter group, as views. Norms and biases are left out: norms start equal,
    so their cosines of almost 1 would only dilute the rest. ``take(parameter, rows)`` may return something else than
    the parameter's own rows, such as its gradient's."""
    attention, feed_forward = layer.attention, layer.feed_forward
    groups = {name: take(attention.qkv.weight, rows) for name, rows in attention.rows().items()}
    matrices = {"output": attention.output, "up": feed_forward.up}
    if feed_forward.kind == "swiglu":
        matrices["gate"] = feed_forward.gate
    matrices["down"] = feed_forward.down
    return groups | {name: take(linear.weight, slice(0, len(linear.weight))) for name, linear in matrices.items()}


@torch.no_grad()
def cosine_matrix(layers: Sequence[Groups]) -> dict[str, Tensor]:
    """Returns the cosine of every layer with every layer, per group [L, L], without a gradient."""
    return {name: _cosine_matrix([layer[name] for layer in layers]) for name in layers[0]}


def _cosine_matrix(matrices: Sequence[Tensor]) -> Tensor:
    exact = torch.promote_types(matrices[0].dtype, torch.float32)
    flat = torch.stack([matrix.flatten().to(exact) for matrix in matrices])  # [L, numbers of one matrix]
    return (unit := torch.nn.functional.normalize(flat, eps=torch.finfo(exact).tiny)) @ unit.T
