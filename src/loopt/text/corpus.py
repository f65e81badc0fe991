"""Where documents come from: files, folders and globs, or a dataset of the Hugging Face hub."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from loopt.errors import InputError
from loopt.text.hub import HubDataset
from loopt.text.text_files import Document, JsonLinesFile, ParquetFile, TextFile, format_of

HUB_PREFIX = "hf:"


class DocumentSource(Protocol):
    """One file, or one dataset of the hub: documents in a fixed order."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int | None:
        """Returns the bytes as stored, or None where that is not known."""

    def documents(self, start: int) -> Iterator[Document]:
        """Yields all documents, or those after the one whose ``next`` is ``start``."""

    def identity(self, only_begun: bool) -> str:
        """Returns what tells, without reading all of it, that it is still the same."""


class Position(NamedTuple):
    """A position between two documents: ``source`` sources are read whole, and the one after them up to ``next``."""

    source: int
    next: int


START = Position(0, 0)


READERS: dict[str, Callable[[Path, str], DocumentSource]] = {
    ".txt": TextFile,
    ".jsonl": JsonLinesFile,
    ".parquet": ParquetFile,
}


class Corpus:
    """All sources of documents, one after the other."""

    def __init__(self, sources: Sequence[DocumentSource]) -> None:
        self.sources = sources
        self._identities: list[str] = []

    @classmethod
    def find(cls, specs: Sequence[str], text_field: str) -> Corpus:
        """Returns the corpus that ``specs`` name, in the order given; within a folder or a glob by name."""
        if not specs:
            raise InputError("source: none given; allowed are files, folders, globs and hf:NAME")
        return cls([source for spec in specs for source in _found(spec, text_field)])

    @property
    def end(self) -> Position:
        """Returns the position after the last document."""
        return Position(len(self.sources), 0)

    def documents(self, start: Position = START) -> Iterator[tuple[Document, Position]]:
        """Yields every document after ``start``, each with the position after it. Empty ones are left out."""
        for number in range(start.source, len(self.sources)):
            for document in self.sources[number].documents(start.next if number == start.source else 0):
                if document.text:
                    yield document, Position(number, document.next)

    def identity(self, position: Position) -> str:
        """Returns a hash of the sources up to ``position``; of the one only begun, only its first document counts.

        So a broken line that stopped the work can be repaired, and the work goes on.
        """
        while len(self._identities) < position.source:
            self._identities.append(self.sources[len(self._identities)].identity(only_begun=False))
        read = self._identities[: position.source]
        if position.next:
            read = [*read, self.sources[position.source].identity(only_begun=True)]
        return hashlib.sha256("\n".join(read).encode()).hexdigest()


def _found(spec: str, text_field: str) -> Iterable[DocumentSource]:
    if spec.startswith(HUB_PREFIX):
        return [HubDataset.find(spec, text_field)]
    path = Path(spec)
    if path.is_dir():
        paths = sorted(p for p in path.rglob("*") if p.is_file() and format_of(p) in READERS)
        if not paths:
            raise InputError(f"source {spec}: no text in this folder; read are {_readable()}")
    elif path.exists():
        paths = [path]
    else:
        paths = sorted(p for p in map(Path, glob.glob(spec, recursive=True)) if p.is_file())  # noqa: PTH207 (absolute)
        if not paths:
            raise InputError(f"source {spec}: no such file, folder or glob (a dataset of the hub is hf:NAME)")
    for path in paths:
        if format_of(path) not in READERS:
            raise InputError(f"source {path}: the ending is not known; read are {_readable()}")
    return [READERS[format_of(path)](path, text_field) for path in paths]


def _readable() -> str:
    return ", ".join(READERS) + ", also with .gz, .xz or .zst"
