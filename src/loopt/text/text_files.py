"""Documents of local files: plain text, JSON lines and Parquet, also compressed."""

from __future__ import annotations

import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from loopt.errors import InputError
from loopt.text.compressed import COMPRESSIONS, INSTALL, decompressed


class Document(NamedTuple):
    text: str
    next: int
    """Where in its source the next document begins, counted in lines, rows or files."""
    bytes_read: int
    """How much of the stored source has been read, for the progress bar."""


def format_of(path: Path) -> str:
    """Returns the extension that tells the format, which for ``x.jsonl.zst`` is ``.jsonl``."""
    name = Path(path.stem) if path.suffix in COMPRESSIONS else path
    return name.suffix


@dataclass(frozen=True)
class LocalFile(ABC):
    path: Path
    text_field: str
    version = None

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    @abstractmethod
    def documents(self, start: int) -> Iterator[Document]:
        """Yields the documents from ``start`` on: 0, or the ``next`` of the last one read."""

    @contextmanager
    def opened(self) -> Iterator[tuple[io.BufferedReader, io.BufferedIOBase]]:
        """Opens the file as stored and as decompressed."""
        try:
            with self.path.open("rb") as stored:
                yield stored, decompressed(stored, self.path)
        except OSError as error:
            raise InputError(f"source {self.path}: cannot be read: {error.strerror or error}") from error


class TextFile(LocalFile):
    """A file that is one document."""

    def documents(self, start: int) -> Iterator[Document]:
        if start == 0:
            with self.opened() as (_, stream):
                data = stream.read()
            try:
                yield Document(data.decode("utf-8-sig"), 1, self.size)
            except UnicodeDecodeError as error:
                raise InputError(f"source {self.path}: not UTF-8 at byte {error.start}") from None


class JsonLinesFile(LocalFile):
    """A file with one document per line: a JSON object with the text in a field."""

    def documents(self, start: int) -> Iterator[Document]:
        with self.opened() as (stored, stream):
            for number, line in enumerate(stream, 1):
                if number > start and not line.isspace():
                    yield Document(self._text(line, number), number, stored.tell())

    def _text(self, line: bytes, number: int) -> str:
        where = f"source {self.path}, line {number}"
        try:
            record = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not a line of JSON: {error}") from None
        return text_of(record, self.text_field, where)


class ParquetFile(LocalFile):
    """A file with one document per row."""

    def documents(self, start: int) -> Iterator[Document]:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise InputError(f"source {self.path}: reading Parquet needs pyarrow; {INSTALL}") from None
        row = 0
        try:
            with pyarrow.parquet.ParquetFile(self.path, page_checksum_verification=True) as file:
                columns, rows = file.schema_arrow.names, file.metadata.num_rows
                if self.text_field not in columns:
                    raise _no_text(f"source {self.path}", self.text_field, columns)
                for batch in file.iter_batches(batch_size=256, columns=[self.text_field]):
                    for record in batch.to_pylist():
                        row += 1
                        if row > start:
                            text = text_of(record, self.text_field, f"source {self.path}, row {row}")
                            yield Document(text, row, self.size * row // rows)
                if row != rows:
                    raise InputError(f"source {self.path}: damaged: {row} rows, its metadata says {rows}")
        except InputError:
            raise
        except Exception as error:  # a damaged file makes the package raise nearly anything
            first = str(error).strip().partition("\n")[0]
            raise InputError(f"source {self.path}: damaged or cut short after row {row}: {first}") from error


def text_of(record: Any, field: str, where: str) -> str:
    """Returns the text of a record of JSON, Parquet or a dataset."""
    text = record.get(field) if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise _no_text(where, field, list(record) if isinstance(record, dict) else [])
    return _LONE_SURROGATE.sub("\ufffd", text) if not text.isascii() else text


# JSON can have half of a surrogate pair, which UTF-8 cannot encode.
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def _no_text(where: str, field: str, fields: list[str]) -> InputError:
    found = f"the fields are {', '.join(fields)}" if fields else "it is no object with fields"
    return InputError(f"{where}: no text in field {field!r}; {found} (choose with --text-field)")
