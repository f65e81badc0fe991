"""What compiles while weights are drawn changes no weight, ends in time, and is what training launches then."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch

from loopt import LoopPlan
from loopt.attention import fastest_attention
from loopt.kernels import fused_attention
from loopt.runs import AdafactorConfig, MuonConfig, OptimizerConfig, TrainConfig
from loopt.training import kernel_warmup
from loopt.training.kernel_warmup import warming_up_kernels
from loopt.training.optim import build_optimizers
from loopt.training.presets import PRESETS
from loopt.training.trainer import build_model
from loopt.training.update import update
from tiny_runs import TINY

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)  # named only: what would use it is replaced


def test_has_ended_where_it_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, done = threading.Event(), []

    def wait(config: TrainConfig, device: torch.device) -> None:
        drawn.wait()
        done.append((config, device))

    monkeypatch.setattr(kernel_warmup, "_compile", wait)
    before = threading.active_count()
    with warming_up_kernels(TINY, GPU):
        assert not done
        drawn.set()
    assert done == [(TINY, GPU)]
    assert threading.active_count() == before


@pytest.mark.parametrize(("device", "compiled"), [(CPU, True), (GPU, False)])
def test_only_where_layers_are_compiled(device: torch.device, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    monkeypatch.setattr(kernel_warmup, "_compile", lambda config, device: done.append(config))
    with warming_up_kernels(TINY, device, compiled):
        pass
    assert not done


def test_what_goes_wrong_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*of: Any) -> None:
        raise OSError("no room for kernels")

    monkeypatch.setattr(kernel_warmup, "_compile", fail)
    with pytest.raises(OSError, match="no room"), warming_up_kernels(TINY, GPU):
        pass


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    "optim", [AdafactorConfig(), AdafactorConfig(weight_decay=0.1, scale_parameter=False), MuonConfig()]
)
def test_training_compiles_none_of_our_kernels_again(optim: OptimizerConfig) -> None:
    adafactor, clip, rotary = (pytest.importorskip(f"loopt.kernels.{name}") for name in ("adafactor", "clip", "rotary"))
    kernels = {
        name: kernel
        for module in (adafactor, clip, rotary)
        for name, kernel in vars(module).items()
        if hasattr(kernel, "device_caches")
    }
    base = PRESETS["lm-10m"]()
    config = replace(base, model=replace(base.model, plan=LoopPlan.parse("2x1")), optim=optim)
    with warming_up_kernels(config, torch.device("cuda")):
        model = build_model(config, torch.device("cuda"))
    for one, other in zip(model.parameters(), build_model(config, CPU).parameters(), strict=True):
        assert torch.equal(one.cpu(), other)

    ready = {name: len(kernel.device_caches[0][0]) for name, kernel in kernels.items()}
    attend = fused_attention(config.model)
    assert attend is rotary.attend
    heads, width = config.model.n_heads, config.model.width_of_head
    qkv = torch.randn(4 * 1280, 3 * heads, width, device="cuda").bfloat16().requires_grad_()
    with fastest_attention(qkv.device):
        attend(qkv, model.context(((4, 1280),)), config.model.heads).sum().backward()
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    zero = torch.zeros((), device="cuda")
    update(model.parameters(), build_optimizers(optim, model, compiled=True), zero, zero, 1.0, compiled=True)
    assert {name: len(kernel.device_caches[0][0]) for name, kernel in kernels.items()} == ready
    assert ready["_apply" if optim.name == "adafactor" else "_scale_or_zero"] > 0
