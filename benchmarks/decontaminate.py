"""Packs text for training without what it shares with evaluation sets: paragraphs with 13 words in a row in common.

    python benchmarks/decontaminate.py --text corpus/*/train.jsonl.xz --evals evals --keep books=0.2 --out packed

Every ``.jsonl`` below --evals counts, whatever its fields: all of its texts. Words are letters and digits, in lower
case. A paragraph is what stands between blank lines. --keep NAME=SHARE takes only a share of the documents of files
whose path has NAME in it, by a hash of their text; --share takes a share of what is left of all files, by another hash.
One file is written for each that is read, with ``text`` alone.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import lzma
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WORDS = 13


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", nargs="+", type=Path, required=True)
    parser.add_argument("--evals", type=Path, required=True)
    parser.add_argument("--keep", nargs="*", default=[], metavar="NAME=SHARE")
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    shares = {name: float(share) for name, _, share in (written.partition("=") for written in options.keep)}
    files = sorted(options.evals.rglob("*.jsonl*"))
    known = {gram for path in files for text in texts_of(path) for gram in grams(text)}
    print(f"{len(known):,} runs of {WORDS} words in the evaluation sets")
    options.out.mkdir(parents=True, exist_ok=True)
    for path in options.text:
        share = next((share for name, share in shares.items() if name in str(path)), 1.0)
        pack(path, options.out / f"{path.parent.name}.jsonl.xz", known, share, options.share)


def pack(path: Path, out: Path, known: set[int], share: float, share_of_all: float) -> None:
    documents = dropped = kept = 0
    with lzma.open(out, "wt", preset=9 | lzma.PRESET_EXTREME, encoding="utf-8") as file:
        for line in read_lines(path):
            text = json.loads(line)["text"]
            if place(text) >= share:
                continue
            paragraphs = re.split(r"\n{2,}", text)
            clean = [one for one in paragraphs if known.isdisjoint(grams(one))]
            written = json.dumps({"text": "\n\n".join(clean)}, ensure_ascii=False) + "\n"
            if clean and place(f"half{written}") < share_of_all:
                file.write(written)
                documents, dropped = documents + 1, dropped + len(paragraphs) - len(clean)
                kept += sum(map(len, clean))
    print(
        f"{out.name:32} {documents:6,} documents, {kept / 1e6:6.1f} MB of characters, "
        f"{dropped:4} paragraphs dropped, packed {out.stat().st_size / 1e6:5.1f} MB",
        flush=True,
    )


def place(text: str) -> float:
    """Returns a number from 0 to 1 that goes by a hash of the text."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32


def read_lines(path: Path) -> Iterator[str]:
    opened = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    with opened(path, "rt", encoding="utf-8") as file:
        yield from file


def texts_of(path: Path) -> Iterator[str]:
    """Yields every text in a file of JSON lines."""

    def walk(value: Any) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            for one in value.values() if isinstance(value, dict) else value:
                yield from walk(one)

    for line in read_lines(path):
        yield from walk(json.loads(line))


def grams(text: str) -> Iterator[int]:
    """Yields a hash of every run of words."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    for first in range(len(words) - WORDS + 1):
        yield hash(tuple(words[first : first + WORDS]))


if __name__ == "__main__":
    main()
