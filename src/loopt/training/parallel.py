"""Several processes that train one model: who is who, how the model is spread over them, and how it is put together.

``torchrun`` starts the processes and tells each its rank. Of a step's batch each takes its share. With ``ddp`` every
process holds the whole model and gradients are averaged; with ``fsdp`` each holds a share of every weight, and the
module that runs all loops is gathered once for all of them.
"""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from loopt.model import LoopedTransformer

Parallel = Literal["ddp", "fsdp"]

BFLOAT16_ON = ("cuda",)
"""Where matrix products of language models are in bfloat16."""


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together; alone unless ``torchrun`` started it."""

    rank: int = 0
    size: int = 1
    local: int = 0
    """Among those on this machine: the number of its GPU."""

    @classmethod
    def told(cls) -> Ranks:
        """By torchrun."""
        told = os.environ
        return cls(int(told.get("RANK", 0)), int(told.get("WORLD_SIZE", 1)), int(told.get("LOCAL_RANK", 0)))

    @classmethod
    def join(cls, device: torch.device) -> Ranks:
        """Meet the others, where there are any."""
        ranks = cls.told()
        if not ranks.together:
            return ranks
        if device.type == "cuda":
            torch.cuda.set_device(ranks.local)
        if not dist.is_initialized():
            # gloo for what lives on the host, such as whether to stop: asking that way does not wait for the GPU
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            store, _, _ = next(rendezvous("env://", ranks.rank, ranks.size))
            dist.init_process_group(backend, store=fresh_part(store, ranks), rank=ranks.rank, world_size=ranks.size)
        return ranks

    @property
    def first(self) -> bool:
        """The one that writes, and decides."""
        return self.rank == 0

    @property
    def together(self) -> bool:
        return self.size > 1

    def share(self, positions: range) -> range:
        """This rank's part of a batch, of which all get as much."""
        each = len(positions) // self.size
        return positions[self.rank * each : (self.rank + 1) * each]

    def agree(self, number: int) -> int:
        """What the first rank says."""
        if not self.together:
            return number
        said = torch.tensor(number)
        dist.broadcast(said, src=0)
        return int(said)

    def add_up(self, tensor: Tensor) -> Tensor:
        if self.together:
            dist.all_reduce(tensor)
        return tensor

    def wait(self) -> None:
        if self.together:
            dist.barrier()


def fresh_part(store: Store, ranks: Ranks) -> Store:
    """A part of the store that nobody wrote to before. The store is torchrun's and outlives a restart, so the addresses
    in it may be those of ranks that are gone (pytorch issue 135712). The first rank makes up a name for the part, and
    answers everybody who has read it; whoever gets no answer has read an old one."""
    mine, store = secrets.token_hex(8), PrefixStore("loopt", store)
    if ranks.first:
        store.set("newest", mine)
        for rank in range(1, ranks.size):
            store.set(f"{mine} answer {rank}", store.get(f"{mine} {rank}").decode())  # get waits for it
        return PrefixStore(mine, store)
    while True:
        newest = store.get("newest").decode()
        store.set(f"{newest} {ranks.rank}", mine)
        answer = f"{newest} answer {ranks.rank}"
        if store.check([answer]) and store.get(answer).decode() == mine:
            return PrefixStore(newest, store)
        time.sleep(0.05)


def computes_in_bfloat16(model: LoopedTransformer) -> bool:
    return model.token_embedding.weight.device.type in BFLOAT16_ON


def spread(module: nn.Module, model: LoopedTransformer, ranks: Ranks, parallel: Parallel) -> nn.Module:
    """``module``, whose forward runs ``model`` and returns the loss, for all ranks."""
    if not ranks.together:
        return module
    cuda = model.token_embedding.weight.is_cuda
    if parallel == "ddp":
        return DistributedDataParallel(module, device_ids=[ranks.local] if cuda else None)
    # What goes in is not cast: the weights of the sequences would be rounded, and with them the loss.
    rounded = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    policy = rounded if computes_in_bfloat16(model) else MixedPrecisionPolicy()
    fully_shard(model.loop, mp_policy=policy)
    fully_shard(module, mp_policy=policy)
    return module


def whole(tensor: Tensor) -> Tensor:
    """A tensor that may be spread over the ranks, in one piece; all of them have to ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
