"""Optimizers for a run: the learning rate at each step, who updates which parameter, and state by parameter name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import AdamW, Optimizer

from loopt.errors import InputError
from loopt.training.adafactor import Adafactor
from loopt.training.muon import Muon

if TYPE_CHECKING:
    from loopt.runs.config import OptimConfig


def learning_rate(step: int, total_steps: int, peak: float, warmup_steps: int) -> float:
    """Learning rate of ``step``, counted from 0: a line up to the peak, then half a cosine down to zero.

    Warm-up step s has ``peak * ((s + 1) / warmup_steps)``, so the last one, ``warmup_steps - 1``, has the peak. The
    cosine starts from the peak at ``warmup_steps`` and is zero at ``total_steps``, the first step not taken.

    >>> [round(learning_rate(step, total_steps=8, peak=1.0, warmup_steps=4), 2) for step in range(9)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 0.85, 0.5, 0.15, 0.0]
    """
    if step < warmup_steps:
        return peak * ((step + 1) / warmup_steps)
    if step >= total_steps:
        return 0.0
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / (total_steps - warmup_steps)))


def build_optimizers(model: nn.Module, config: OptimConfig, compiled: bool = False) -> list[Optimizer]:
    """The optimizers that share the model's parameters out among them; step all of them."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    # A tensor, so that a captured CUDA graph reads the rate that set_lr last put there.
    lr = torch.tensor(config.lr, device=named[0][1].device)
    match config.name:
        case "adafactor":
            groups = _decay_groups((p for _, p in named), config.weight_decay)
            return [Adafactor(groups, lr=lr, scale_parameter=config.scale_parameter, compiled=compiled)]
        case "adamw":
            return [_adamw([p for _, p in named], config)]
        case "muon":
            matrices = [p for name, p in named if _is_layer_matrix(name, p)]
            others = [p for name, p in named if not _is_layer_matrix(name, p)]
            # Scaled to AdamW's update size, so that one lr serves both.
            matched = "match_rms_adamw"
            muon = Muon(matrices, lr=lr, weight_decay=config.weight_decay, adjust_lr_fn=matched)  # type: ignore[arg-type]
            return [muon, _adamw(others, config)]


def set_lr(optimizers: Iterable[Optimizer], lr: float | Tensor) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = float(lr)


def optimizer_tensors(model: nn.Module, optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """The whole state, not copied, by names such as ``token_embedding.weight/exp_avg``; zeros before any step."""
    for optimizer in optimizers:
        _create_missing_state(optimizer)
    return {
        f"{name}/{key}": tensor
        for name, parameter in model.named_parameters()
        for optimizer in optimizers
        for key, tensor in optimizer.state.get(parameter, {}).items()
    }


@torch.no_grad()
def load_optimizer_tensors(model: nn.Module, optimizers: Sequence[Optimizer], tensors: Mapping[str, Tensor]) -> None:
    """Put back what ``optimizer_tensors`` gave; of a sharded model, the full tensors."""
    expected = optimizer_tensors(model, optimizers)
    for name in sorted(expected.keys() | tensors.keys()):
        found, wanted = _describe(tensors.get(name)), _describe(expected.get(name))
        if found != wanted:
            raise InputError(f"optimizer state {name}: found {found}, expected {wanted}")
    for name, state in expected.items():
        tensor = tensors[name]
        if isinstance(state, DTensor) and not isinstance(tensor, DTensor):
            tensor = distribute_tensor(tensor.to(state.device), state.device_mesh, state.placements)
        state.copy_(tensor)


def _adamw(parameters: list[nn.Parameter], config: OptimConfig) -> AdamW:
    groups = _decay_groups(parameters, config.weight_decay)
    if parameters[0].is_cuda:
        lr = torch.tensor(config.lr, device=parameters[0].device)
        return AdamW(groups, lr=lr, betas=config.betas, fused=True, capturable=True)
    return AdamW(groups, lr=config.lr, betas=config.betas)


def _decay_groups(parameters: Iterable[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Matrices decay; biases and norms do not."""
    matrices: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    for parameter in parameters:
        (matrices if parameter.ndim >= 2 else vectors).append(parameter)
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]


def _is_layer_matrix(name: str, parameter: nn.Parameter) -> bool:
    return name.startswith("loop.") and parameter.ndim == 2


def _create_missing_state(optimizer: Optimizer) -> None:
    """Optimizers create state in their first step. A step at lr 0 changes no parameter and creates all of it, each
    tensor with the type, device and sharding that its optimizer wants; zero is what every one of them starts from."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    missing = [p for p in parameters if not optimizer.state.get(p)]
    if not missing:
        return
    grads = [p.grad for p in parameters]
    rates = [group["lr"] for group in optimizer.param_groups]
    for parameter in parameters:
        parameter.grad = None
    for parameter in missing:
        parameter.grad = torch.zeros_like(parameter)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    for parameter in missing:
        for tensor in optimizer.state[parameter].values():
            tensor.zero_()
    for group, lr in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = lr
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad


def _describe(tensor: Tensor | None) -> str:
    return "nothing" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
