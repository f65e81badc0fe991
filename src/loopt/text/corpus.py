"""A corpus of documents, from files, folders and globs, or from datasets of the Hugging Face hub."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from loopt.errors import InputError
from loopt.text.hub import HubDataset
from loopt.text.task_spec import TASK_PREFIX
from loopt.text.text_files import Document, JsonLinesFile, ParquetFile, TextFile, format_of

HUB_PREFIX = "hf:"


class DocumentSource(Protocol):
    """A file, a dataset of the hub, or a task: documents in a fixed order."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int | None:
        """Returns the stored size in bytes, or None where it is not known."""

    def documents(self, start: int) -> Iterator[Document]:
        """Yields the documents from ``start`` on: 0, or the ``next`` of the last one read."""

    @property
    def version(self) -> str | None:
        """Returns what stands for the documents where it tells that they have not changed, such as a commit."""


class Position(NamedTuple):
    """A place between two documents: ``source`` sources have been read whole, and the one after them up to ``next``."""

    source: int
    next: int
    sha256: str
    """A hash of all documents before it, which shows whether any of them has changed since."""


START = Position(0, 0, "")


READERS: dict[str, Callable[[Path, str], DocumentSource]] = {
    ".txt": TextFile,
    ".md": TextFile,
    ".jsonl": JsonLinesFile,
    ".parquet": ParquetFile,
}


class Corpus:
    """All sources of documents, one after the other."""

    def __init__(self, sources: Sequence[DocumentSource]) -> None:
        self.sources = sources
        self.end: Position | None = None
        """The position after the last document, known once it has been read."""

    @classmethod
    def find(cls, specs: Sequence[str], text_field: str) -> Corpus:
        """Returns the corpus that ``specs`` name, in the order given; folders and globs are sorted by name."""
        if not specs:
            raise InputError("source: none given; allowed are files, folders, globs and hf:NAME")
        return cls([source for spec in specs for source in sources_of(spec, text_field)])

    def documents(self, start: Position = START) -> Iterator[tuple[Document, Position]]:
        """Yields every document after ``start`` that has any text, with the position after it."""
        sha256 = start.sha256
        for number in range(start.source, len(self.sources)):
            source, first = self.sources[number], start.next if number == start.source else 0
            if source.version and not first:
                sha256 = _chained(sha256, source.version)
            for document in source.documents(first):
                if not source.version:
                    sha256 = _chained(sha256, document.text)
                if document.text:
                    yield document, Position(number, document.next, sha256)
        self.end = Position(len(self.sources), 0, sha256)

    def has_changed(self, position: Position) -> bool:
        """Tells whether the documents before ``position`` are others than they were, by reading them again."""
        if position.source > len(self.sources) or (position.source == len(self.sources) and position.next):
            return True
        sha256 = START.sha256
        for number, source in enumerate(self.sources[: position.source + bool(position.next)]):
            if source.version:
                sha256 = _chained(sha256, source.version)
                continue
            for document in source.documents(0):
                if number == position.source and document.next > position.next:
                    break
                sha256 = _chained(sha256, document.text)
        return sha256 != position.sha256

    def is_all_of(self, position: Position) -> bool:
        """Tells whether there is nothing to read after ``position``."""
        return position.source == len(self.sources)


def _chained(before: str, text: str) -> str:
    return hashlib.sha256(f"{before} {text}".encode()).hexdigest()


def sources_of(spec: str, text_field: str) -> Iterable[DocumentSource]:
    """Returns the files, or the dataset, that a source of text names."""
    if spec.startswith(TASK_PREFIX):
        raise InputError(
            f"source {spec[:200]}: a task, which has no end; allowed are files, folders, globs and hf:NAME"
        )
    if spec.startswith(HUB_PREFIX):
        return [HubDataset.find(spec, text_field)]
    try:
        return [READERS[format_of(path)](path, text_field) for path in _paths_of(spec)]
    except OSError as error:
        raise InputError(f"source {spec[:200]}: cannot be read: {error.strerror}") from None


def _paths_of(spec: str) -> list[Path]:
    path = Path(spec)
    if path.is_dir():
        paths = sorted(p for p in path.rglob("*") if format_of(p) in READERS and not p.is_dir())
        if not paths:
            raise InputError(f"source {spec}: no text files in this folder; allowed are {_formats()}")
    elif path.exists():
        paths = [path]
    else:
        paths = sorted(p for p in map(Path, glob.glob(spec, recursive=True)) if not p.is_dir())  # noqa: PTH207 (absolute)
        if not paths:
            raise InputError(f"source {spec}: no such file, folder or glob (a dataset of the hub is hf:NAME)")
    for path in paths:
        if format_of(path) not in READERS:
            raise InputError(f"source {path}: unknown file extension; allowed are {_formats()}")
        if not path.is_file():
            raise InputError(f"source {path}: not a file, but a pipe, a device or a link to nothing")
    return paths


def _formats() -> str:
    return ", ".join(READERS) + ", also with .gz, .xz or .zst"
