"""The split of a document: a hash of its text decides."""

from __future__ import annotations

import hashlib

from loopt.source import Split


def split_of(text: bytes, validation: float, test: float) -> Split:
    """Returns the split of a document, by its hash: all copies, in every corpus, have the same one, and a larger share
    that is held out contains a smaller one."""
    drawn = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") / 2**64
    if drawn < validation:
        return "validation"
    return "test" if drawn >= 1 - test else "train"
