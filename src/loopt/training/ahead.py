"""Compiling our own kernels while the starting weights are drawn.

Drawing them keeps one thread busy for seconds, and has Python wait: another can make ready what the first step needs.
It may draw no random numbers, which would change the weights, and so compiles nothing with ``torch.compile``, which
sets the generator back to where it was. It has ended when the model is there, also where drawing was interrupted:
nothing of it can meet a CUDA graph's capture, or a kernel that is half loaded.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch.optim import SGD, Optimizer

from loopt.kernels import has_triton, own_attention
from loopt.model import ModelConfig, fastest_attention
from loopt.runs import OptimConfig, TrainConfig
from loopt.training.adafactor import Adafactor
from loopt.training.step import update


@contextmanager
def compiling_ahead(config: TrainConfig, device: torch.device, compiled: bool = True) -> Iterator[None]:
    """Where this is left, our kernels are there for this run's rotary positions, clipping and Adafactor, on CUDA."""
    if not compiled or device.type != "cuda":
        yield
        return
    with ThreadPoolExecutor(1) as thread:
        index = torch.cuda.current_device() if device.index is None else device.index  # another thread may have another
        done = thread.submit(_compile, config, torch.device("cuda", index))
        yield
        done.result()


def _compile(config: TrainConfig, device: torch.device) -> None:
    importlib.import_module("torch._inductor.compile_fx")  # takes a second or two, and compiling starts with it
    if has_triton():
        with torch.cuda.device(device):
            _attend_once(config.model)
            _update_once(config.optim)


# What follows calls kernels as training does, with tensors that Triton tells from the real ones by nothing: it compiles
# anew for another type, and for a size or a stride that is a multiple of 16 where the last was not.


def _attend_once(config: ModelConfig) -> None:
    from loopt.kernels import rotary

    if own_attention(config) is rotary.attend:  # the other one's kernels depend on how long sequences are
        heads, width = config.n_heads, config.width_of_head
        qkv = torch.zeros(16, 3, heads, width, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        angles = torch.zeros(16, width, device="cuda")
        with fastest_attention(qkv.device):
            rotary.attend(qkv, ((2, 8),), (angles, angles), config.scale).backward(torch.zeros_like(qkv[:, 0]))


def _update_once(config: OptimConfig) -> None:
    parameters = [torch.zeros(16, 16, device="cuda"), torch.zeros(16, device="cuda")]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    zero = torch.zeros((), device="cuda")
    optimizer: Optimizer
    if config.name == "adafactor":
        optimizer = Adafactor(parameters, zero.clone(), scale_parameter=config.scale_parameter, compiled=True)
    else:
        optimizer = SGD(parameters)  # of the others only clipping has a kernel of ours, the same for all
    update(parameters, [optimizer], zero, zero, config.clip_norm, compiled=True)
