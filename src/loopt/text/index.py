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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from loopt.errors import InputError
from loopt.files import write_atomically
from loopt.source import Split
from loopt.text.corpus import Position

FORMAT = 2
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

    def __post_init__(self) -> None:
        if self.vocab_size > LARGEST_VOCABULARY[self.id_type]:
            raise InputError(
                f"id_type={self.id_type}: a vocabulary of {self.vocab_size} is too large for it; "
                f"allowed are up to {LARGEST_VOCABULARY[self.id_type]}"
            )


@dataclass(frozen=True)
class Shard:
    """A file of tokens of one split."""

    file: str
    split: Split
    tokens: int
    documents: int
    text_bytes: int
    sha256: str


@dataclass(frozen=True)
class Index:
    """The contents of index.json."""

    recipe: Recipe
    sources: tuple[str, ...]
    """The sources as the user named them."""
    sources_sha256: str
    """A hash that changes with the sources read so far."""
    position: Position
    """How far the sources have been read."""
    shards: tuple[Shard, ...]

    @property
    def fingerprint(self) -> str:
        """Returns a hash of recipe and tokens, which does not depend on where the text was read from."""
        shards = [(shard.split, shard.tokens, shard.documents, shard.sha256) for shard in self.shards]
        hashed = json.dumps([FORMAT, asdict(self.recipe), shards], sort_keys=True)
        return hashlib.sha256(hashed.encode()).hexdigest()

    def of(self, split: Split) -> list[Shard]:
        return [shard for shard in self.shards if shard.split == split]

    def tokens(self, split: Split) -> int:
        return sum(shard.tokens for shard in self.of(split))

    def documents(self, split: Split) -> int:
        return sum(shard.documents for shard in self.of(split))

    def text_bytes(self, split: Split) -> int:
        """Returns the bytes of text that a split's tokens were made from."""
        return sum(shard.text_bytes for shard in self.of(split))

    def write(self, path: Path) -> None:
        written = {"format": FORMAT, "fingerprint": self.fingerprint} | asdict(self)
        write_atomically(path, json.dumps(written, indent=1).encode())

    @classmethod
    def read(cls, path: Path) -> Index:
        """Reads an index, checking its format and fingerprint."""
        try:
            written = json.loads(path.read_bytes())
            if written["format"] != FORMAT:
                raise InputError(f"{path}: format {written['format']}; this version reads format {FORMAT}")
            index = _from_json(written)
            if index.fingerprint != written["fingerprint"]:
                raise InputError(f"{path}: changed since it was written: its fingerprint is not that of its contents")
        except InputError:
            raise
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: not an index of prepared text: {error!r}") from None
        return index


def _from_json(written: dict[str, Any]) -> Index:
    return Index(
        Recipe(**written["recipe"]),
        tuple(written["sources"]),
        written["sources_sha256"],
        Position(*written["position"]),
        tuple(Shard(**shard) for shard in written["shards"]),
    )
