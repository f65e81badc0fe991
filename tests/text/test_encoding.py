"""Long documents in pieces have the tokens of the whole; a document is always in the same split."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_text import WORDS, documents, tokenizer

from loopt.source import SPLITS, Split
from loopt.text import encoding
from loopt.text.corpus import Position
from loopt.text.encoding import BATCH, PIECE, PieceBatch, batches, pieces_of, split_of
from loopt.text.index import Recipe
from loopt.text.text_files import Document


def recipe(validation: float = 0.3, test: float = 0.2, shard_bytes: int = 2000) -> Recipe:
    return Recipe(tokenizer().sha256, 300, "uint16", "<|endoftext|>", 0, "text", validation, test, shard_bytes)


def in_order(texts: list[str]) -> list[tuple[Document, Position]]:
    return [(Document(text, n, 0), Position(0, n, str(n))) for n, text in enumerate(texts, 1)]


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


@given(texts=st.lists(st.text(min_size=1, max_size=50), max_size=60), shard_bytes=st.integers(1, 300))
@settings(max_examples=100, deadline=None)
def test_batches_have_all_documents_and_cut_shards_by_size(texts: list[str], shard_bytes: int) -> None:
    made = list(batches(in_order(texts), recipe(shard_bytes=shard_bytes)))
    pieces = [piece for batch in made for piece in batch.pieces]
    assert [piece.text for piece in pieces] == texts
    assert all(piece.ends_document and piece.split == split_of(piece.text.encode(), recipe()) for piece in pieces)
    assert not made or made[-1].ends_shard
    at = 0
    for batch in made:
        at += len(batch.pieces)
        assert batch.position == Position(0, at, str(at))
        for split in SPLITS:
            mine = [piece.text.encode() for piece in batch.pieces if piece.split == split]
            assert (batch.documents[split], batch.text_bytes[split]) == (len(mine), sum(map(len, mine)))
    for shard in shards(made)[:-1]:
        sizes = [len(piece.text.encode()) for batch in shard for piece in batch.pieces]
        assert sum(sizes) >= shard_bytes > sum(sizes[:-1])


def shards(made: list[PieceBatch]) -> list[list[PieceBatch]]:
    ends = [0, *(n for n, batch in enumerate(made, 1) if batch.ends_shard)]
    return [made[start:end] for start, end in itertools.pairwise(ends)]


def test_a_document_of_many_batches_is_one_document() -> None:
    long = "word " * BATCH
    made = list(batches(in_order(["first", long, "last"]), recipe(validation=0, test=0, shard_bytes=10 * len(long))))
    assert len(made) > 4
    assert "".join(piece.text for batch in made for piece in batch.pieces) == f"first{long}last"
    assert [piece.text for batch in made for piece in batch.pieces if piece.ends_document][::2] == ["first", "last"]
    assert sum(batch.documents["train"] for batch in made) == 3
    assert [batch.position.next for batch in made] == [1] * (len(made) - 1) + [3]
    assert [batch.ends_shard for batch in made] == [False] * (len(made) - 1) + [True]


def test_a_shard_that_ends_with_a_full_batch_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "BATCH", 10)
    made = list(batches(in_order(["0123456789"] * 3), recipe()))
    assert [len(batch.pieces) for batch in made] == [1, 1, 1, 0]
    assert [batch.ends_shard for batch in made] == [False, False, False, True]
    assert made[-1].position == Position(0, 3, "3")


shares = st.floats(0, 0.5, exclude_max=True)


@given(st.binary(), shares, shares, shares)
def test_a_larger_share_keeps_what_a_smaller_one_held_out(text: bytes, one: float, other: float, test: float) -> None:
    small, large = sorted([one, other])
    for held_out, first, second in (
        ("validation", recipe(small, test), recipe(large, test)),
        ("test", recipe(test, small), recipe(test, large)),
    ):
        assert split_of(text, first) == split_of(text, first)
        assert not (split_of(text, first) == held_out != split_of(text, second))
    assert split_of(text, recipe(0, 0)) == "train"


def test_the_shares_held_out_are_the_shares_asked_for() -> None:
    texts = {text.encode() for text in documents(20_000)}
    for validation, test in ((0.01, 0.01), (0.2, 0.1), (0.5, 0.4)):
        found = Counter(split_of(text, recipe(validation, test)) for text in texts)
        wanted: dict[Split, float] = {"train": 1 - validation - test, "validation": validation, "test": test}
        for split, share in wanted.items():
            assert abs(found[split] / len(texts) - share) < 5 * (share * (1 - share) / len(texts)) ** 0.5
