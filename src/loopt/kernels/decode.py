"""Layers for a few rows in few kernels: norms, activations and residual sums are inside the matrix products.

With few rows a layer takes as long as it takes to read its weights, and every further kernel adds its start and its
end. So a layer is five kernels: queries, keys and values of the normed input; attention; its output added to the
residual stream; the feed-forward's hidden units; and these, added too.

Sizes: M rows, N outputs and K inputs of a product.
"""

from __future__ import annotations

from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from loopt.attention import Context
from loopt.kernels.decode_attention import fits_attention, launches_early
from loopt.model import Layer, ModelConfig

MOST_ROWS = 32
"""With more, the libraries' products are as fast."""
KINDS = {"none": 0, "swiglu": 1, "gelu": 2, "relu": 3}
SWIGLU, GELU, RELU = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)


@triton.jit
def _activated(total, gated, KIND: tl.constexpr):
    if KIND == SWIGLU:
        total *= gated / (1.0 + tl.exp(-gated))
    elif KIND == GELU:
        total *= 0.5 * (1.0 + tl.erf(total * 0.7071067811865476))
    elif KIND == RELU:
        total = tl.maximum(total, 0.0)
    return total


@triton.jit
def _vector_kernel(
    x, norm, weight, gate, residual, y, M, N, alpha, eps,
    K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    NORM: tl.constexpr, KIND: tl.constexpr, RESIDUAL: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Computes what ``_linear_kernel`` does, for one row: BN outputs, with all inputs at once. Weights are asked for
    before the kernel before this one has ended."""
    n, k = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN), tl.arange(0, BK)
    there, at = (k < K)[None, :], tl.minimum(n, N - 1)[:, None] * K + k[None, :]
    w = tl.load(weight + at, mask=there, other=0.0).to(tl.float32)  # [BN, BK]
    gated = tl.zeros((BN,), tl.float32)
    if KIND == SWIGLU:
        g = tl.load(gate + at, mask=there, other=0.0).to(tl.float32)
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.load(x + k, mask=k < K, other=0.0).to(tl.float32)
    factor = 1.0
    if NORM:
        factor = tl.rsqrt(tl.sum(row * row) / K + eps)
        row *= tl.load(norm + k, mask=k < K, other=0.0).to(tl.float32)
    total = tl.sum(w * row[None, :], axis=1) * factor
    if KIND == SWIGLU:
        gated = tl.sum(g * row[None, :], axis=1) * factor
    total = _activated(total, gated, KIND)
    if RESIDUAL:
        total = tl.load(residual + n, mask=n < N, other=0.0).to(tl.float32) + alpha * total
    tl.store(y + n, total.to(y.dtype.element_ty), mask=n < N)


@triton.jit
def _linear_kernel(
    x, norm, weight, gate, residual, y, M, N, alpha, eps,
    K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    NORM: tl.constexpr, KIND: tl.constexpr, RESIDUAL: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Computes BN outputs of all rows: y [M, N] = kind(normed(x) [M, K] · weight [N, K]ᵀ), times alpha and added to
    ``residual``. The norm's factor of a row is one number, so it multiplies the product, not every input."""
    n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    m, k = tl.arange(0, BM), tl.arange(0, BK)
    read_n = tl.minimum(n, N - 1)[:, None] * K
    read_m = tl.minimum(m, M - 1)[:, None] * K
    total = tl.zeros((BN, BM), tl.float32)
    gated = tl.zeros((BN, BM), tl.float32)
    squares = tl.zeros((BM,), tl.float32)
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    for first in range(0, K, BK):
        inputs = tl.load(x + read_m + first + k[None, :])  # [BM, BK]
        w = tl.load(weight + read_n + first + k[None, :])  # [BN, BK]
        if NORM:
            exact = inputs.to(tl.float32)
            squares += tl.sum(exact * exact, axis=1)
            inputs = (exact * tl.load(norm + first + k)[None, :].to(tl.float32)).to(w.dtype)
        total = tl.dot(w, tl.trans(inputs), total, input_precision="ieee")
        if KIND == SWIGLU:
            g = tl.load(gate + read_n + first + k[None, :])
            gated = tl.dot(g, tl.trans(inputs), gated, input_precision="ieee")
    if NORM:
        factor = tl.rsqrt(squares / K + eps)[None, :]
        total *= factor
        gated *= factor
    total = _activated(total, gated, KIND)
    at = m[None, :] * N + n[:, None]
    mask = (n < N)[:, None] & (m < M)[None, :]
    if RESIDUAL:
        total = tl.load(residual + at, mask=mask, other=0.0).to(tl.float32) + alpha * total
    tl.store(y + at, total.to(y.dtype.element_ty), mask=mask)


def linear(
    x: Tensor,
    weight: Tensor,
    *,
    norm: nn.Module | None = None,
    kind: Literal["none", "swiglu", "gelu", "relu"] = "none",
    gate: Tensor | None = None,
    residual: Tensor | None = None,
    alpha: float = 1.0,
    out: Tensor | None = None,
) -> Tensor:
    """Returns kind(norm(x) [M, K] · weight [N, K]ᵀ) as [M, N], times alpha and added to the residual [M, N] where there
    is one. swiglu is silu of the product with ``gate``, times that with ``weight``."""
    (M, K), N = x.shape, weight.shape[0]
    y = torch.empty(M, N, device=x.device, dtype=x.dtype) if out is None else out
    BM, BN, BK, warps, stages = _tile(M, N, K, kind == "swiglu")
    scale, early = x if norm is None else norm.weight, M == 1 and launches_early(x.device)
    kernel = _vector_kernel if M == 1 else _linear_kernel
    kernel[(triton.cdiv(N, BN),)](
        x, scale, weight, weight if gate is None else gate, y if residual is None else residual, y, M, N, alpha, 1e-6,
        K, BM, BN, BK, norm is not None, KINDS[kind], residual is not None, early,
        num_warps=warps, num_stages=stages, launch_pdl=early,
    )  # fmt: skip
    return y


def _tile(M: int, N: int, K: int, gated: bool) -> tuple[int, int, int, int, int]:
    """Returns rows, outputs and inputs of a program's tile, its warps, and how many tiles it loads ahead: what was
    fastest on an H200 for the shapes of lm-1b."""
    if M == 1:
        BN, warps = (1, 4) if gated else (4, 8) if N >= 4096 else (2, 8 if K > 4096 else 4)
        return 1, BN, triton.next_power_of_2(K), warps, 1
    BM, divisor = max(16, triton.next_power_of_2(M)), K & -K  # the largest power of two that divides K
    if gated or N > 20_000:
        return BM, 64, min(divisor, 64), 4, 5 if gated and M <= 16 else 3
    return BM, 64 if N >= 4096 else 16, min(divisor, 256), 4, 3


def fits_layers(config: ModelConfig, rows: int) -> bool:
    """Tells whether ``run_layer`` and ``read_out`` can be used for a model of this shape and so many rows."""
    plain = config.norm == "rms" and config.norm_placement == "pre" and config.biases == "none" and not config.qk_norm
    inputs = (config.d_model, config.n_heads * config.width_of_head, config.d_ff)
    return fits_attention(config) and plain and rows <= MOST_ROWS and all(size % 32 == 0 for size in inputs)


def run_layer(layer: Layer, x: Tensor, context: Context) -> Tensor:
    """Computes what the layer does, for a few tokens of each row: [B, T, D] -> [B, T, D]."""
    rows, attention, feed_forward = x.flatten(0, 1), layer.attention, layer.feed_forward  # [B * T, D]
    qkv = linear(rows, attention.qkv.weight, norm=layer.attention_norm).unflatten(1, (-1, attention.head_dim))
    mixed = context.attend(qkv, context, attention.heads).flatten(1)  # [B * T, H * E]
    rows = linear(mixed, attention.output.weight, residual=rows, alpha=layer.branch_factor)
    gate = feed_forward.gate.weight if feed_forward.kind == "swiglu" else None
    hidden = linear(
        rows, feed_forward.up.weight, norm=layer.feed_forward_norm, kind=feed_forward.kind, gate=gate
    )  # [B * T, F]
    return linear(hidden, feed_forward.down.weight, residual=rows, alpha=layer.branch_factor).view_as(x)


def read_out(x: Tensor, norm: nn.Module, readout: Tensor, logits: Tensor) -> None:
    """Reads the logits [B, V] out of the last states [B, D]."""
    linear(x, readout, norm=norm, out=logits)
