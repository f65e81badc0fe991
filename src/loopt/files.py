"""Files that are there complete or not at all, whenever the process dies; locks on them; JSON that is not believed."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

from safetensors import SafetensorError

from loopt.errors import InputError, RunError
from loopt.limits import INT64

try:
    import fcntl
except ImportError:  # Windows: two processes at work on one directory are then not noticed
    fcntl = None  # type: ignore[assignment]


def write_atomically(path: Path, data: str | bytes) -> None:
    """Writes a file that is there complete or not at all."""
    temporary = temporary_of(path)
    temporary.write_bytes(data.encode() if isinstance(data, str) else data)
    put_in_place(temporary, path)


def read_json(path: Path, error: type[InputError] = RunError) -> Any:
    """Returns what a JSON file holds, or raises ``error`` with one line that names the file and what is wrong."""
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise error(f"cannot read {path}: {problem.strerror}") from None
    return parse_json(data, str(path), error)


def parse_json(data: bytes | str, where: str, error: type[InputError] = RunError) -> Any:
    """Returns what JSON from a file holds; not UTF-8, nested too deep and numbers beyond 64 bits are errors as well."""
    try:
        text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
        return json.loads(text, parse_int=_integer, parse_float=_number, parse_constant=_number)
    except UnicodeDecodeError as problem:
        raise error(f"{where}: byte {problem.start} is not UTF-8") from None
    except RecursionError:
        raise error(f"{where}: nested too deep") from None
    except json.JSONDecodeError as problem:
        raise error(f"{where}: line {problem.lineno}, column {problem.colno}: no JSON: {problem.msg}") from None
    except ValueError as problem:
        raise error(f"{where}: {problem}") from None


def _integer(written: str) -> int:
    if len(written) > 20 or int(written) not in INT64:
        raise ValueError(f"a number of {len(written)} digits; allowed are those of 64 bits")
    return int(written)


def _number(written: str) -> float:
    if not math.isfinite(float(written)):
        raise ValueError(f"{written[:20]}; allowed are finite numbers")
    return float(written)


def signed(data: dict[str, Any]) -> dict[str, Any]:
    """Returns the data with its SHA-256, by which ``check_signature`` sees whether it was edited or cut."""
    return {**data, "sha256": _sha256_of_json(data)}


def check_signature(data: Any, where: Path) -> dict[str, Any]:
    """Returns what was signed, without its hash; a RunError where it is not what was written."""
    content = {name: value for name, value in data.items() if name != "sha256"} if isinstance(data, dict) else {}
    if not content or data.get("sha256") != _sha256_of_json(content):
        raise RunError(f"{where}: not as it was written (SHA-256 differs)")
    return content


def _sha256_of_json(data: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


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


def try_lock(path: Path, mode: Literal["ab", "rb"] = "ab") -> IO[bytes] | None:
    """Locks a file for this process until it is closed, and returns it; None where another process holds the lock."""
    file = path.open(mode)
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
