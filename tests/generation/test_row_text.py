"""The text of a row: pieces add up, characters stay whole, and what may become a stop text is held back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopt.generation.row_text import RowText
from loopt.source import Codec
from loopt.tasks import get
from loopt.text.tokenizer import END_OF_DOCUMENT, TokenizerCodec, train_tokenizer

TEXT = "She was a very Ünïcödé person, 1234 — and 😀 so on. " * 20


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> Codec:
    path: Path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(train_tokenizer([TEXT], 300).text, encoding="utf-8")
    return TokenizerCodec(path, END_OF_DOCUMENT)


def test_a_tokenizers_codec_is_the_tokenizer(codec: Codec) -> None:
    assert codec.decode(codec.encode(TEXT)) == TEXT
    assert codec.vocab_size == 300
    assert codec.end is not None
    assert codec.decode([codec.end]) == END_OF_DOCUMENT


@settings(deadline=None)
@given(st.text(max_size=30))
def test_pieces_add_up_to_the_text(codec: Codec, text: str) -> None:
    row = RowText(codec, ())
    pieces = [row.push(token) for token in codec.encode(text)]
    pieces.append(row.finish())
    assert "".join(pieces) == row.text == text


def test_a_character_of_several_tokens_comes_whole(codec: Codec) -> None:
    row, tokens = RowText(codec, ()), codec.encode("漢a")
    assert len(tokens) == 4  # three bytes that the tokenizer never saw together, and a letter
    assert [row.push(token) for token in tokens] == ["", "", "漢", "a"]


def test_a_character_that_is_never_completed_is_marked(codec: Codec) -> None:
    row = RowText(codec, ())
    first, *_ = codec.encode("漢")
    assert row.push(first) == ""
    assert row.finish() == "\ufffd"


@settings(deadline=None)
@given(st.text("ab.", max_size=30), st.lists(st.text("ab.", min_size=1, max_size=4), max_size=3))
def test_a_text_ends_before_the_first_stop_text(codec: Codec, text: str, stops: list[str]) -> None:
    row, shown = RowText(codec, stops), ""
    for token in codec.encode(text):
        shown += row.push(token)
        assert not any(stop in shown for stop in stops)
        if row.stopped:
            break
    shown += row.finish()
    found = [text.index(stop) for stop in stops if stop in text]
    assert row.stopped == bool(found)
    assert shown == row.text
    if not found:
        assert shown == text
    else:
        assert text.startswith(shown)
        assert any(text[len(shown) :].startswith(stop) for stop in stops)


@pytest.mark.parametrize(("name", "written"), [("phop", "abcab"), ("group", None), ("igsm", None)])
def test_a_tasks_codec_has_its_vocabulary(name: str, written: str | None) -> None:
    task = get(name)
    codec = task.codec(Path("unused"))
    tokens = task.sample(range(1), 0, "test").tokens[0].tolist()
    if written is not None:
        assert codec.decode(codec.encode(written)) == written
    assert codec.vocab_size == task.vocab_size
    assert codec.end is None
    push = codec.stream()
    assert "".join(push(token) for token in tokens).strip() == codec.decode(tokens).strip()
