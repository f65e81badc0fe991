"""Writing files so that they are there complete or not at all, whenever the process dies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from loopt.plan import InputError


class RunError(InputError):
    """A run's directory that cannot be written or does not hold what it should."""


@contextmanager
def explained(doing: str, afterwards: str = "") -> Iterator[None]:
    """Turn a full disk, a read-only directory and their like into one line."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot {doing}: {getattr(error, 'strerror', None) or error}{afterwards}") from error


def write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text)
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
