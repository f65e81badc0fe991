"""Files between the stages: a request, or a prediction, on every line, as JSON; compressed where a name ends in .gz."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from loopt.errors import InputError
from loopt.evaluation.exchange import Prediction, Request
from loopt.files import explain_os_errors, parse_json, write_atomically
from loopt.runs.codec import decode

ANSWERS = ".jsonl.gz"
"""How the file of a task's predictions ends that is kept beside a result."""

Line = TypeVar("Line", Request, Prediction)


def write_lines(path: Path, items: Iterable[Request] | Iterable[Prediction]) -> None:
    """Writes a file that is there complete or not at all."""
    data = "".join(_line(item) for item in items).encode()
    with explain_os_errors(f"write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def read_lines(kind: type[Line], path: Path) -> list[Line]:
    """Returns what ``write_lines`` wrote; an InputError names the line and field that is wrong."""
    with explain_os_errors(f"read {path}"):
        data = path.read_bytes()
    try:
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except UnicodeDecodeError:
        raise InputError(f"{path}: allowed is text in UTF-8") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise InputError(f"{path}: allowed is a whole file of gzip") from None
    found: list[Line] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line:
            where = f"{path}:{number}"
            found.append(decode(kind, parse_json(line, where, InputError), where))
    if not found:
        raise InputError(f"{path}: there is no line in it; allowed are 1 or more")
    return found


def fingerprint(requests: Sequence[Request]) -> str:
    """Returns a short hash of requests: of the data, the shots and how all is written."""
    return sha256("".join(_line(request) for request in requests).encode()).hexdigest()[:16]


def by_task(items: Sequence[Line]) -> dict[str, list[Line]]:
    """Returns the items of each task."""
    found: dict[str, list[Line]] = {}
    for item in items:
        found.setdefault(item.task, []).append(item)
    return found


def _line(item: Any) -> str:
    return json.dumps(asdict(item), ensure_ascii=False) + "\n"
