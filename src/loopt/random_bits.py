"""Random numbers without state: a draw depends on stream, purpose and the example's index, and on nothing else.

An example is therefore the same on every device, in every batch and order, and on every rank. The mixing is that
of SplitMix64, done with the wrapping arithmetic of int64 tensors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15 - 2**64
FIRST_FACTOR = 0xBF58476D1CE4E5B9 - 2**64
SECOND_FACTOR = 0x94D049BB133111EB - 2**64


@dataclass(frozen=True)
class Stream:
    """The random numbers of one name, seed and split. Different streams, and purposes within one, are unrelated."""

    name: str
    """Who draws: the name of a task, or of whatever else needs random numbers."""
    seed: int
    split: str

    def bits(self, indices: Tensor, draws: int, purpose: str) -> Tensor:
        """Draws 64 random bits for each index and column: [batch] indices -> [batch, draws] int64."""
        row_key, column_key = self.keys(purpose)
        # Xor first: the compiler would turn a product of arange and a large factor into index arithmetic in 32 bits.
        rows = _mix((indices ^ row_key) * GOLDEN)  # [batch]
        columns = _mix((torch.arange(draws, device=indices.device) ^ column_key) * GOLDEN)  # [draws]
        return _mix(rows[:, None] + columns)  # [batch, draws]

    def keys(self, purpose: str) -> tuple[int | Tensor, int | Tensor]:
        """Returns the keys of rows and of columns that set this stream and purpose apart from all others."""
        return _keys((self.name, self.seed, self.split, purpose))

    def integers(self, indices: Tensor, draws: int, high: int | Tensor, purpose: str) -> Tensor:
        """Draws [batch, draws] integers in [0, high); ``high``, below 2**31, may differ from draw to draw."""
        # Scaling 32 random bits favors some values by at most high / 2**32, which no test of ours could notice.
        return (_shift_right(self.bits(indices, draws, purpose), 32) * high) >> 32

    def sort_keys(self, indices: Tensor, draws: int, purpose: str) -> Tensor:
        """Draws [batch, draws] numbers that sort each row into a random permutation: none negative, no two equal."""
        column_bits = draws.bit_length()
        keys = _shift_right(self.bits(indices, draws, purpose), 1 + column_bits) << column_bits
        return keys | torch.arange(draws, device=indices.device)


@dataclass(frozen=True, eq=False)
class TensorStream(Stream):
    """The same numbers as another stream's, with its keys in a tensor: a compiled sampler then has no seed in its code,
    and serves all seeds."""

    purposes: tuple[str, ...]
    table: Tensor
    """[purposes, 2] int64"""

    @classmethod
    def like(cls, stream: Stream, draw: Callable[[Stream], object], device: torch.device) -> TensorStream:
        """Returns a copy of ``stream`` for whatever ``draw`` asks of it; ``draw`` is called once to find out."""
        seen = _RecordingStream(stream.name, stream.seed, stream.split)
        draw(seen)
        purposes = tuple(seen.purposes)
        table = torch.tensor([stream.keys(purpose) for purpose in purposes], dtype=torch.int64, device=device)
        return cls(stream.name, stream.seed, stream.split, purposes, table)

    def keys(self, purpose: str) -> tuple[int | Tensor, int | Tensor]:
        row_key, column_key = self.table[self.purposes.index(purpose)].unbind()
        return row_key, column_key


class RowStream:
    """Random numbers of rows that each have a key of their own, such as texts that are generated side by side."""

    def __init__(self, keys: Tensor) -> None:
        self._keys = keys  # [rows] int64

    def uniform(self, counts: Tensor, purpose: str) -> Tensor:
        """Draws a number in [0, 1) for each row, by its key and a count [rows], such as that of its tokens so far."""
        row_key, count_key = row_keys(purpose)
        bits = _mix(_mix((self._keys ^ row_key) * GOLDEN) + _mix((counts ^ count_key) * GOLDEN))
        return _shift_right(bits, 64 - 24).float() * 2.0**-24


def row_keys(purpose: str) -> tuple[int, int]:
    """Returns the keys by which a ``RowStream`` tells keys of rows, counts and purposes apart."""
    return _keys(("rows", 0, "", purpose))


@dataclass(frozen=True)
class _RecordingStream(Stream):
    """A stream that records the purposes it is asked for."""

    purposes: dict[str, None] = field(default_factory=dict)

    def keys(self, purpose: str) -> tuple[int | Tensor, int | Tensor]:
        self.purposes[purpose] = None
        return super().keys(purpose)


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]  # so that a sampler compiles as one piece
def _keys(stream_and_purpose: tuple[str, int, str, str]) -> tuple[int, int]:
    """Hashes to a key for rows and one for columns, so that seeds 1 and 2 are as far apart as any other two."""
    digest = hashlib.blake2b(repr(stream_and_purpose).encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little", signed=True), int.from_bytes(digest[8:], "little", signed=True)


def _mix(x: Tensor) -> Tensor:
    """Maps 64-bit numbers one to one, and neighbors far apart."""
    x = (x ^ _shift_right(x, 30)) * FIRST_FACTOR
    x = (x ^ _shift_right(x, 27)) * SECOND_FACTOR
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, by: int) -> Tensor:
    """Shifts as if unsigned: int64's own shift would copy the sign into the freed bits."""
    return (x >> by) & ((1 << (64 - by)) - 1)
