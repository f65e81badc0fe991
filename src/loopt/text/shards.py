"""Writing shards: token ids, little-endian, one document after the other."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import IO

from loopt.errors import InputError
from loopt.files import put_in_place, temporary_of
from loopt.source import SPLITS, Split
from loopt.text.encoding import Ids, Piece
from loopt.text.index import Index, Part, Shard, shard_name


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
        self.tokens: Counter[int] = Counter()
        """By number of the source, as are the others."""
        self._documents: Counter[int] = Counter()
        self._text_bytes: Counter[int] = Counter()

    def add(self, source: int, piece: Piece, ids: Ids) -> None:
        self.tokens[source] += len(ids)
        self._documents[source] += piece.ends_document
        self._text_bytes[source] += piece.text_bytes
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
        parts = tuple(Part(n, self.tokens[n], self._documents[n], self._text_bytes[n]) for n in sorted(self.tokens))
        return Shard(self._path.name, self._split, self._digest.hexdigest(), parts)


class ShardWriters:
    """Writes one shard of every split, side by side."""

    def __init__(self, directory: Path, index: Index) -> None:
        self._writers = {split: ShardWriter(directory, split, len(index.of(split))) for split in SPLITS}
        self.text_bytes = 0

    def add(self, source: int, piece: Piece, ids: Ids) -> None:
        self._writers[piece.split].add(source, piece, ids)
        self.text_bytes += piece.text_bytes

    def finish(self) -> tuple[Shard, ...]:
        """Returns the shards that have any tokens, each with its file in place."""
        return tuple(writer.finish() for writer in self._writers.values() if writer.tokens.total())
