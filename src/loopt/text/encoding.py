"""Encoding documents to token ids with any number of workers, on which the ids do not depend."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import re
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loopt.errors import InputError
from loopt.source import Split
from loopt.text.corpus import Position
from loopt.text.index import IdType, Recipe
from loopt.text.text_files import Document
from loopt.text.tokenizer import TokenizerFile

PIECE = 2**18
"""The most characters of a document to encode at once: encoding takes a hundred times their size in memory."""
BATCH = 2**20
"""The characters that a worker is given at a time."""

_BETWEEN_WORDS = re.compile(r"[^\W_] (?=[^\W_])")

Ids = NDArray[np.unsignedinteger]
Texts = list[tuple[str, bool]]
"""Pieces of documents, each with whether it ends one."""


class Piece(NamedTuple):
    """A document, or a piece of a long one."""

    text: str
    split: Split
    ends_document: bool
    text_bytes: int
    """The bytes of the whole document, where it ends."""
    position: Position
    """The position after the document."""
    bytes_read: int
    """How much of the stored source had been read, for the progress bar."""


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


def batches(
    documents: Iterable[tuple[Document, Position]], split_of: Callable[[bytes], Split], characters: int = BATCH
) -> Iterator[list[Piece]]:
    """Yields documents, each in the split that ``split_of`` says, in batches of about as many characters."""
    batch: list[Piece] = []
    size = 0
    for document, position in documents:
        data = document.text.encode()
        split, texts = split_of(data), list(pieces_of(document.text))
        for number, text in enumerate(texts, 1):
            ends = number == len(texts)
            batch.append(Piece(text, split, ends, len(data) if ends else 0, position, document.bytes_read))
            size += len(text)
            if size >= characters:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


class Encoder:
    """Encodes pieces to token ids, every document followed by the end-of-document token."""

    def __init__(self, tokenizer: str, end_of_document_id: int, id_type: IdType) -> None:
        self._tokenizer = TokenizerFile.find(tokenizer)
        self._end = end_of_document_id
        self._id_type = np.dtype(id_type).newbyteorder("<")

    def __call__(self, texts: Texts) -> tuple[Ids, list[int]]:
        """Returns the ids of all pieces, one after the other, and how many each has."""
        encoded = self._tokenizer.encode([text for text, _ in texts])
        for ids, (_, ends_document) in zip(encoded, texts, strict=True):
            if ends_document:
                ids.append(self._end)
        lengths = [len(ids) for ids in encoded]
        return np.concatenate([np.array(ids, self._id_type) for ids in encoded]), lengths


class Encoders:
    """Workers that encode. One alone is this process."""

    def __init__(self, tokenizer: Path, recipe: Recipe, workers: int) -> None:
        self._workers = workers
        settings = (str(tokenizer), recipe.end_of_document_id, recipe.id_type)
        self._encoder: Encoder | ProcessPoolExecutor = Encoder(*settings) if workers == 1 else _pool(workers, settings)

    def __enter__(self) -> Encoders:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(self._encoder, ProcessPoolExecutor):
            self._encoder.shutdown(cancel_futures=True)

    def encode(self, batches: Iterable[list[Piece]], endless: bool = False) -> Iterator[tuple[Piece, Ids]]:
        """Yields every piece with its token ids, in order, whichever worker finishes first.

        Workers are two batches ahead, each; of what is ``endless``, no further ahead than batches were taken so far.
        """
        in_flight: deque[tuple[list[Piece], Future[tuple[Ids, list[int]]]]] = deque()
        furthest = 2 * self._workers if self._workers > 1 else 0
        ahead = 0 if endless else furthest
        for batch in batches:
            in_flight.append((batch, self._submit([(piece.text, piece.ends_document) for piece in batch])))
            if len(in_flight) > ahead:
                yield from self._encoded(*in_flight.popleft())
                ahead = min(ahead + 1, furthest)
        while in_flight:
            yield from self._encoded(*in_flight.popleft())

    def _submit(self, texts: Texts) -> Future[tuple[Ids, list[int]]]:
        if isinstance(self._encoder, ProcessPoolExecutor):
            with self._explain_death(), _hidden_main_module():
                return self._encoder.submit(_encode_in_worker, texts)
        done: Future[tuple[Ids, list[int]]] = Future()
        done.set_result(self._encoder(texts))
        return done

    def _encoded(self, batch: list[Piece], future: Future[tuple[Ids, list[int]]]) -> Iterator[tuple[Piece, Ids]]:
        with self._explain_death():
            ids, lengths = future.result()
        end = 0
        for piece, length in zip(batch, lengths, strict=True):
            end += length
            yield piece, ids[end - length : end]

    @contextmanager
    def _explain_death(self) -> Iterator[None]:
        try:
            yield
        except BrokenProcessPool:
            raise InputError(
                f"workers={self._workers}: one of them died, perhaps out of memory; the same command, "
                "with fewer --workers if need be, resumes"
            ) from None


def _pool(workers: int, settings: tuple[str, int, IdType]) -> ProcessPoolExecutor:
    # Spawned, not forked: a fork copies whatever locks the other threads of this process happen to hold.
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=spawn, initializer=_start_worker, initargs=settings)


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


def _encode_in_worker(texts: Texts) -> tuple[Ids, list[int]]:
    return _encoder(texts)
