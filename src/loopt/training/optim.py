"""Optimizers for a run: the learning rate at each step, who updates which parameter, and state by parameter name.

A new optimizer takes a config in ``loopt.runs.optimizers`` and a function here that builds it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import AdamW, Optimizer

from loopt.errors import InputError
from loopt.runs.optimizers import AdafactorConfig, AdamWConfig, MuonConfig, OptimizerConfig
from loopt.training.adafactor import Adafactor
from loopt.training.muon import Muon


@runtime_checkable
class ClippingOptimizer(Protocol):
    """An optimizer that clips as it reads, which saves writing all gradients."""

    clips_gradients: bool

    def step(self, *, grad_factor: Tensor) -> object:
        """Takes a step by the gradients times a factor, a 0-dim tensor; by 0 they are zero, whatever they were."""


def learning_rate(step: int, total_steps: int, peak: float, warmup_steps: int) -> float:
    """Returns the learning rate of ``step``, counted from 0: a line up to the peak, then half a cosine to zero.

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


@functools.singledispatch
def build_optimizers(config: OptimizerConfig, model: nn.Module, compiled: bool = False) -> list[Optimizer]:
    """Returns the optimizers that share the model's parameters out among them; step all of them."""
    raise TypeError(f"no optimizer is built from {config}")


@build_optimizers.register
def _adafactor(config: AdafactorConfig, model: nn.Module, compiled: bool = False) -> list[Optimizer]:
    groups = _decay_groups(_trained(model).values(), config.weight_decay)
    rate = _rate_tensor(config, model)
    return [Adafactor(groups, lr=rate, scale_parameter=config.scale_parameter, compiled=compiled)]


@build_optimizers.register
def _adamw(config: AdamWConfig, model: nn.Module, compiled: bool = False) -> list[Optimizer]:
    return [_adamw_of(list(_trained(model).values()), config)]


@build_optimizers.register
def _muon(config: MuonConfig, model: nn.Module, compiled: bool = False) -> list[Optimizer]:
    named = _trained(model)
    matrices = [p for name, p in named.items() if _is_layer_matrix(name, p)]
    others = [p for name, p in named.items() if not _is_layer_matrix(name, p)]
    return [Muon(matrices, _rate_tensor(config, model), config.weight_decay), _adamw_of(others, config)]


def set_lr(optimizers: Iterable[Optimizer], lr: float | Tensor) -> None:
    """Sets the learning rate of all optimizers, in place where it is a tensor."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = float(lr)


def optimizer_tensors(model: nn.Module, optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """Returns all state, not copied, by names such as ``token_embedding.weight/exp_avg``; a parameter has none
    before its first step."""
    return {
        f"{name}/{key}": tensor
        for name, parameter in model.named_parameters()
        for optimizer in optimizers
        for key, tensor in optimizer.state.get(parameter, {}).items()
    }


@torch.no_grad()
def load_optimizer_tensors(model: nn.Module, optimizers: Sequence[Optimizer], tensors: Mapping[str, Tensor]) -> None:
    """Loads what ``optimizer_tensors`` gave, of a sharded model the full tensors. A parameter that has none there had
    no step yet. Optimizers take a step to make their state, so the weights are to be loaded after this."""
    started = {name.partition("/")[0] for name in tensors}
    for optimizer in optimizers:
        _create_state(optimizer)
        for name, parameter in model.named_parameters():
            if name not in started:
                optimizer.state.pop(parameter, None)
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


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _rate_tensor(config: OptimizerConfig, model: nn.Module) -> Tensor:
    """Returns the rate as a tensor, so that a captured CUDA graph reads what set_lr last put there."""
    return torch.tensor(config.lr, device=next(model.parameters()).device)


def _adamw_of(parameters: list[nn.Parameter], config: AdamWConfig) -> AdamW:
    groups = _decay_groups(parameters, config.weight_decay)
    if parameters[0].is_cuda:
        lr = torch.tensor(config.lr, device=parameters[0].device)
        return AdamW(groups, lr=lr, betas=config.betas, fused=True, capturable=True)
    return AdamW(groups, lr=config.lr, betas=config.betas)


def _decay_groups(parameters: Iterable[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Returns two groups of parameters: matrices decay; biases and norms do not."""
    matrices: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    for parameter in parameters:
        (matrices if parameter.ndim >= 2 else vectors).append(parameter)
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]


def _is_layer_matrix(name: str, parameter: nn.Parameter) -> bool:
    return name.startswith("loop.") and not name.startswith("loop.entries.") and parameter.ndim == 2


def _create_state(optimizer: Optimizer) -> None:
    """Has an optimizer make its state, each tensor with the type, device and sharding that it wants: most do so in
    their first step, so it takes one, at rate 0."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if all(optimizer.state.get(p) for p in parameters):
        return
    grads = [p.grad for p in parameters]
    rates = [group["lr"] for group in optimizer.param_groups]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    for group, lr in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = lr
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad


def _describe(tensor: Tensor | None) -> str:
    return "nothing" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
