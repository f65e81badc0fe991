"""The paper's regularizer (Section 4): blocks of k layers are drawn towards each other, so that a model with all its
parameters comes close to a looped one.

For a parameter group G whose matrices in the L layers are W_0 … W_{L-1},

    R_G(k) = 1/(L-k) · Σ_i similarity(W_i, W_{i+k}),    i = 0 … L-k-1,

and the loss is the cross-entropy *minus* λ times the mean of R_G over the groups. The paper's equation 4 prints a plus,
which would push the blocks apart. The similarity of a and b is one of

    cosine    <a,b> / (|a| |b|)           the paper's; it ignores scale, so any λ leaves blocks equal up to a factor
    l2        2 <a,b> / (|a|² + |b|²)     which is 1 - |a-b|² / (|a|² + |b|²): 1 where a equals b, and nowhere else

The paper also tried an l2 norm and does not say how. This is the squared distance relative to the sizes of the two: the
bare distance falls by shrinking all weights. Where |a| = |b| both similarities agree, so λ means the same for either.

The gradient needs no graph: from |W_i|² and <W_i, W_{i+k}> follows what it takes of each matrix and of its neighbours.
So the weights are read once for these products, and once more to add the gradient to what the backward pass left. The
loss that is logged stays the cross-entropy.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from loopt.model import Layer, LoopedTransformer
from loopt.runs.config import RegularizerConfig, RegularizerKind
from loopt.similarity import Groups, layer_groups


def add_regularizer_gradient(
    model: LoopedTransformer, config: RegularizerConfig, compiled: bool = False
) -> dict[str, Tensor]:
    """Adds the gradient of -λ · mean R_G to every layer's ``.grad``, after the backward pass and before clipping, and
    returns the mean cosine of each group, 0-dim tensors. Of a sharded model, every rank updates its shard."""
    layers = [layer for layer in model.loop.layers if isinstance(layer, Layer)]
    config.check(len(layers))
    weights = [layer_groups(layer, _rows_here) for layer in layers]
    grads = [layer_groups(layer, _gradient_rows_here) for layer in layers] if config.weight else []
    any_weight = layers[0].attention.qkv.weight
    return add_gradient(weights, grads, config, compiled, lambda products: _sum_over_shards(products, any_weight))


@torch.no_grad()
def add_gradient(
    weights: Sequence[Groups],
    grads: Sequence[Groups],
    config: RegularizerConfig,
    compiled: bool = False,
    sum_over_ranks: Callable[[Tensor], None] = lambda products: None,
) -> dict[str, Tensor]:
    """Does what ``add_regularizer_gradient`` does, for the layers of any model."""
    names, k, length = list(weights[0]), config.block, len(weights) // config.block
    multiply, add = (_compiled(_multiply), _compiled(_add)) if compiled else (_multiply, _add)

    def chains(layers: Sequence[Groups]) -> list[list[Tensor]]:
        """Returns the matrices that are k layers apart as chains, one for each group and layer of a block."""
        return [[layer[name] for layer in layers[first::k]] for name in names for first in range(k)]

    products = torch.stack([multiply(chain) for chain in chains(weights)])  # [G * k, 2 * length - 1]
    sum_over_ranks(products)
    squares, dots = products.split((length, length - 1), dim=1)
    if config.weight:
        scale = config.weight / (len(names) * (len(weights) - k))
        factors = scale * _factors(squares, dots, config.kind)  # [G * k, 2 * length - 1]
        for matrices, gradients, of_chain in zip(chains(weights), chains(grads), factors.unbind(), strict=True):
            add(matrices, gradients, of_chain)
    inverse = _inverse(squares).sqrt()
    cosine = dots * inverse[:, :-1] * inverse[:, 1:]  # [G * k, length - 1]
    return dict(zip(names, cosine.view(len(names), -1).mean(1).unbind(), strict=True))


def _multiply(chain: list[Tensor]) -> Tensor:
    """Multiplies every matrix with itself, then every matrix with the next: [2 * length - 1]."""
    exact = torch.promote_types(chain[0].dtype, torch.float32)
    chain = [matrix.to(exact) for matrix in chain]
    pairs = [*zip(chain, chain, strict=True), *itertools.pairwise(chain)]
    # By rows first, all of which a compiler makes in one kernel; sums of whole matrices would take a second one each.
    rows = torch.stack([(first * second).sum(-1) for first, second in pairs])  # [2 * length - 1, rows]
    return rows.flatten(1).sum(1)


def _factors(squares: Tensor, dots: Tensor, kind: RegularizerKind) -> Tensor:
    """Returns how much of each matrix itself the gradient of -Σ similarity has and, subtracted, of each neighbour."""
    if kind == "cosine":
        first, second = _inverse(squares[:, :-1]), _inverse(squares[:, 1:])  # 1 / |a|² and 1 / |b|²
        link = first.sqrt() * second.sqrt()
    else:
        link = first = second = 2 * _inverse(squares[:, :-1] + squares[:, 1:])
    similarity = dots * link
    own = F.pad(similarity * first, (0, 1)) + F.pad(similarity * second, (1, 0))
    return torch.cat((own, link), dim=1)


def _inverse(squares: Tensor) -> Tensor:
    """Returns 1 / squares, and 0 for a matrix of zeros: it has no direction."""
    return torch.where(squares > 0, 1 / squares, 0.0)


def _add(chain: list[Tensor], grads: list[Tensor], factors: Tensor) -> None:
    own, link = factors.split((len(chain), len(chain) - 1))
    for i, (matrix, grad) in enumerate(zip(chain, grads, strict=True)):
        change = own[i] * matrix
        if i > 0:
            change = change - link[i - 1] * chain[i - 1]
        if i < len(chain) - 1:
            change = change - link[i] * chain[i + 1]
        grad.add_(change)


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns one kernel for a whole chain, which reads each matrix once and not three times."""
    return torch.compile(function, dynamic=True)


# Sharded models: a rank has some rows of each parameter, and a group may be some rows of a parameter.


def _rows_here(tensor: Tensor, rows: slice) -> Tensor:
    if not isinstance(tensor, DTensor):
        return tensor[rows]
    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    first = offset[0]
    return tensor.to_local()[max(rows.start - first, 0) : max(rows.stop - first, 0)]


def _gradient_rows_here(parameter: Tensor, rows: slice) -> Tensor:
    assert parameter.grad is not None, "the backward pass comes first"
    return _rows_here(parameter.grad, rows)


def _sum_over_shards(products: Tensor, parameter: Tensor) -> None:
    if isinstance(parameter, DTensor):
        for dimension, placement in enumerate(parameter.placements):
            if placement.is_shard():
                dist.all_reduce(products, group=parameter.device_mesh.get_group(dimension))
