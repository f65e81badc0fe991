"""Reading the token sequences of a prepared directory, by index. Needs nothing but numpy and torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loopt.errors import InputError
from loopt.files import read_json, write_atomically
from loopt.source import SPLITS, Split
from loopt.text.index import INDEX, TOKENIZER, UNFINISHED, Index, Shard
from loopt.text.shards import sha256_of
from loopt.text.tokenizer import TokenizerFile

VERIFIED = ".verified.json"
_PREPARE_AGAIN = "it is not what was prepared: prepare it again"


class TokenData:
    """The tokens of all splits, mapped into memory. Each split is one long row, cut into sequences when it is read."""

    def __init__(self, directory: Path, index: Index) -> None:
        self.directory = directory
        self.index = index
        self._shards: dict[Split, list[NDArray[np.unsignedinteger]]] = {}
        self._starts: dict[Split, NDArray[np.int64]] = {}
        for split in SPLITS:
            self._shards[split] = [self._mapped(shard) for shard in index.of(split)]
            self._starts[split] = np.cumsum([0, *(shard.tokens for shard in index.of(split))], dtype=np.int64)

    @classmethod
    def open(cls, directory: Path | str) -> TokenData:
        """Opens a prepared directory and checks it, every byte of shards that are new or have changed included."""
        directory = Path(directory)
        if not (directory / INDEX).exists():
            if (directory / UNFINISHED).exists():
                raise InputError(f"data {directory}: is not prepared to the end; run the command that began it again")
            raise InputError(f"data {directory}: no {INDEX} there; make it with: loopt data prepare --out {directory}")
        data = cls(directory, Index.read(directory / INDEX))
        data.tokenizer_file()
        data.verify(again=False)
        return data

    @property
    def fingerprint(self) -> str:
        """Returns a hash of recipe and tokens; equal fingerprints mean equal data."""
        return self.index.fingerprint

    @property
    def vocab_size(self) -> int:
        return self.index.recipe.vocab_size

    def sequences(self, split: Split, length: int) -> int:
        """Returns how many sequences of ``length`` there are; each needs one token more, its last label."""
        if length < 1:
            raise InputError(f"length={length}: allowed is 1 or more")
        tokens = self.index.tokens(split)
        if not tokens:
            raise InputError(
                f"data {self.directory}: no {split} documents; prepare it with a larger share of them (--{split})"
            )
        if tokens <= length:
            raise InputError(
                f"length={length}: data {self.directory} has {tokens} {split} tokens, too few for one sequence; "
                f"allowed is up to {tokens - 1}"
            )
        return (tokens - 1) // length

    def read(self, split: Split, sequence_indices: Tensor | NDArray[Any] | Sequence[int], length: int) -> Tensor:
        """Returns sequences by index, [batch] -> [batch, length + 1] int64.

        Sequence i has tokens i·length … (i+1)·length: row[:-1] are inputs, row[1:] their labels, and neighboring
        sequences share one token.
        """
        wanted = np.asarray(sequence_indices, dtype=np.int64)
        sequences = self.sequences(split, length)
        if wanted.size and not 0 <= wanted.min() <= wanted.max() < sequences:
            raise IndexError(f"sequences {wanted.min()} to {wanted.max()} of {sequences}")
        rows = np.empty((len(wanted), length + 1), dtype=np.int64)
        firsts = wanted * length
        shards = np.searchsorted(self._starts[split], firsts, side="right") - 1
        offsets = firsts - self._starts[split][shards]
        for row, shard, offset in zip(rows, shards.tolist(), offsets.tolist(), strict=True):
            tokens = self._shards[split][shard][offset : offset + length + 1]
            if len(tokens) == length + 1:
                row[:] = tokens
            else:
                self._read_across(split, row, shard, offset)
        return torch.from_numpy(rows)

    def _read_across(self, split: Split, row: NDArray[np.int64], shard: int, offset: int) -> None:
        """Fills a row that begins in one shard and ends in a later one."""
        filled = 0
        while filled < len(row):
            tokens = self._shards[split][shard][offset : offset + len(row) - filled]
            row[filled : filled + len(tokens)] = tokens
            filled, shard, offset = filled + len(tokens), shard + 1, 0

    def chunks(self, split: Split, tokens: int = 2**22) -> Iterator[NDArray[np.unsignedinteger]]:
        """Yields all tokens of a split in order, at most ``tokens`` at a time."""
        for shard in self._shards[split]:
            for start in range(0, len(shard), tokens):
                yield shard[start : start + tokens]

    def tokenizer_file(self) -> TokenizerFile:
        """Returns the file of the tokenizer that made the tokens; using it needs the tokenizers package."""
        path = self.directory / TOKENIZER
        if not path.is_file():
            raise InputError(f"data {self.directory}: {TOKENIZER} is missing or not a file")
        try:
            found = TokenizerFile(str(path), path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"data {self.directory}: {TOKENIZER} cannot be read: {error}") from None
        if found.sha256 != self.index.recipe.tokenizer_sha256:
            raise InputError(f"data {self.directory}: {TOKENIZER} is not the one that made these tokens")
        return found

    def verify(self, again: bool = True) -> None:
        """Reads the shards, and raises an InputError where one is not what the index says; unless ``again``, only those
        which have changed since they were last verified."""
        before = {} if again else self._verified_before()
        verified: dict[str, list[Any]] = {}
        for split in SPLITS:
            for shard, tokens in zip(self.index.of(split), self._shards[split], strict=True):
                path = self.directory / shard.file
                state = path.stat()
                verified[shard.file] = [shard.sha256, state.st_size, state.st_mtime_ns, state.st_ctime_ns]
                if before.get(shard.file) == verified[shard.file]:
                    continue
                if sha256_of(path) != shard.sha256:
                    raise InputError(f"shard {path}: its contents changed; {_PREPARE_AGAIN}")
                if tokens.max() >= self.vocab_size:
                    raise InputError(f"shard {path}: token id {tokens.max()}; allowed is up to {self.vocab_size - 1}")
        if verified != before:
            with suppress(OSError):  # in a read-only directory, they are verified each time
                write_atomically(self.directory / VERIFIED, json.dumps(verified))

    def _verified_before(self) -> dict[str, Any]:
        try:
            before = read_json(self.directory / VERIFIED, InputError)
        except InputError:
            return {}
        return before if isinstance(before, dict) else {}

    def _mapped(self, shard: Shard) -> NDArray[np.unsignedinteger]:
        path = self.directory / shard.file
        id_type = np.dtype(self.index.recipe.id_type)
        expected = shard.tokens * id_type.itemsize
        size = path.stat().st_size if path.is_file() else None
        if size != expected:
            found = "missing" if size is None else f"{size} bytes"
            raise InputError(f"shard {path}: {found}, the index says {expected} bytes; {_PREPARE_AGAIN}")
        # numpy's memmap would keep a file open for every shard, and there may be more than a process may open
        mapped = torch.from_file(str(path), shared=False, size=expected, dtype=torch.uint8).numpy()
        return mapped.view(id_type.newbyteorder("<"))
