"""The split of a document: a hash of its text decides."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from itertools import accumulate

from loopt.source import Split


def split_of(text: bytes, validation: float, test: float) -> Split:
    """Returns the split of a document, by its hash: all copies, in every corpus, have the same one, and a larger share
    that is held out contains a smaller one."""
    drawn = _draw(text)
    if drawn < validation:
        return "validation"
    return "test" if drawn >= 1 - test else "train"


def shares_that_hold_out(texts: Iterable[str], share: float) -> tuple[float, float] | None:
    """Returns the shares for validation and test: ``share``, or where that holds out none of a few documents, what
    holds out as large a part of the text. None where there are fewer than three documents, one for each split."""
    documents = sorted({(_draw(text.encode()), len(text)) for text in texts if text})
    drawn, lengths = [draw for draw, _ in documents], [length for _, length in documents]
    if len(documents) < 3:
        return None
    low, high = sum(draw < share for draw in drawn), sum(draw >= 1 - share for draw in drawn)
    first = min(low or _enough(lengths, share), len(documents) - 2)
    last = min(high or _enough(lengths[::-1], share), len(documents) - 1 - first)
    validation = share if first == low else math.nextafter(drawn[first - 1], 1)
    test = share if last == high else math.nextafter(1 - drawn[-last], 1)
    return validation, test


def _enough(lengths: list[int], share: float) -> int:
    """Returns how many of the first documents have a share of all text."""
    wanted = share * sum(lengths)
    return next(count for count, text in enumerate(accumulate(lengths), 1) if text >= wanted)


def _draw(text: bytes) -> float:
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") / 2**64
