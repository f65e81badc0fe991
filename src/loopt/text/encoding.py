"""Documents to token ids, in as many processes as wanted; what comes out does not depend on how many."""

from __future__ import annotations

import hashlib
import multiprocessing
import multiprocessing.connection
import os
import re
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loopt.errors import InputError
from loopt.text.index import SPLITS, IdType, Recipe, Split
from loopt.text.sources import START, Place
from loopt.text.text_files import Document
from loopt.text.tokenizer import TokenizerFile

PIECE = 2**18
"""Characters in a piece of a document, at most: an encoded piece takes a hundred times its size in memory."""
BATCH = 2**20
"""Characters that a process is given at a time."""

_BETWEEN_WORDS = re.compile(r"[^\W_] (?=[^\W_])")


class Piece(NamedTuple):
    """A document, or a part of a long one."""

    text: str
    split: Split
    ends_document: bool


@dataclass
class Batch:
    """Pieces to encode, and what they add up to."""

    pieces: list[Piece] = field(default_factory=list)
    documents: dict[Split, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    text_bytes: dict[Split, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    ends_shard: bool = False
    place: Place = START
    """After its last whole document."""
    bytes_read: int = 0


Encoded = dict[Split, NDArray[np.unsignedinteger]]


def split_of(text: bytes, validation: float) -> Split:
    """By a hash of the document: it is on the same side in every corpus, and so are its copies."""
    drawn = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") / 2**64
    return "validation" if drawn < validation else "train"


def pieces_of(text: str) -> Iterator[str]:
    """Cut between two words, with the space in front of the second, where byte-level tokenizers cut as well."""
    start = 0
    while len(text) - start > PIECE:
        end = start + PIECE
        cuts = [match.end() - 1 for match in _BETWEEN_WORDS.finditer(text, end - PIECE // 16, end)]
        end = cuts[-1] if cuts else end
        yield text[start:end]
        start = end
    yield text[start:]


def batches(documents: Iterable[tuple[Document, Place]], recipe: Recipe) -> Iterator[Batch]:
    """Documents in batches; the last batch of a shard says so."""
    batch, characters, shard_bytes = Batch(), 0, 0
    for document, place in documents:
        data = document.text.encode()
        split = split_of(data, recipe.validation)
        texts = list(pieces_of(document.text))
        for number, text in enumerate(texts, 1):
            batch.pieces.append(Piece(text, split, ends_document=number == len(texts)))
            characters += len(text)
            if characters >= BATCH and number < len(texts):
                yield batch
                batch, characters = Batch(place=batch.place, bytes_read=batch.bytes_read), 0
        shard_bytes += len(data)
        batch.documents[split] += 1
        batch.text_bytes[split] += len(data)
        batch.place, batch.bytes_read = place, document.bytes_read
        batch.ends_shard = shard_bytes >= recipe.shard_bytes
        if batch.ends_shard:
            shard_bytes = 0
        if batch.ends_shard or characters >= BATCH:
            yield batch
            batch, characters = Batch(place=batch.place, bytes_read=batch.bytes_read), 0
    if batch.pieces or shard_bytes:
        batch.ends_shard = True
        yield batch


class Encoder:
    """Pieces to ids, every document followed by the end-of-document token."""

    def __init__(self, tokenizer: TokenizerFile, end_of_document_id: int, id_type: IdType) -> None:
        self._tokenizer = tokenizer.tokenizer
        self._end = end_of_document_id
        self._id_type = np.dtype(id_type).newbyteorder("<")

    def __call__(self, pieces: list[Piece]) -> Encoded:
        encodings = self._tokenizer.encode_batch_fast([piece.text for piece in pieces], add_special_tokens=False)
        ids: dict[Split, list[list[int]]] = {split: [] for split in SPLITS}
        for piece, encoding in zip(pieces, encodings, strict=True):
            ids[piece.split].append(encoding.ids)
            if piece.ends_document:
                ids[piece.split].append([self._end])
        return {split: self._joined(lists) for split, lists in ids.items()}

    def _joined(self, lists: list[list[int]]) -> NDArray[np.unsignedinteger]:
        arrays = [np.array(one, dtype=self._id_type) for one in lists]
        return np.concatenate(arrays) if arrays else np.empty(0, self._id_type)


def encoded_in_order(
    waiting_to_go: Iterable[Batch], tokenizer: TokenizerFile, recipe: Recipe, workers: int
) -> Iterator[tuple[Batch, Encoded]]:
    """Every batch with its ids, in the order of the batches."""
    how = (TokenizerFile(tokenizer.name, tokenizer.text), recipe.end_of_document_id, recipe.id_type)
    if workers == 1:
        encoder = Encoder(*how)
        for batch in waiting_to_go:
            yield batch, encoder(batch.pieces)
        return
    under_way: deque[tuple[Batch, Future[Encoded]]] = deque()
    # Spawned, not forked: a fork copies whatever locks the other threads of this process happen to hold.
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=spawn, initializer=_start_worker, initargs=how)
    try:
        for batch in waiting_to_go:
            under_way.append((batch, pool.submit(_encode_here, batch.pieces)))
            if len(under_way) > 2 * workers:
                done, future = under_way.popleft()
                yield done, future.result()
        for done, future in under_way:
            yield done, future.result()
    except BrokenProcessPool:
        raise InputError(
            f"workers={workers}: one of them died, perhaps for want of memory; the same command, "
            "with fewer --workers if need be, goes on"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


_encoder: Encoder


def _start_worker(tokenizer: TokenizerFile, end_of_document_id: int, id_type: IdType) -> None:
    global _encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it too, and ends its workers
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _encoder = Encoder(tokenizer, end_of_document_id, id_type)


def _end_with_parent() -> None:
    """A parent that is killed cannot tell its workers, which would wait for it for ever."""
    parent = multiprocessing.parent_process()
    if parent:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _encode_here(pieces: list[Piece]) -> Encoded:
    return _encoder(pieces)
