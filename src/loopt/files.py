"""Files that are there complete or not at all, whenever the process dies, and locks on them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from safetensors import SafetensorError

from loopt.errors import RunError

try:
    import fcntl
except ImportError:  # Windows: two processes at work on one directory are then not noticed
    fcntl = None  # type: ignore[assignment]


def write_atomically(path: Path, data: str | bytes) -> None:
    """Writes a file that is there complete or not at all."""
    temporary = temporary_of(path)
    temporary.write_bytes(data.encode() if isinstance(data, str) else data)
    put_in_place(temporary, path)


def temporary_of(path: Path) -> Path:
    """Returns the name that a file has while it is being written."""
    return path.with_name(f".{path.name}.tmp")


def put_in_place(temporary: Path, path: Path) -> None:
    """Gives a file its name once all of it is on the disk."""
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Waits until a file or a directory's entries are on the disk itself."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_lock(path: Path) -> IO[bytes] | None:
    """Locks a file for this process until it is closed, and returns it; None where another process holds the lock."""
    file = path.open("ab")
    if fcntl:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
    return file


@contextmanager
def explain_os_errors(doing: str, afterwards: str = "") -> Iterator[None]:
    """Turns a full disk, a read-only directory and their like into a RunError of one line."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot {doing}: {getattr(error, 'strerror', None) or error}{afterwards}") from error
