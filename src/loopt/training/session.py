"""How a process works on a run: device, compilation, memory, time limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from loopt.devices import DeviceName
from loopt.errors import require
from loopt.training.parallel import Parallel
from loopt.training.trackers import TrackerName

MOST_THREADS = 1024


@dataclass(frozen=True)
class Session:
    """How this process works on a run. Nothing here changes what is computed, but for rounding."""

    device: DeviceName = "auto"
    """Where to train; auto takes the first of cuda, mps, cpu that is there."""
    threads: int | None = None
    """Threads to train with on a CPU; unless given, by the size of the model, or as many as OMP_NUM_THREADS says."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the layers and the sampler; auto does so on cuda, where it pays."""
    time_limit: float | None = None
    """Seconds after which to save and stop; the same command resumes from there."""
    micro_batch: int | None = None
    """Sequences of text that a GPU works on at a time, gradients being accumulated; none: its whole share of the
    batch. Fewer take less memory."""
    recompute: bool = False
    """Keep the states between loops only and compute the rest again in the backward pass: for large models."""
    parallel: Parallel = "ddp"
    """On several GPUs, started by torchrun: ddp has the whole model on each, fsdp a shard of every weight."""
    keep: tuple[int, ...] = ()
    """Steps whose checkpoints are kept for good, besides the last and the best; one is made at each of them."""
    log: tuple[TrackerName, ...] = ()
    """Besides metrics.jsonl, log to tensorboard or wandb."""
    progress: bool = True
    """Show a progress bar on a terminal, and elsewhere a line for every log and evaluation."""

    def __post_init__(self) -> None:
        if self.time_limit is not None:
            require(self.time_limit >= 0, "time_limit", self.time_limit, "0 seconds or more")
        if self.threads is not None:
            require(1 <= self.threads <= MOST_THREADS, "threads", self.threads, f"1 to {MOST_THREADS}")
        if self.micro_batch is not None:
            require(self.micro_batch >= 1, "micro_batch", self.micro_batch, "1 or more")
        require(all(step >= 1 for step in self.keep), "keep", self.keep, "steps, 1 or more")

    def compiles_on(self, device: torch.device) -> bool:
        return self.compile == "on" or (self.compile == "auto" and device.type == "cuda")
