"""Tokenizers are found, trained the same every time, and take special tokens written in the text for text."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_text import documents, tokenizer, write_tokenizer

from loopt.errors import InputError
from loopt.text.tokenizer import TokenizerFile, train_tokenizer


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_any_text_decodes_to_itself(text: str) -> None:
    trained = tokenizer().tokenizer
    ids = trained.encode(text).ids
    assert trained.decode(ids) == text
    assert all(0 < token < tokenizer().vocab_size for token in ids)


def test_an_end_of_document_written_out_is_text() -> None:
    ids = tokenizer().tokenizer.encode("a<|endoftext|>b").ids
    assert tokenizer().id_of("<|endoftext|>") == 0
    assert 0 not in ids


def test_trained_to_the_size_asked_for() -> None:
    assert tokenizer().vocab_size == 300
    assert train_tokenizer(["only a few words"], 5000).vocab_size < 280  # there is no more to merge
    assert len(tokenizer().tokenizer.encode("the cat sees").ids) < len("the cat sees")


def test_training_is_deterministic() -> None:
    program = (
        "import hashlib; from tiny_text import documents; from loopt.text.tokenizer import train_tokenizer;"
        "print(hashlib.sha256(train_tokenizer(documents(200), 500).text.encode()).hexdigest())"
    )
    here = hashlib.sha256(train_tokenizer(documents(200), 500).text.encode()).hexdigest()
    for seed, threads in (("1", "false"), ("2", "true")):
        changed = {"PYTHONHASHSEED": seed, "TOKENIZERS_PARALLELISM": threads, "PYTHONPATH": str(Path(__file__).parent)}
        told = subprocess.run(
            [sys.executable, "-c", program], env=os.environ | changed, capture_output=True, text=True, check=True
        )
        assert told.stdout.strip() == here


def test_found_as_a_file_or_in_a_folder(tmp_path: Path) -> None:
    path = Path(write_tokenizer(tmp_path))
    path.rename(tmp_path / "tokenizer.json")
    for name in (tmp_path, tmp_path / "tokenizer.json"):
        found = TokenizerFile.find(str(name))
        assert (found.text, found.sha256, found.vocab_size) == (tokenizer().text, tokenizer().sha256, 300)


def test_ids_with_gaps_count_up_to_the_largest() -> None:
    gap = json.dumps(
        {
            "version": "1.0",
            "added_tokens": [],
            "model": {"type": "WordLevel", "vocab": {"a": 7, "b": 900}, "unk_token": "a"},
        }
    )
    assert TokenizerFile("gap", gap).vocab_size == 901


def test_truncation_and_padding_in_the_file_are_not_followed() -> None:
    cut = TokenizerFile("cut", tokenizer().text).tokenizer
    cut.enable_truncation(3)
    cut.enable_padding(length=50)
    found = TokenizerFile("cut", cut.to_str()).tokenizer
    assert found.encode("the cat sees the dog").ids == tokenizer().tokenizer.encode("the cat sees the dog").ids


@pytest.mark.parametrize(
    ("files", "name", "told"),
    [
        ({}, "nowhere.json", "tokenizer nowhere.json: no such file"),
        ({"t.json": "{}"}, "t.json", "tokenizer t.json: not a file of the tokenizers package"),
        ({"t.json": "half a {"}, "t.json", "tokenizer t.json: not a file of the tokenizers package"),
        ({"t/config.json": "{}"}, "t", "tokenizer t: no tokenizer.json in it"),
        ({"t/tokenizer_config.json": "{}"}, "t", "tokenizer t: no tokenizer.json in it"),
        (
            {"t/tokenizer_config.json": '{"auto_map": {"AutoTokenizer": ["mine.Mine", null]}}'},
            "t",
            "tokenizer t: it is code (trust_remote_code), which is not run here",
        ),
        ({}, "someone/something", "tokenizer someone/something: no such file, and not found on the hub"),
    ],
)
def test_refused(files: dict[str, str], name: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    with pytest.raises(InputError) as refusal:
        TokenizerFile.find(name)
    assert told in str(refusal.value)


def test_no_token_to_end_documents_with() -> None:
    with pytest.raises(
        InputError, match=r"no token '</s>' .* --end-of-document \(its special tokens: <\|endoftext\|>\)"
    ):
        tokenizer().id_of("</s>")


def test_too_small_a_vocabulary() -> None:
    with pytest.raises(InputError, match="vocab_size=256: allowed is 257 or more"):
        train_tokenizer(documents(3), 256)
    assert train_tokenizer(documents(3), 257).vocab_size == 257


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InputError, match=r"needs tokenizers; install it with: pip install 'loopt\[data\]'"):
        train_tokenizer(documents(3), 300)
