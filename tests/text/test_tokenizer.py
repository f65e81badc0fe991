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

PANICS = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}


def word_level(**changed: object) -> dict[str, object]:
    model = {"type": "WordLevel", "vocab": {"a": 0, "<|endoftext|>": 1}, "unk_token": "a"}
    return {"version": "1.0", "added_tokens": [], "model": model} | changed


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
        ({"t/tokenizer_config.json": "[" * 100_000}, "t", "tokenizer t: tokenizer_config.json: nested too deep"),
        ({"t/tokenizer_config.json": '"auto_map"'}, "t", "tokenizer t: no tokenizer.json in it"),
        ({"t.json": "[" * 100_000}, "t.json", "tokenizer t.json: not a file of the tokenizers package"),
        ({"t.json": "9" * 400}, "t.json", "tokenizer t.json: not a file of the tokenizers package"),
        ({"t/tokenizer.json/x": ""}, "t", "tokenizer t: not a file, but a folder"),
        (
            {"t.json": json.dumps({"model": {"type": "WordLevel", "vocab": {}, "unk_token": "a"}})},
            "t.json",
            "vocab_size=0",
        ),
        (
            {"t.json": json.dumps(word_level(normalizer=PANICS))},
            "t.json",
            "not a file of the tokenizers package: Precom",
        ),
        ({}, "x" * 5000, "File name too long"),
        ({}, "someone/something", "tokenizer someone/something: no such file, and not found on the hub"),
    ],
)
def test_refused(files: dict[str, str], name: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / path).write_text(text)
    with pytest.raises(InputError) as refusal:
        TokenizerFile.find(name)
    assert told in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_what_is_not_utf_8_or_never_ends_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    for name in (str(tmp_path / "pipe.json"), "/dev/zero"):
        with pytest.raises(InputError, match=f"tokenizer {name}: not a file, but a folder, a pipe or a device"):
            TokenizerFile.find(name)
    (tmp_path / "t.json").write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"t\.json: cannot be read: 'utf-8' codec"):
        TokenizerFile.find(str(tmp_path / "t.json"))


def test_a_panic_of_the_package_is_an_error_of_one_line() -> None:
    slow = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    panics = TokenizerFile("slow.json", json.dumps(word_level(pre_tokenizer=slow)))
    with pytest.raises(InputError, match=r"^tokenizer slow\.json: fails to encode: Onig: Regex search error.*$"):
        panics.encode(["a" * 40 + "b"])


def test_no_token_to_end_documents_with() -> None:
    with pytest.raises(
        InputError, match=r"no token '</s>' .* --end-of-document \(its special tokens: <\|endoftext\|>\)"
    ):
        tokenizer().id_of("</s>")


def test_too_small_and_too_large_a_vocabulary() -> None:
    for size in (-1, 256, 2**22 + 1, 10**12, 10**30):
        with pytest.raises(InputError, match=rf"vocab_size={size}: allowed is 257 \(.*\) to 4194304"):
            train_tokenizer(documents(3), size)
    assert train_tokenizer(documents(3), 257).vocab_size == 257


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InputError, match=r"needs tokenizers; install it with: pip install 'loopt\[data\]'"):
        train_tokenizer(documents(3), 300)
