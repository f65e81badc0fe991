"""A layer as plain functions: with one token at a time, calling modules takes as long as small products do."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from loopt.attention import Context
from loopt.model import Layer, ModelConfig


def fits_plainly(config: ModelConfig) -> bool:
    """Tells whether ``run_plainly`` does what the layers of a model of this shape do."""
    return config.norm == "rms" and config.norm_placement == "pre" and config.biases == "none" and not config.qk_norm


def run_plainly(layer: Layer, x: Tensor, context: Context) -> Tensor:
    """Computes what the layer does, [B, T, D] -> [B, T, D]."""
    attention, feed_forward = layer.attention, layer.feed_forward
    rows = x.flatten(0, 1)  # [B * T, D]
    normed = _rms_norm(rows, layer.attention_norm)
    qkv = F.linear(normed, attention.qkv.weight).unflatten(1, (-1, attention.head_dim))  # [B * T, H + 2K, E]
    mixed = context.attend(qkv, context, attention.heads).flatten(1)  # [B * T, H * E]
    rows = torch.add(rows, F.linear(mixed, attention.output.weight), alpha=layer.branch_factor)
    normed = _rms_norm(rows, layer.feed_forward_norm)
    hidden = F.linear(normed, feed_forward.up.weight)  # [B * T, F]
    if feed_forward.kind == "swiglu":
        hidden = F.silu(F.linear(normed, feed_forward.gate.weight)) * hidden
    else:
        hidden = F.relu(hidden) if feed_forward.kind == "relu" else F.gelu(hidden)
    return torch.add(rows, F.linear(hidden, feed_forward.down.weight), alpha=layer.branch_factor).view_as(x)


def _rms_norm(rows: Tensor, norm: nn.Module) -> Tensor:
    """Returns the RMSNorm of rows [M, D] by their lengths; on a CPU torch's own takes twice as long for a few."""
    length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)  # [M, 1]
    return rows * length.square_().div_(rows.shape[1]).add_(1e-6).rsqrt_() * norm.weight
