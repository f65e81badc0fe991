"""What goes wrong with a run's files, told in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
