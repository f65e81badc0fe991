"""Keys and values of the tokens so far, with a place for every run of a layer: a looped model needs L times as many.

Three policies say what is kept of a block that loops:

    all            a place for each loop: decoding with it says what the model says
    last           one place, which every loop reads and the last one leaves its keys and values in
    first+window   a place for all tokens in the first loop, and for the last ``window`` of them in each later one

The last two are other models, with less memory; ``loopt analyze cache RUN`` measures what they lose.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from loopt.errors import InputError, require
from loopt.limits import LARGEST, require_affordable
from loopt.model_config import ModelConfig
from loopt.plan import LoopPlan

PolicyName = Literal["all", "last", "first+window"]


@dataclass(frozen=True)
class CachePolicy:
    """What is kept of the loops of a block."""

    name: PolicyName = "all"
    window: int = 256
    """Of first+window: how many tokens, its own included, a token sees in every loop but the first."""

    def __post_init__(self) -> None:
        names = get_args(PolicyName)
        require(self.name in names, "cache", self.name, " | ".join(names), InputError)
        require(1 <= self.window <= LARGEST, "window", self.window, f"1 to {LARGEST}", InputError)

    def room(self, loops: int, length: int) -> tuple[tuple[int, int], ...]:
        """Returns how many places a layer that loops so often has, and for how many tokens, for ``length`` tokens."""
        if self.name == "all":
            return ((loops, length),)
        if self.name == "last" or loops == 1:
            return ((1, length),)
        return (1, length), (loops - 1, min(self.window, length))


class Place(NamedTuple):
    """The keys and values of one run of a layer: token p is at p modulo the tokens there is room for."""

    keys: Tensor  # [B, K, S, E]
    values: Tensor  # [B, K, S, E]
    window: int | None
    """How many tokens a token may see, its own included; None: all before it."""


class KeyValueCache:
    """Keys and values for ``batch`` sequences of up to ``length`` tokens, allocated once."""

    def __init__(
        self,
        config: ModelConfig,
        plan: LoopPlan,
        batch: int,
        length: int,
        policy: CachePolicy,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.plan, self.batch, self.length, self.policy = plan, batch, length, policy
        _require_memory(cache_bytes(config, plan, batch, length, policy, dtype.itemsize), batch, length, device)
        head = (config.heads.keys, config.width_of_head)
        self._blocks = [
            [
                # zeros, since what nobody has written yet is read with weight 0, and 0 times not-a-number is not 0
                torch.zeros(2, block.layers, places, batch, head[0], tokens, head[1], device=device, dtype=dtype)
                for places, tokens in policy.room(block.loops, length)
            ]
            for block in plan.blocks
        ]
        self.places = dict(self._all_places())

    def _all_places(self) -> Iterator[tuple[tuple[int, int], Place]]:
        for one in self.plan.passes:
            stored = self._blocks[one.block]
            for number, layer in enumerate(one.layers):
                if self.policy.name == "last" or one.loop == 0:
                    keys, values = stored[0][:, number, 0]  # [B, K, S, E] each
                    yield (layer, one.loop), Place(keys, values, None)
                elif self.policy.name == "all":
                    keys, values = stored[0][:, number, one.loop]
                    yield (layer, one.loop), Place(keys, values, None)
                else:
                    keys, values = stored[1][:, number, one.loop - 1]
                    yield (layer, one.loop), Place(keys, values, self.policy.window)

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for block in self._blocks for tensor in block)

    def copy_exits(self, block: int, exits: Tensor, positions: Tensor) -> None:
        """Copies to the later loops of a block, for the tokens at positions [B], the keys and values of the loop that
        each row left it after, counted from 0: exits [B]."""
        (stored,) = self._blocks[block]  # [2, layers, loops, B, K, S, E]
        rows = torch.arange(self.batch, device=positions.device)
        loops = torch.arange(stored.shape[2], device=positions.device)
        column = stored[:, :, :, rows, :, positions]  # [B, 2, layers, loops, K, E]
        source = torch.minimum(loops, exits[:, None])[:, None, None, :, None, None]  # [B, 1, 1, loops, 1, 1]
        stored[:, :, :, rows, :, positions] = column.gather(3, source.expand_as(column))


def cache_bytes(
    config: ModelConfig, plan: LoopPlan, batch: int, length: int, policy: CachePolicy, bytes_of_number: int
) -> int:
    """Returns the memory that keys and values of ``batch`` sequences of ``length`` tokens take."""
    tokens = sum(
        block.layers * places * room for block in plan.blocks for places, room in policy.room(block.loops, length)
    )
    return 2 * batch * tokens * config.heads.keys * config.width_of_head * bytes_of_number


def _require_memory(needed: int, batch: int, length: int, device: torch.device) -> None:
    what = f"keys and values of {batch:,} sequences of {length:,} tokens"
    if device.type == "cpu":
        require_affordable(what, memory=needed)
    elif device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        if needed > free:
            raise InputError(
                f"{what} would take {needed / 1e9:,.1f} GB; {free / 1e9:,.1f} GB of the GPU are free: "
                "allowed are fewer rows at a time (batch_size), shorter texts, or cache=last"
            )
