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
from torch import nn

from loopt.attention import Context, fastest_attention
from loopt.kernels import fused_attention, has_triton
from loopt.model import ModelConfig
from loopt.runs import OptimizerConfig, TrainConfig
from loopt.training.optim import build_optimizers
from loopt.training.update import update


@contextmanager
def warming_up_kernels(config: TrainConfig, device: torch.device, compiled: bool = True) -> Iterator[None]:
    """Compiles, on CUDA, our kernels for this run's rotary positions, clipping and optimizer while the body runs."""
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

    if fused_attention(config) is rotary.attend:  # the other one's kernels depend on how long sequences are
        heads, width = config.n_heads, config.width_of_head
        qkv = torch.zeros(16, 3 * heads, width, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        angles = torch.zeros(16, width, device="cuda")
        with fastest_attention(qkv.device):
            context = Context(((2, 8),), (angles, angles), rotary.attend)
            rotary.attend(qkv, context, config.heads).backward(torch.zeros_like(qkv[:, :heads]))


def _update_once(config: OptimizerConfig) -> None:
    model = nn.Module()
    model.loop = nn.Linear(16, 16, device="meta").to_empty(device="cuda")  # where no random numbers are drawn
    for parameter in model.parameters():
        parameter.data.zero_()
        parameter.grad = torch.zeros_like(parameter)
    zero = torch.zeros((), device="cuda")
    optimizers = build_optimizers(config, model, compiled=True)
    update(model.parameters(), optimizers, zero, zero, config.clip_norm, compiled=True)
