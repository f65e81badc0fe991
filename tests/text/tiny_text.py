"""A small corpus, a small tokenizer, and the token ids that preparing must give."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from loopt.source import Split
from loopt.text.index import Index
from loopt.text.prepare import Settings, prepare
from loopt.text.splits import split_of
from loopt.text.tokenizer import TokenizerFile, train_tokenizer

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "sees",
    "hears",
    "one",
    "red",
    "never",
    "always.",
    "<|endoftext|>",
    "Ünïcödé",
    "345\n",
]


def documents(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 60))) for _ in range(count)]


@functools.cache
def tokenizer() -> TokenizerFile:
    return train_tokenizer(documents(50, seed=99), 300)


def write_tokenizer(directory: Path) -> str:
    path = directory / "tiny-tokenizer.json"
    path.write_text(tokenizer().text, encoding="utf-8")
    return str(path)


def write_lines(path: Path, texts: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def settings(tmp_path: Path, *sources: Path | str, **changed: Any) -> Settings:
    given: dict[str, Any] = {"validation": 0.2, "test": 0.2, "shard_bytes": 3000} | changed
    return Settings(tuple(map(str, sources)), write_tokenizer(tmp_path), **given)


def prepared(tmp_path: Path, texts: list[str], name: str = "data", **changed: Any) -> Path:
    """Prepares a directory with these documents, a few to a shard, and returns its path."""
    source = write_lines(tmp_path / f"{name}.jsonl", texts)
    prepare(settings(tmp_path, source, **changed), tmp_path / name, workers=1)
    return tmp_path / name


def expected_ids(texts: list[str], split: Split, **changed: float) -> list[int]:
    """Returns the token ids of a split's documents, encoded one by one, each followed by the end-of-document id, 0."""
    shares = {"validation": 0.2, "test": 0.2} | changed
    chosen = [text for text in texts if text and split_of(text.encode(), **shares) == split]
    return [token for text in chosen for token in [*tokenizer().tokenizer.encode(text).ids, 0]]


def stored_ids(directory: Path, split: Split) -> list[int]:
    index = Index.read(directory / "index.json")
    return [
        token
        for shard in index.of(split)
        for token in np.fromfile(directory / shard.file, f"<u{np.dtype(index.recipe.id_type).itemsize}").tolist()
    ]


def contents(directory: Path) -> dict[str, bytes]:
    """Returns what is in a prepared directory, apart from the times at which it was verified."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != ".verified.json"}
