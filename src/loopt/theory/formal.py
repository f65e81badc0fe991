"""The paper's formal transformer (its Section 5.1 and Appendix B.1), and its weights as a ``LoopedTransformer``.

It has no norms, ReLU feed-forwards with biases, unscaled attention scores, summed heads and learned positions. A
construction writes its weights in the paper's terms; ``model`` puts them into a ``LoopedTransformer`` in float64, and
``FormalTransformer.of`` reads them back from any model of this kind, trained or built.

>>> heads = (Head(query=zeros(1, 4), key=zeros(1, 4), value=torch.eye(4)[:1], output=torch.eye(4)[1:2]),)
>>> layer = FormalLayer(heads, W1=zeros(3, 4), b1=zeros(3), W2=zeros(4, 3), b2=zeros(4))
>>> one = FormalTransformer(LoopPlan.parse("1x2"), zeros(5, 4), zeros(9, 4), (layer,), zeros(5, 4))
>>> one.model()(torch.tensor([[0, 1, 2]])).shape, one.d_attn
(torch.Size([1, 3, 5]), 1)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loopt.errors import InputError
from loopt.model import Layer, LoopedTransformer, ModelConfig
from loopt.plan import LoopPlan


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


class Space:
    """Names for the coordinates of the residual stream, in the order in which they are given.

    >>> space = Space(element=3, position=2, done=1)
    >>> space.size, space["position"], space.unit("done").tolist()
    (6, slice(3, 5, None), [0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
    >>> space.read("position").tolist()
    [[0.0, 0.0, 0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0, 0.0]]
    """

    def __init__(self, **widths: int) -> None:
        self._slices: dict[str, slice] = {}
        self.size = 0
        for name, width in widths.items():
            self._slices[name] = slice(self.size, self.size + width)
            self.size += width

    def __getitem__(self, name: str) -> slice:
        return self._slices[name]

    def read(self, *names: str) -> Tensor:
        """Returns the matrix [their width, size] that reads these coordinates off a residual vector."""
        return torch.cat([torch.eye(self.size, dtype=torch.float64)[self[name]] for name in names])

    def unit(self, name: str) -> Tensor:
        """Returns the unit vector [size] of a coordinate of width 1."""
        (row,) = self.read(name)
        return row


@dataclass(frozen=True, eq=False)
class Head:
    """An attention head: position i adds W_Oᵀ Σ_j a_ij W_V x_j, with a_i the softmax of ⟨W_Q x_i, W_K x_j⟩, j ≤ i."""

    query: Tensor  # W_Q [d_qk, d]
    key: Tensor  # W_K [d_qk, d]
    value: Tensor  # W_V [d_v, d]
    output: Tensor  # W_O [d_v, d]


@dataclass(frozen=True, eq=False)
class FormalLayer:
    heads: tuple[Head, ...]
    W1: Tensor  # [d_ff, d]
    b1: Tensor  # [d_ff]
    W2: Tensor  # [d, d_ff]
    b2: Tensor  # [d]

    def same_as(self, other: FormalLayer) -> bool:
        ours, theirs = self._tensors(), other._tensors()
        return len(ours) == len(theirs) and all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))

    def _tensors(self) -> list[Tensor]:
        of_heads = [tensor for head in self.heads for tensor in (head.query, head.key, head.value, head.output)]
        return [*of_heads, self.W1, self.b1, self.W2, self.b2]


class HiddenUnits:
    """The hidden units of a feed-forward in the making; each adds relu(⟨reads, x⟩ + bias)·writes to x."""

    def __init__(self) -> None:
        self._units: list[tuple[Tensor, float, Tensor]] = []

    def add(self, reads: Tensor, bias: float, writes: Tensor) -> None:
        self._units.append((reads, bias, writes))

    def layer(self, heads: tuple[Head, ...] = (), b2: Tensor | None = None) -> FormalLayer:
        reads, biases, writes = zip(*self._units, strict=True)
        b1, b2 = torch.tensor(biases, dtype=torch.float64), zeros(len(writes[0])) if b2 is None else b2
        return FormalLayer(heads, torch.stack(reads), b1, torch.stack(writes, dim=1), b2)


@dataclass(frozen=True, eq=False)
class FormalTransformer:
    """The paper's θ: embeddings, distinct layers, the plan that runs them, and the output layer. The paper's position 1
    is row 0 of ``positions``."""

    plan: LoopPlan
    tokens: Tensor  # θ_TE [V, d], a row per token
    positions: Tensor  # θ_PE [n_max, d]
    layers: tuple[FormalLayer, ...]
    output: Tensor  # θ_OUTPUT [V, d]: the logit of token v is ⟨row v, x⟩

    @property
    def d(self) -> int:
        return self.tokens.shape[1]

    @property
    def n_heads(self) -> int:
        return max(len(layer.heads) for layer in self.layers)

    @property
    def d_qk(self) -> int:
        return max(head.query.shape[0] for layer in self.layers for head in layer.heads)

    @property
    def d_v(self) -> int:
        return max(head.value.shape[0] for layer in self.layers for head in layer.heads)

    @property
    def d_attn(self) -> int:
        """Returns the paper's one width of heads, which queries, keys and values all fit in."""
        return max(self.d_qk, self.d_v)

    @property
    def d_ff(self) -> int:
        return max(layer.W1.shape[0] for layer in self.layers)

    @property
    def config(self) -> ModelConfig:
        return ModelConfig(
            plan=self.plan,
            d_model=self.d,
            n_heads=self.n_heads,
            d_ff=self.d_ff,
            vocab_size=self.tokens.shape[0],
            max_len=self.positions.shape[0],
            head_dim=self.d_attn,
            attention_scale=1.0,
            positions="learned",
            norm_placement="none",
            feed_forward="relu",
            biases="feed_forward",
        )

    @torch.no_grad()
    def model(self) -> LoopedTransformer:
        """Returns the same function as a model in float64; narrower heads and feed-forwards are padded with zeros."""
        model = LoopedTransformer(self.config).double().eval()
        for parameter in model.parameters():
            parameter.zero_()
        model.token_embedding.weight.copy_(self.tokens)
        model.position_embedding.weight.copy_(self.positions)
        model.readout_projection.weight.copy_(self.output)
        for module, layer in zip(model.loop.layers, self.layers, strict=True):
            assert isinstance(module, Layer)
            attention, feed_forward = module.attention, module.feed_forward
            qkv = attention.qkv.weight.view(3, self.n_heads, self.d_attn, self.d)
            output = attention.output.weight.view(self.d, self.n_heads, self.d_attn)
            for h, head in enumerate(layer.heads):
                for kind, weight in enumerate((head.query, head.key, head.value)):
                    qkv[kind, h, : len(weight)].copy_(weight)
                output[:, h, : len(head.output)].copy_(head.output.T)
            width = len(layer.b1)
            feed_forward.up.weight[:width].copy_(layer.W1)
            feed_forward.up.bias[:width].copy_(layer.b1)
            feed_forward.down.weight[:, :width].copy_(layer.W2)
            feed_forward.down.bias.copy_(layer.b2)
        return model

    @classmethod
    @torch.no_grad()
    def of(cls, model: LoopedTransformer) -> FormalTransformer:
        """Returns the weights of a model in float64; raises an InputError where the model is of another kind."""
        config = model.config
        wanted = {
            "positions": "learned",
            "norm_placement": "none",
            "feed_forward": "relu",
            "biases": "feed_forward",
            "tied_readout": False,
            "n_kv_heads": None,
            "qk_norm": False,
            "loop_norm": "none",
            "injection": "none",
            "loop_embedding": False,
            "residual_scaling": False,
            "exit_gate": False,
        }
        for field, value in wanted.items():
            if getattr(config, field) != value:
                raise InputError(f"model.{field}={getattr(config, field)}: the theory's transformer has {value}")
        weights = {name: tensor.detach().double().cpu().clone() for name, tensor in model.state_dict().items()}
        layers = []
        for i in range(config.plan.distinct_layers):
            of_layer = {name: weights[f"loop.layers.{i}.{name}"] for name in _LAYER_TENSORS}
            shape = (3, config.n_heads, config.width_of_head, config.d_model)
            query, key, value = of_layer["attention.qkv.weight"].view(shape).unbind(0)
            query = query * config.scale  # the paper's scores are not scaled
            output = of_layer["attention.output.weight"].view(config.d_model, *shape[1:3]).permute(1, 2, 0)
            heads = tuple(Head(query[h], key[h], value[h], output[h]) for h in range(config.n_heads))
            layers.append(FormalLayer(heads, *(of_layer[name] for name in _LAYER_TENSORS[2:])))
        embedding, positions = weights["token_embedding.weight"], weights["position_embedding.weight"]
        return cls(config.plan, embedding, positions, tuple(layers), weights["readout_projection.weight"])


_LAYER_TENSORS = (
    "attention.qkv.weight",
    "attention.output.weight",
    "feed_forward.up.weight",
    "feed_forward.up.bias",
    "feed_forward.down.weight",
    "feed_forward.down.bias",
)
