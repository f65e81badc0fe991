"""Documents of local files: plain text, JSON lines and Parquet, also compressed."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import lzma
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from loopt.errors import InputError

COMPRESSIONS = (".gz", ".xz", ".zst")
INSTALL = "install it with: pip install 'loopt[data]'"
MEBIBYTE = 2**20


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

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    @abstractmethod
    def documents(self, start: int) -> Iterator[Document]:
        """Yields the documents from ``start`` on: 0, or the ``next`` of the last one read."""

    def identity(self, only_begun: bool) -> str:
        """Returns a hash of size, beginning and end, since reading all of a large file again would take too long; where
        it is only begun, of its first document, since what comes later may still be repaired."""
        if only_begun:
            first = next(self.documents(0), None)
            return hashlib.sha256(first.text.encode()).hexdigest() if first else "no document"
        with self.path.open("rb") as file:
            digest = hashlib.sha256(str(self.size).encode())
            digest.update(file.read(MEBIBYTE))
            file.seek(max(0, self.size - MEBIBYTE))
            digest.update(file.read())
        return digest.hexdigest()

    @contextmanager
    def opened(self) -> Iterator[tuple[io.BufferedReader, io.BufferedIOBase]]:
        """Opens the file as stored and as decompressed."""
        damage: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error, lzma.LZMAError)
        if self.path.suffix == ".zst":
            damage = (*damage, _zstandard().ZstdError)
        try:
            with self.path.open("rb") as stored:
                yield stored, _decompressed(stored, self.path.suffix)
        except damage as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"source {self.path}: cannot be read, perhaps damaged or cut short: {reason}") from error


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
        try:
            with pyarrow.parquet.ParquetFile(self.path) as file:
                columns = file.schema_arrow.names
                if self.text_field not in columns:
                    raise _no_text(f"source {self.path}", self.text_field, columns)
                row, rows = 0, file.metadata.num_rows
                for batch in file.iter_batches(batch_size=256, columns=[self.text_field]):
                    for record in batch.to_pylist():
                        row += 1
                        if row > start:
                            text = text_of(record, self.text_field, f"source {self.path}, row {row}")
                            yield Document(text, row, self.size * row // rows)
        except (pyarrow.ArrowException, OSError) as error:
            raise InputError(f"source {self.path}: cannot be read, perhaps damaged or cut short: {error}") from error


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


def _decompressed(stored: io.BufferedReader, suffix: str) -> io.BufferedIOBase:
    match suffix:
        case ".gz":
            return gzip.GzipFile(fileobj=stored)
        case ".xz":
            return lzma.LZMAFile(stored)
        case ".zst":
            return io.BufferedReader(_ZstdStream(stored), MEBIBYTE)
    return stored


class _ZstdStream(io.RawIOBase):
    """The decompressed frames of a Zstandard file. The package's own reader ends silently where a file is cut short."""

    def __init__(self, stored: io.BufferedReader) -> None:
        self._stored = stored
        self._decompressor = _zstandard().ZstdDecompressor(max_window_size=2**31)
        self._frame: Any = None
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            data = self._frame.unused_data if self._frame and self._frame.eof else b""
            data = data or self._stored.read(2**16)
            if not data:
                if self._frame and not self._frame.eof:
                    raise EOFError("the last frame has no end")
                return 0
            if not self._frame or self._frame.eof:
                self._frame = self._decompressor.decompressobj()
            self._rest = self._frame.decompress(data)
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError:
        raise InputError(f"reading .zst files needs zstandard; {INSTALL}") from None
    return zstandard
