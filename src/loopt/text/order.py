"""The order in which sequences are trained on: a new shuffle every epoch, computed for each position without a table.

The order is a function of data, seed and position: it does not depend on the model or the number of ranks, and resuming
needs no state.

>>> first, second = (sequence_at(range(n, n + 5), 5, "fingerprint of the data", seed=0) for n in (0, 5))
>>> first.tolist(), second.tolist()
([0, 1, 3, 2, 4], [2, 1, 4, 3, 0])
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

import torch
from torch import Tensor

from loopt.errors import InputError
from loopt.random_bits import Stream

ROUNDS = 12


def sequence_at(position: Tensor | range | Sequence[int], sequences: int, fingerprint: str, seed: int) -> Tensor:
    """Returns the index of the sequence at each position of training.

    Positions e·sequences … (e+1)·sequences - 1 are epoch e, which has every sequence once.
    """
    if sequences < 1:
        raise InputError(f"sequences={sequences}: allowed is 1 or more")
    if isinstance(position, range):
        position = torch.arange(position.start, position.stop, position.step)
    positions = torch.as_tensor(position, dtype=torch.int64)
    if positions.numel() and positions.min() < 0:
        raise InputError(f"position={int(positions.min())}: allowed is 0 or more")
    flat = positions.flatten()
    shuffled = _permute(flat % sequences, flat // sequences, sequences, Stream("text", seed, fingerprint))
    return shuffled.view(positions.shape)


def _permute(place: Tensor, epoch: Tensor, n: int, stream: Stream) -> Tensor:
    """Permutes 0 … n-1, differently in every epoch. A table of about √n rows and columns is permuted, and what lands in
    its last places, from n on, is permuted again until it does not (cycle walking)."""
    rows = isqrt(n - 1) + 1
    columns = -(-n // rows)
    shuffled = _feistel(place, epoch, rows, columns, stream)
    while (outside := shuffled >= n).any():
        shuffled[outside] = _feistel(shuffled[outside], epoch[outside], rows, columns, stream)
    return shuffled


def _feistel(place: Tensor, epoch: Tensor, rows: int, columns: int, stream: Stream) -> Tensor:
    """Permutes a table with a Feistel network: each round moves one coordinate by a random amount that depends on the
    other, so that each round can be undone."""
    row, column = place // columns, place % columns
    for i in range(ROUNDS):
        if i % 2:
            column = (column + stream.integers(epoch * rows + row, 1, columns, f"round {i}")[:, 0]) % columns
        else:
            row = (row + stream.integers(epoch * columns + column, 1, rows, f"round {i}")[:, 0]) % rows
    return row * columns + column
