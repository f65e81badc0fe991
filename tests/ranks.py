"""Processes that know each other, as those that torchrun starts do."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tiny_runs import processes

SIZE = 2


def in_ranks(target: Callable[..., None], folder: Path, *arguments: Any) -> None:
    """Runs ``target(rank, folder, *arguments)`` in ``SIZE`` processes, and fails where one of them does."""
    ranks = [processes.Process(target=_rank, args=(rank, target, folder, *arguments)) for rank in range(SIZE)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
    for rank in ranks:
        rank.kill()  # one that waits for the others for ever
        rank.join()
    assert [rank.exitcode for rank in ranks] == [0] * SIZE


def _rank(rank: int, target: Callable[..., None], folder: Path, *arguments: Any) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(SIZE), "LOCAL_RANK": str(rank)}
    dist.init_process_group("gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=SIZE)
    target(rank, folder, *arguments)
    dist.barrier()
    os._exit(0)  # gloo's threads now and then abort a process that is torn down in the usual way
