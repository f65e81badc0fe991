"""Files that are there complete or not at all, whenever the process dies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from loopt.errors import RunError


def write_atomically(path: Path, data: str | bytes) -> None:
    temporary = temporary_of(path)
    temporary.write_bytes(data.encode() if isinstance(data, str) else data)
    put_in_place(temporary, path)


def temporary_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def put_in_place(temporary: Path, path: Path) -> None:
    """Give a file its name once all of it is on the disk."""
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file or a directory's entries are on the disk itself."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def explain_os_errors(doing: str, afterwards: str = "") -> Iterator[None]:
    """Turn a full disk, a read-only directory and their like into a RunError of one line."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot {doing}: {getattr(error, 'strerror', None) or error}{afterwards}") from error
