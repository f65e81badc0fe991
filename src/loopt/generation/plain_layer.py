"""A layer as plain functions: with one token at a time, calling modules takes as long as small products do."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from loopt.attention import Context
from loopt.model import Layer, LoopedTransformer, ModelConfig


def fits_plainly(config: ModelConfig) -> bool:
    """Tells whether ``PlainLayer`` does what the layers of a model of this shape do."""
    return config.norm == "rms" and config.norm_placement == "pre" and config.biases == "none" and not config.qk_norm


def plain_layers(model: LoopedTransformer) -> Callable[[Layer, Tensor, Context], Tensor]:
    """Returns what runs the layers of a model plainly, for ``Context.run_layer``."""
    plain = {layer: PlainLayer(layer) for layer in model.loop.layers if isinstance(layer, Layer)}
    return lambda layer, x, context: plain[layer](x, context)


class PlainLayer:
    """A layer's weights at hand, as products take them. They are views, so what is learned later shows here."""

    def __init__(self, layer: Layer) -> None:
        attention, feed_forward = layer.attention, layer.feed_forward
        self.heads, self.head_dim, self.branch_factor = attention.heads, attention.head_dim, layer.branch_factor
        self.attention_norm, self.feed_forward_norm = _norm(layer.attention_norm), _norm(layer.feed_forward_norm)
        self.qkv, self.output = _turned(attention.qkv), _turned(attention.output)  # [D, …] each
        self.kind, self.up, self.down = feed_forward.kind, _turned(feed_forward.up), _turned(feed_forward.down)
        self.gate = _turned(feed_forward.gate) if self.kind == "swiglu" else None
        self.epsilon = torch.tensor(1e-6, dtype=self.qkv.dtype)  # a plain number would be made a tensor every time

    def __call__(self, x: Tensor, context: Context) -> Tensor:
        """Computes what the layer does, [B, T, D] -> [B, T, D]."""
        rows = x.flatten(0, 1)  # [B * T, D]
        qkv = torch.mm(self._rms_norm(rows, self.attention_norm), self.qkv).unflatten(1, (-1, self.head_dim))
        mixed = context.attend(qkv, context, self.heads).flatten(1)  # [B * T, H + 2K, E] -> [B * T, H * E]
        rows = torch.addmm(rows, mixed, self.output, alpha=self.branch_factor)
        normed = self._rms_norm(rows, self.feed_forward_norm)
        hidden = torch.mm(normed, self.up)  # [B * T, F]
        if self.gate is not None:
            hidden = F.silu(torch.mm(normed, self.gate), inplace=True).mul_(hidden)
        else:
            hidden = F.relu(hidden) if self.kind == "relu" else F.gelu(hidden)
        return torch.addmm(rows, hidden, self.down, alpha=self.branch_factor).view_as(x)

    def _rms_norm(self, rows: Tensor, weight: Tensor) -> Tensor:
        """Returns the RMSNorm of rows [M, D] by their lengths; on a CPU torch's own takes twice as long for a few."""
        length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)  # [M, 1]
        scale = torch.addcmul(self.epsilon, length, length, value=1 / rows.shape[1]).rsqrt_()
        return (rows * scale).mul_(weight)


def _turned(linear: nn.Linear) -> Tensor:
    return linear.weight.detach().t()


def _norm(norm: nn.Module) -> Tensor:
    assert isinstance(norm, nn.RMSNorm)
    return norm.weight.detach()
