"""Compressed files, decompressed piece by piece: whatever a file expands to, little of it is in memory at a time."""

from __future__ import annotations

import io
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loopt.errors import InputError

COMPRESSIONS = (".gz", ".xz", ".zst")
INSTALL = "install it with: pip install 'loopt[data]'"
PIECE = 2**10
"""The stored bytes to expand at once. Zstandard, the densest, makes at most 128 KiB of 4 bytes: 32 MiB of a piece."""


def decompressed(stored: io.BufferedReader, path: Path) -> io.BufferedIOBase:
    """Returns what a file holds, decompressed if its name says so; where that is damaged, reading raises InputError."""
    match path.suffix:
        case ".gz":
            streams = _Streams(stored, path, lambda: zlib.decompressobj(wbits=31), padding=b"\0")
        case ".xz":
            streams = _Streams(stored, path, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), padding=b"\0")
        case ".zst":
            frames = _zstandard().ZstdDecompressor(max_window_size=2**31)
            streams = _Streams(stored, path, frames.decompressobj, padding=b"")
        case _:
            return stored
    return io.BufferedReader(streams, 2**20)


class _Streams(io.RawIOBase):
    """The contents of all streams of a compressed file, which must fill it: the readers that Python and zstandard bring
    end silently where a file is cut short, or where something else follows the first stream."""

    def __init__(
        self, stored: io.BufferedReader, path: Path, new_decompressor: Callable[[], Any], padding: bytes
    ) -> None:
        self._stored = stored
        self._path = path
        self._new_decompressor = new_decompressor
        self._stream = new_decompressor()
        self._padding = padding
        self._expanded = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._expanded:
            data = self._next_piece()
            if not data:
                return 0
            try:
                self._expanded = memoryview(self._stream.decompress(data))
            except Exception as error:  # each package raises its own
                raise self._damaged(str(error)) from None
        count = min(len(buffer), len(self._expanded))
        buffer[:count], self._expanded = self._expanded[:count], self._expanded[count:]
        return count

    def _next_piece(self) -> bytes:
        """Returns the next stored bytes that belong to a stream, starting another where one has ended."""
        if not self._stream.eof:
            data = self._stored.read(PIECE)
            if not data:
                raise self._damaged("it ends within a stream")
            return data
        data = self._stream.unused_data.lstrip(self._padding)
        while not data:
            stored = self._stored.read(PIECE)
            if not stored:
                return b""
            data = stored.lstrip(self._padding)
        self._stream = self._new_decompressor()
        return data

    def _damaged(self, problem: str) -> InputError:
        place = self._stored.tell()
        return InputError(f"source {self._path}: damaged or cut short near byte {place}: {problem}")


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError:
        raise InputError(f"reading .zst files needs zstandard; {INSTALL}") from None
    return zstandard
