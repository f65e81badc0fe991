"""The index of a prepared directory: its shards, the settings they were made with, and a fingerprint of both.

::

    DIR/
      index.json               the index, called unfinished.json until all shards are written
      tokenizer.json           the tokenizer that made the token ids
      train-00000.bin …        token ids, little-endian, one document after the other
      validation-00000.bin …
      test-00000.bin …
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from loopt.errors import InputError, require
from loopt.files import check_signature, read_json, signed, write_atomically
from loopt.source import SPLITS, Split
from loopt.text.corpus import Position

FORMAT = 4
INDEX = "index.json"
UNFINISHED = "unfinished.json"
TOKENIZER = "tokenizer.json"

IdType = Literal["uint16", "uint32"]
LARGEST_VOCABULARY: dict[IdType, int] = {"uint16": 2**16, "uint32": 2**32}


@dataclass(frozen=True)
class Recipe:
    """The settings that decide the tokens, besides the text itself."""

    tokenizer_sha256: str
    vocab_size: int
    id_type: IdType
    end_of_document: str
    end_of_document_id: int
    text_field: str
    validation: float
    test: float
    shard_bytes: int
    tasks: tuple[str, ...]
    """The tasks mixed in, as specs with all their settings."""

    def __post_init__(self) -> None:
        require(self.id_type in LARGEST_VOCABULARY, "id_type", self.id_type, " | ".join(LARGEST_VOCABULARY))
        require(self.vocab_size >= 1, "vocab_size", self.vocab_size, "1 or more")
        end = self.end_of_document_id
        require(0 <= end < self.vocab_size, "end_of_document_id", end, f"0 to {self.vocab_size - 1}")
        if self.vocab_size > LARGEST_VOCABULARY[self.id_type]:
            raise InputError(
                f"id_type={self.id_type}: a vocabulary of {self.vocab_size} is too large for it; "
                f"allowed are up to {LARGEST_VOCABULARY[self.id_type]}"
            )


@dataclass(frozen=True)
class Part:
    """What a shard has of one source."""

    source: int
    """Its number among the sources of the index, from 0."""
    tokens: int
    documents: int
    text_bytes: int
    """The bytes of text that the tokens were made from."""

    def __post_init__(self) -> None:
        require(self.source >= 0, "source", self.source, "0 or more")
        require(self.tokens >= 1, "tokens", self.tokens, "1 or more")


@dataclass(frozen=True)
class Shard:
    """A file of tokens of one split."""

    file: str
    split: Split
    sha256: str
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        require(self.split in SPLITS, "split", self.split, " | ".join(SPLITS))
        require(len(self.parts) >= 1, "parts", len(self.parts), "1 or more")

    @property
    def tokens(self) -> int:
        return sum(part.tokens for part in self.parts)

    @property
    def documents(self) -> int:
        return sum(part.documents for part in self.parts)


def shard_name(split: Split, number: int) -> str:
    """Returns the name of a split's shard; there are no other names, so that an index cannot name another file."""
    return f"{split}-{number:05}.bin"


@dataclass(frozen=True)
class Index:
    """The contents of index.json."""

    recipe: Recipe
    sources: tuple[str, ...]
    """The sources as the user named them."""
    positions: tuple[Position, ...]
    """How far text and each task have been read, with a hash of what was read."""
    shards: tuple[Shard, ...]

    @property
    def fingerprint(self) -> str:
        """Returns a hash of recipe and tokens, which does not depend on where the text was read from."""
        shards = [(shard.split, shard.tokens, shard.documents, shard.sha256) for shard in self.shards]
        hashed = json.dumps([FORMAT, asdict(self.recipe), shards], sort_keys=True)
        return hashlib.sha256(hashed.encode()).hexdigest()

    def of(self, split: Split) -> list[Shard]:
        return [shard for shard in self.shards if shard.split == split]

    def parts(self, split: Split, source: int | None = None) -> list[Part]:
        """Returns what the shards of a split have of all sources, or of one."""
        parts = (part for shard in self.of(split) for part in shard.parts)
        return [part for part in parts if source is None or part.source == source]

    def tokens(self, split: Split, source: int | None = None) -> int:
        return sum(part.tokens for part in self.parts(split, source))

    def documents(self, split: Split, source: int | None = None) -> int:
        return sum(part.documents for part in self.parts(split, source))

    def text_bytes(self, split: Split, source: int | None = None) -> int:
        """Returns the bytes of text that the tokens were made from."""
        return sum(part.text_bytes for part in self.parts(split, source))

    def write(self, path: Path) -> None:
        written = {"format": FORMAT, "fingerprint": self.fingerprint} | asdict(self)
        write_atomically(path, json.dumps(signed(written), indent=1).encode())

    @classmethod
    def read(cls, path: Path) -> Index:
        """Reads an index, checking that it is what was written and names nothing outside of its directory."""
        if not path.is_file():
            raise InputError(f"{path}: not a file")
        written = read_json(path, InputError)
        if isinstance(written, dict) and "format" in written and written["format"] != FORMAT:
            raise InputError(f"{path}: format {written['format']}; this version reads format {FORMAT}")
        content = check_signature(written, path)
        try:
            index = _from_json(content)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}: not an index of prepared text: {error!r}") from None
        for split in SPLITS:
            for number, shard in enumerate(index.of(split)):
                allowed = shard_name(split, number)
                require(shard.file == allowed, f"{path}: file", shard.file, allowed, InputError)
            for part in index.parts(split):
                allowed = f"less than {len(index.sources)}"
                require(part.source < len(index.sources), f"{path}: source", part.source, allowed, InputError)
        return index


def _from_json(written: dict[str, Any]) -> Index:
    recipe = _checked(Recipe, written["recipe"] | {"tasks": tuple(map(str, written["recipe"]["tasks"]))})
    shards = tuple(
        _checked(Shard, shard | {"parts": tuple(_checked(Part, part) for part in shard["parts"])})
        for shard in written["shards"]
    )
    positions = tuple(Position(int(source), int(next), str(sha256)) for source, next, sha256 in written["positions"])
    return Index(recipe, tuple(map(str, written["sources"])), positions, shards)


Checked = TypeVar("Checked", Recipe, Shard, Part)


def _checked(kind: type[Checked], written: dict[str, Any]) -> Checked:
    """Returns a recipe, a shard or a part of one; raises a TypeError where a field is missing or of another type."""
    made = kind(**written)
    types: dict[str, type | tuple[type, ...]] = {"int": int, "float": (int, float)}
    for field in fields(made):
        allowed = tuple if str(field.type).startswith("tuple") else types.get(str(field.type), str)
        if not isinstance(getattr(made, field.name), allowed):
            raise TypeError(f"{field.name}={getattr(made, field.name)!r}")
    return made
