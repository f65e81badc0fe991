"""Writing shards: token ids, little-endian, one document after the other."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from loopt.errors import InputError
from loopt.files import put_in_place, temporary_of
from loopt.source import Split
from loopt.text.index import Shard, shard_name


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class ShardWriter:
    """Writes one shard, under a temporary name until it is finished; without tokens there is no file."""

    def __init__(self, directory: Path, split: Split, number: int) -> None:
        self._path = directory / shard_name(split, number)
        self._split = split
        self._file: IO[bytes] | None = None
        self._digest = hashlib.sha256()
        self.tokens = self._documents = self._text_bytes = 0

    def add(self, ids: NDArray[np.unsignedinteger], documents: int, text_bytes: int) -> None:
        self.tokens += len(ids)
        self._documents += documents
        self._text_bytes += text_bytes
        if len(ids):
            self._file = self._file or temporary_of(self._path).open("wb")
            data = ids.tobytes()
            self._file.write(data)
            self._digest.update(data)

    def finish(self) -> Shard:
        """Renames the file once all of it is on disk, and returns its entry for the index.

        A file that has the name already is one that a killed process made, with the same contents, or is not ours.
        """
        assert self._file
        self._file.close()
        if self._path.exists() and sha256_of(self._path) != self._digest.hexdigest():
            raise InputError(f"{self._path}: has other contents than this command gives; move it away")
        put_in_place(temporary_of(self._path), self._path)
        return Shard(
            self._path.name, self._split, self.tokens, self._documents, self._text_bytes, self._digest.hexdigest()
        )
