"""Encoding documents to token ids with any number of workers, on which the ids do not depend."""

from __future__ import annotations

import hashlib
import multiprocessing
import multiprocessing.connection
import os
import re
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loopt.errors import InputError
from loopt.source import SPLITS, Split
from loopt.text.corpus import START, Position
from loopt.text.index import IdType, Recipe
from loopt.text.text_files import Document
from loopt.text.tokenizer import TokenizerFile

PIECE = 2**18
"""The most characters of a document to encode at once: encoding takes a hundred times their size in memory."""
BATCH = 2**20
"""The characters that a worker is given at a time."""

_BETWEEN_WORDS = re.compile(r"[^\W_] (?=[^\W_])")


class Piece(NamedTuple):
    """A document, or a piece of a long one."""

    text: str
    split: Split
    ends_document: bool


@dataclass
class PieceBatch:
    """Pieces to encode, and totals of the documents that end in them."""

    pieces: list[Piece] = field(default_factory=list)
    documents: dict[Split, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    text_bytes: dict[Split, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    ends_shard: bool = False
    position: Position = START
    """Where its last whole document ends."""
    bytes_read: int = 0


Encoded = dict[Split, NDArray[np.unsignedinteger]]


def split_of(text: bytes, recipe: Recipe) -> Split:
    """Returns the split of a document, by its hash: all copies, in every corpus, have the same one, and a larger share
    that is held out contains a smaller one."""
    drawn = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") / 2**64
    if drawn < recipe.validation:
        return "validation"
    return "test" if drawn >= 1 - recipe.test else "train"


def pieces_of(text: str) -> Iterator[str]:
    """Yields a document in pieces, cut before the space between two words, where byte-level tokenizers cut too."""
    start = 0
    while len(text) - start > PIECE:
        end = start + PIECE
        cuts = [match.end() - 1 for match in _BETWEEN_WORDS.finditer(text, end - PIECE // 16, end)]
        end = cuts[-1] if cuts else end
        yield text[start:end]
        start = end
    yield text[start:]


def batches(documents: Iterable[tuple[Document, Position]], recipe: Recipe) -> Iterator[PieceBatch]:
    """Yields documents in batches for the workers; ``ends_shard`` marks the last batch of a shard."""
    batch, characters, shard_bytes = PieceBatch(), 0, 0
    for document, position in documents:
        data = document.text.encode()
        split = split_of(data, recipe)
        texts = list(pieces_of(document.text))
        for number, text in enumerate(texts, 1):
            batch.pieces.append(Piece(text, split, ends_document=number == len(texts)))
            characters += len(text)
            if characters >= BATCH and number < len(texts):
                yield batch
                batch, characters = PieceBatch(position=batch.position, bytes_read=batch.bytes_read), 0
        shard_bytes += len(data)
        batch.documents[split] += 1
        batch.text_bytes[split] += len(data)
        batch.position, batch.bytes_read = position, document.bytes_read
        batch.ends_shard = shard_bytes >= recipe.shard_bytes
        if batch.ends_shard:
            shard_bytes = 0
        if batch.ends_shard or characters >= BATCH:
            yield batch
            batch, characters = PieceBatch(position=batch.position, bytes_read=batch.bytes_read), 0
    if batch.pieces or shard_bytes:
        batch.ends_shard = True
        yield batch


class Encoder:
    """Encodes pieces to token ids by split, every document followed by the end-of-document token."""

    def __init__(self, tokenizer: str, end_of_document_id: int, id_type: IdType) -> None:
        self._tokenizer = TokenizerFile.find(tokenizer)
        self._end = end_of_document_id
        self._id_type = np.dtype(id_type).newbyteorder("<")

    def __call__(self, pieces: list[Piece]) -> Encoded:
        ids: dict[Split, list[list[int]]] = {split: [] for split in SPLITS}
        encoded = self._tokenizer.encode([piece.text for piece in pieces])
        for piece, piece_ids in zip(pieces, encoded, strict=True):
            ids[piece.split].append(piece_ids)
            if piece.ends_document:
                ids[piece.split].append([self._end])
        return {split: self._joined(lists) for split, lists in ids.items()}

    def _joined(self, lists: list[list[int]]) -> NDArray[np.unsignedinteger]:
        arrays = [np.array(one, dtype=self._id_type) for one in lists]
        return np.concatenate(arrays) if arrays else np.empty(0, self._id_type)


def encode_batches(
    to_encode: Iterable[PieceBatch], tokenizer: Path, recipe: Recipe, workers: int
) -> Iterator[tuple[PieceBatch, Encoded]]:
    """Yields every batch with its token ids, in the order of the batches, whichever worker finishes first."""
    encoder_settings = (str(tokenizer), recipe.end_of_document_id, recipe.id_type)
    if workers == 1:
        encoder = Encoder(*encoder_settings)
        for batch in to_encode:
            yield batch, encoder(batch.pieces)
        return
    in_flight: deque[tuple[PieceBatch, Future[Encoded]]] = deque()
    # Spawned, not forked: a fork copies whatever locks the other threads of this process happen to hold.
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=spawn, initializer=_start_worker, initargs=encoder_settings)
    try:
        for batch in to_encode:
            with _hidden_main_module():
                in_flight.append((batch, pool.submit(_encode_in_worker, batch.pieces)))
            if len(in_flight) > 2 * workers:
                done, future = in_flight.popleft()
                yield done, future.result()
        for done, future in in_flight:
            yield done, future.result()
    except BrokenProcessPool:
        raise InputError(
            f"workers={workers}: one of them died, perhaps out of memory; the same command, "
            "with fewer --workers if need be, resumes"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _hidden_main_module() -> Iterator[None]:
    """Hides the main module from workers that start meanwhile: each would import it first, and with it perhaps torch.

    A worker takes its settings from a pipe after that, and the parent waits where they do not fit into the pipe. That
    is why they hold the path of the tokenizer and not its text: workers would start one after the other.
    """
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


_encoder: Encoder


def _start_worker(tokenizer: str, end_of_document_id: int, id_type: IdType) -> None:
    global _encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends its workers
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _encoder = Encoder(tokenizer, end_of_document_id, id_type)


def _end_with_parent() -> None:
    """Ends this worker when its parent is gone: a killed parent cannot end its workers, which would wait forever."""
    parent = multiprocessing.parent_process()
    if parent:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _encode_in_worker(pieces: list[Piece]) -> Encoded:
    return _encoder(pieces)
