"""Several processes that train one model: their ranks, and how the model is sharded over them and gathered again.

``torchrun`` starts the processes and tells each its rank. Of a step's batch each takes its shard. With ``ddp`` every
process holds the whole model and gradients are averaged; with ``fsdp`` each holds a shard of every weight, and the
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

from loopt.errors import InputError, require
from loopt.model import LoopedTransformer
from loopt.scoring.precision import computes_in_bfloat16

Parallel = Literal["ddp", "fsdp"]


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together; alone unless ``torchrun`` started it."""

    rank: int = 0
    size: int = 1
    local: int = 0
    """Among those on this machine: the number of its GPU."""

    @classmethod
    def from_environment(cls) -> Ranks:
        """Reads rank and world size from the variables that torchrun sets."""

        def number(name: str, default: str) -> int:
            given = os.environ.get(name, default)
            require(given.isdecimal() and len(given) < 10, name, given, "a number, as torchrun sets it", InputError)
            return int(given)

        return cls(number("RANK", "0"), number("WORLD_SIZE", "1"), number("LOCAL_RANK", "0"))

    @classmethod
    def join(cls, device: torch.device) -> Ranks:
        """Starts the process group, where there are several ranks, and returns this one."""
        ranks = cls.from_environment()
        if not ranks.distributed:
            return ranks
        if device.type == "cuda":
            torch.cuda.set_device(ranks.local)
        if not dist.is_initialized():
            # gloo for what lives on the host, such as whether to stop: asking that way does not wait for the GPU
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            store, _, _ = next(rendezvous("env://", ranks.rank, ranks.size))
            dist.init_process_group(backend, store=fresh_store(store, ranks), rank=ranks.rank, world_size=ranks.size)
        return ranks

    @property
    def first(self) -> bool:
        """Tells whether this is the rank that writes, and decides."""
        return self.rank == 0

    @property
    def distributed(self) -> bool:
        return self.size > 1

    def shard(self, positions: range) -> range:
        """Returns this rank's shard of a batch; all shards are equal."""
        each = len(positions) // self.size
        return positions[self.rank * each : (self.rank + 1) * each]

    def broadcast(self, number: int) -> int:
        """Returns the first rank's number on every rank."""
        if not self.distributed:
            return number
        said = torch.tensor(number)
        dist.broadcast(said, src=0)
        return int(said)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        if self.distributed:
            dist.all_reduce(tensor)
        return tensor

    def barrier(self) -> None:
        if self.distributed:
            dist.barrier()


def fresh_store(store: Store, ranks: Ranks) -> Store:
    """Returns a namespace of the store that nobody wrote to before. The store is torchrun's and outlives a restart, so
    the addresses in it may be those of ranks that are gone (pytorch issue 135712). The first rank makes up a name, and
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


def shard_model(module: nn.Module, model: LoopedTransformer, ranks: Ranks, parallel: Parallel) -> nn.Module:
    """Returns ``module``, whose forward runs ``model`` and returns the loss, wrapped for all ranks."""
    if not ranks.distributed:
        return module
    device = model.token_embedding.weight.device
    if parallel == "ddp":
        return DistributedDataParallel(module, device_ids=[ranks.local] if device.type == "cuda" else None)
    # What goes in is not cast: the weights of the sequences would be rounded, and with them the loss.
    rounded = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    policy = rounded if computes_in_bfloat16(device) else MixedPrecisionPolicy()
    fully_shard(model.loop, mp_policy=policy)
    fully_shard(module, mp_policy=policy)
    return module


def full_tensor(tensor: Tensor) -> Tensor:
    """Gathers a tensor that may be sharded over the ranks; all of them have to call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
