"""A corpus of documents, from files, folders and globs, or from datasets of the Hugging Face hub."""

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
    """A file, or a dataset of the hub: documents in a fixed order."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int | None:
        """Returns the stored size in bytes, or None where it is not known."""

    def documents(self, start: int) -> Iterator[Document]:
        """Yields the documents from ``start`` on: 0, or the ``next`` of the last one read."""

    def identity(self, only_begun: bool) -> str:
        """Returns what shows, without reading it all, whether the source has changed. Where it is ``only_begun``, the
        rest of it may still change."""


class Position(NamedTuple):
    """A place between two documents: ``source`` sources have been read whole, and the one after them up to ``next``."""

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
        """Returns the corpus that ``specs`` name, in the order given; folders and globs are sorted by name."""
        if not specs:
            raise InputError("source: none given; allowed are files, folders, globs and hf:NAME")
        return cls([source for spec in specs for source in _sources_of(spec, text_field)])

    @property
    def end(self) -> Position:
        """Returns the position after the last document."""
        return Position(len(self.sources), 0)

    def documents(self, start: Position = START) -> Iterator[tuple[Document, Position]]:
        """Yields every document after ``start`` that has any text, with the position after it."""
        for number in range(start.source, len(self.sources)):
            for document in self.sources[number].documents(start.next if number == start.source else 0):
                if document.text:
                    yield document, Position(number, document.next)

    def identity(self, position: Position) -> str:
        """Returns a hash of the sources up to ``position``. Of one only begun, just the first document counts, so that
        a broken line can be repaired and preparing resumed."""
        while len(self._identities) < position.source:
            self._identities.append(self.sources[len(self._identities)].identity(only_begun=False))
        read = self._identities[: position.source]
        if position.next:
            read = [*read, self.sources[position.source].identity(only_begun=True)]
        return hashlib.sha256("\n".join(read).encode()).hexdigest()


def _sources_of(spec: str, text_field: str) -> Iterable[DocumentSource]:
    if spec.startswith(HUB_PREFIX):
        return [HubDataset.find(spec, text_field)]
    path = Path(spec)
    if path.is_dir():
        paths = sorted(p for p in path.rglob("*") if p.is_file() and format_of(p) in READERS)
        if not paths:
            raise InputError(f"source {spec}: no text files in this folder; allowed are {_formats()}")
    elif path.exists():
        paths = [path]
    else:
        paths = sorted(p for p in map(Path, glob.glob(spec, recursive=True)) if p.is_file())  # noqa: PTH207 (absolute)
        if not paths:
            raise InputError(f"source {spec}: no such file, folder or glob (a dataset of the hub is hf:NAME)")
    for path in paths:
        if format_of(path) not in READERS:
            raise InputError(f"source {path}: unknown file extension; allowed are {_formats()}")
    return [READERS[format_of(path)](path, text_field) for path in paths]


def _formats() -> str:
    return ", ".join(READERS) + ", also with .gz, .xz or .zst"
