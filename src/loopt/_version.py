"""Which code this is."""

from __future__ import annotations

import hashlib
from pathlib import Path

__version__ = "0.1.0"


def source_hash(folder: Path) -> str:
    """Of all Python in a folder: the same for the same text, where a version number may stand for several."""
    source = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        source.update(path.read_bytes())
    return source.hexdigest()[:16]
