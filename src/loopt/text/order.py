"""In which order sequences are trained on: a new shuffle every epoch, computed for each position without a table.

The order is a function of data, seed and position, so it does not change with the model, with the number of ranks,
or with a restart.

>>> first, second = (sequence_at(range(n, n + 5), 5, "fingerprint of the data", seed=0) for n in (0, 5))
>>> first.tolist(), second.tolist()
([1, 3, 0, 4, 2], [0, 4, 1, 3, 2])
"""

from __future__ import annotations

import hashlib
from math import isqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loopt.errors import InputError

ROUNDS = 12
_GOLDEN, _FIRST_FACTOR, _SECOND_FACTOR = map(np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))

Words = NDArray[np.uint64]


def sequence_at(position: ArrayLike, sequences: int, fingerprint: str, seed: int) -> NDArray[np.int64]:
    """Positions, which count training examples from 0 for ever -> the number of the sequence each of them trains on.

    Positions e·sequences … (e+1)·sequences - 1 are epoch e, in which every sequence comes once.
    """
    if sequences < 1:
        raise InputError(f"sequences={sequences}: allowed is 1 or more")
    positions = np.asarray(position)
    if positions.size and positions.min() < 0:
        raise InputError(f"position={positions.min()}: allowed is 0 or more")
    epoch, place = np.divmod(positions.astype(np.uint64).reshape(-1), np.uint64(sequences))
    shuffled = _shuffled(place, _mix(epoch + _key(fingerprint, seed)), sequences)
    return shuffled.astype(np.int64).reshape(positions.shape)


def _shuffled(place: Words, key: Words, n: int) -> Words:
    """A permutation of 0 … n-1 for every key: one of a table of about √n rows and columns, and whatever lands in
    the table's last places, from n on, is moved again until it does not."""
    rows = isqrt(n - 1) + 1
    columns = -(-n // rows)
    shuffled = _moved(place, key, np.uint64(rows), np.uint64(columns))
    while (outside := shuffled >= n).any():
        again = _moved(shuffled[outside], key[outside], np.uint64(rows), np.uint64(columns))
        shuffled[outside] = again
    return shuffled


def _moved(place: Words, key: Words, rows: np.uint64, columns: np.uint64) -> Words:
    """A Feistel network: each round moves one coordinate by a random amount that depends on the other, so that each
    round can be undone."""
    row, column = np.divmod(place, columns)
    for i in range(ROUNDS):
        key = _mix(key + _GOLDEN)
        if i % 2:
            column = (column + _mix(row * _GOLDEN ^ key) % columns) % columns
        else:
            row = (row + _mix(column * _GOLDEN ^ key) % rows) % rows
    return row * columns + column


def _key(fingerprint: str, seed: int) -> np.uint64:
    """Hashed, so that seeds 1 and 2 are as far apart as any other two."""
    digest = hashlib.blake2b(repr((fingerprint, seed)).encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def _mix(x: Words) -> Words:
    """SplitMix64's bijection of 64-bit numbers, under which neighbours land far apart."""
    x = (x ^ (x >> np.uint64(30))) * _FIRST_FACTOR
    x = (x ^ (x >> np.uint64(27))) * _SECOND_FACTOR
    return x ^ (x >> np.uint64(31))
