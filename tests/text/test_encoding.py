"""Long documents in pieces have the tokens of the whole; batches have every document, whoever encodes them."""

from __future__ import annotations

import itertools
import os
import random
import signal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_text import WORDS, documents, tokenizer, write_tokenizer

from loopt.errors import InputError
from loopt.source import Split
from loopt.text.corpus import Position
from loopt.text.encoding import BATCH, PIECE, Encoders, Piece, batches, pieces_of
from loopt.text.index import Recipe
from loopt.text.text_files import Document


def recipe() -> Recipe:
    return Recipe(tokenizer().sha256, 300, "uint16", "<|endoftext|>", 0, "text", 0.3, 0.2, 2000, ())


def in_order(texts: list[str]) -> list[tuple[Document, Position]]:
    return [(Document(text, n, 10 * n), Position(0, n, str(n))) for n, text in enumerate(texts, 1)]


def split_of(text: bytes) -> Split:
    return "test" if text.startswith(b"a") else "train"


@pytest.mark.slow
def test_a_long_document_in_pieces_has_the_tokens_of_the_whole() -> None:
    draw = random.Random(0)
    text = "".join(draw.choice(WORDS) + draw.choice([" ", " ", "  ", "\n\n", ", "]) for _ in range(PIECE // 2))
    pieces = list(pieces_of(text))
    assert "".join(pieces) == text
    assert len(pieces) > 3
    assert max(map(len, pieces)) <= PIECE
    encoded = [tokenizer().tokenizer.encode(piece).ids for piece in pieces]
    assert list(itertools.chain(*encoded)) == tokenizer().tokenizer.encode(text).ids


def test_text_without_words_is_cut_all_the_same() -> None:
    for text in ("", "x" * PIECE, "x" * (2 * PIECE + 1), "漢" * (PIECE + 5), " " * (PIECE + 5)):
        pieces = list(pieces_of(text))
        assert "".join(pieces) == text
        assert max(map(len, pieces)) <= PIECE


@given(texts=st.lists(st.text(max_size=50), max_size=60), characters=st.integers(0, 300))
@settings(max_examples=100, deadline=None)
def test_batches_have_all_documents_and_are_cut_by_size(texts: list[str], characters: int) -> None:
    made = list(batches(in_order(texts), split_of, characters))
    assert [piece for batch in made for piece in batch] == [
        Piece(text, split_of(text.encode()), True, len(text.encode()), Position(0, n, str(n)), 10 * n)
        for n, text in enumerate(texts, 1)
    ]
    for batch in made[:-1]:
        sizes = [len(piece.text) for piece in batch]
        assert sum(sizes) >= characters
        assert sum(sizes[:-1]) < characters or len(sizes) == 1


def test_a_document_of_many_batches_is_one_document() -> None:
    long = "word " * BATCH
    made = list(batches(in_order(["first", long, "last"]), split_of))
    assert len(made) > 4
    pieces = [piece for batch in made for piece in batch]
    assert "".join(piece.text for piece in pieces) == f"first{long}last"
    ends = [piece for piece in pieces if piece.ends_document]
    assert [piece.position.next for piece in ends] == [1, 2, 3]
    assert [piece.text_bytes for piece in ends] == [5, len(long), 4]
    assert sum(piece.text_bytes for piece in pieces) == 9 + len(long)


@pytest.mark.parametrize("workers", [1, 2])
def test_every_piece_gets_its_own_ids_in_order_whoever_encodes_it(workers: int, tmp_path: Path) -> None:
    texts, others = documents(40), documents(30, seed=1)
    with Encoders(Path(write_tokenizer(tmp_path)), recipe(), workers) as encoders:
        streams = [encoders.encode(batches(in_order(one), split_of, 200)) for one in (texts, others)]
        for _ in range(2):  # both take turns, and the second ends first
            for piece, ids in itertools.islice(streams[0], 20):
                assert ids.tolist() == [*tokenizer().tokenizer.encode(piece.text).ids, 0]
            for piece, ids in itertools.islice(streams[1], 20):
                assert ids.tolist() == [*tokenizer().tokenizer.encode(piece.text).ids, 0]
                assert ids.dtype.str == "<u2"
        assert [next(stream, None) for stream in streams] == [None, None]


def test_the_pieces_of_a_document_end_once(tmp_path: Path) -> None:
    long = " ".join(random.Random(0).choices(WORDS, k=PIECE // 3))
    assert len(long) > PIECE
    with Encoders(Path(write_tokenizer(tmp_path)), recipe(), 1) as encoders:
        made = list(encoders.encode(batches(in_order([long]), split_of)))
    assert [ids.tolist()[-1] == 0 for _, ids in made] == [False] * (len(made) - 1) + [True]
    assert [token for _, ids in made for token in ids.tolist()] == [*tokenizer().tokenizer.encode(long).ids, 0]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="the workers are looked up in /proc")
def test_a_worker_that_dies_is_told(tmp_path: Path) -> None:
    before = set(children())
    with Encoders(Path(write_tokenizer(tmp_path)), recipe(), 2) as encoders:
        encoded = encoders.encode(batches(in_order(documents(400)), split_of, 100))
        next(encoded)
        for child in set(children()) - before:
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(child, signal.SIGKILL)
        with pytest.raises(InputError, match=r"^workers=2: one of them died, perhaps out of memory; the same command"):
            list(encoded)


def children() -> list[int]:
    return [int(child) for child in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()]
