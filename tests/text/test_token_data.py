"""Sequences are slices of one long row; damaged data is refused by name."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_text import documents, expected_ids, prepared, tokenizer

from loopt.errors import InputError
from loopt.files import check_signature, signed
from loopt.source import SPLITS, Split
from loopt.text.shards import sha256_of
from loopt.text.token_data import VERIFIED, TokenData
from loopt.text.unigram import unigram

TEXTS = documents(150)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("text"), TEXTS, shard_bytes=700)


@pytest.fixture(scope="module")
def data(directory: Path) -> TokenData:
    return TokenData.open(directory)


def test_what_it_says_of_itself(data: TokenData) -> None:
    assert len(data.index.of("train")) > 10
    for split in SPLITS:
        assert data.index.tokens(split) == len(expected_ids(TEXTS, split)) > 0
    assert (data.vocab_size, data.index.recipe.end_of_document_id) == (300, 0)
    assert data.tokenizer_file().text == tokenizer().text
    assert len(data.fingerprint) == 64
    for split in SPLITS:
        assert np.concatenate(list(data.chunks(split, tokens=37))).tolist() == expected_ids(TEXTS, split)


@given(split=st.sampled_from(SPLITS), length=st.integers(1, 1000), draw=st.data())
@settings(max_examples=100, deadline=None)
def test_a_sequence_is_a_slice_of_one_long_row(data: TokenData, split: Split, length: int, draw: st.DataObject) -> None:
    row = expected_ids(TEXTS, split)
    length = min(length, len(row) - 1)
    sequences = data.sequences(split, length)
    assert sequences * length + 1 <= len(row) < (sequences + 1) * length + 1
    wanted = draw.draw(st.lists(st.integers(0, sequences - 1), max_size=20))
    expected = [row[i * length : (i + 1) * length + 1] for i in wanted]
    for indices in (wanted, np.array(wanted, dtype=np.int64), torch.tensor(wanted, dtype=torch.int64)):
        found = data.read(split, indices, length)
        assert found.dtype == torch.int64
        assert found.shape == (len(wanted), length + 1)
        assert found.tolist() == expected


def test_one_sequence_may_cross_every_shard(data: TokenData) -> None:
    row = expected_ids(TEXTS, "train")
    assert data.sequences("train", len(row) - 1) == 1
    assert data.read("train", [0], len(row) - 1).tolist() == [row]


def test_what_is_read_can_be_changed_and_the_data_cannot(data: TokenData) -> None:
    first = data.read("train", [0], 5)
    kept = first.clone()
    first += 1
    assert torch.equal(data.read("train", [0], 5), kept)
    data.verify()


def test_sequences_that_are_not_there(data: TokenData, tmp_path: Path) -> None:
    tokens = data.index.tokens("validation")
    with pytest.raises(InputError, match=f"length={tokens}: data .* has {tokens} validation tokens, too few .* up to"):
        data.sequences("validation", tokens)
    with pytest.raises(InputError, match="length=0: allowed is 1 or more"):
        data.sequences("train", 0)
    for index in (-1, data.sequences("train", 9)):
        with pytest.raises(IndexError):
            data.read("train", [0, index], 9)
    nothing_held_out = TokenData.open(prepared(tmp_path, TEXTS, validation=0))
    with pytest.raises(
        InputError, match=r"no validation documents; prepare it with a larger share of them \(--validation\)"
    ):
        nothing_held_out.sequences("validation", 1)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 2)


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0\0")


def change(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def edit(what: str, value: object) -> Callable[[Path], None]:
    def edited(path: Path) -> None:
        index = json.loads(path.read_text())
        (index["recipe"] if what in index["recipe"] else index)[what] = value
        path.write_text(json.dumps(index))

    return edited


def forge(what: str, value: object) -> Callable[[Path], None]:
    """Edits an index, or the first part of a shard in it, and signs it as if nothing were wrong."""

    def forged(path: Path) -> None:
        index = check_signature(json.loads(path.read_text()), path)
        for part in (index, index["recipe"], index["shards"][0], index["shards"][0]["parts"][0]):
            if what in part:
                part[what] = value
        path.write_text(json.dumps(signed(index)))

    return forged


def too_large_an_id(path: Path) -> None:
    """Writes an id that is not in the vocabulary into a shard, and its hash into the index."""
    ids = np.fromfile(path, "<u2")
    ids[3] = 300
    ids.tofile(path)
    forge("sha256", hashlib.sha256(path.read_bytes()).hexdigest())(path.parent / "index.json")


@pytest.mark.parametrize(
    ("file", "damage", "told"),
    [
        ("train-00003.bin", cut, r"train-00003\.bin: \d+ bytes, the index says \d+ bytes"),
        ("train-00003.bin", grow, r"train-00003\.bin: \d+ bytes, the index says \d+ bytes"),
        ("validation-00000.bin", Path.unlink, r"validation-00000\.bin: missing, the index says"),
        ("validation-00000.bin", change, r"validation-00000\.bin: its contents changed"),
        ("tokenizer.json", change, r"tokenizer\.json is not the one that made these tokens"),
        ("tokenizer.json", Path.unlink, r"tokenizer\.json is missing or not a file"),
        ("tokenizer.json", pipe, r"tokenizer\.json is missing or not a file"),
        ("train-00003.bin", pipe, r"train-00003\.bin: missing, the index says"),
        ("index.json", pipe, r"index\.json: not a file"),
        ("index.json", Path.unlink, r"no index\.json there; make it with: loopt data prepare"),
        ("tokenizer.json", lambda path: path.write_bytes(b"\xff"), r"tokenizer\.json cannot be read"),
        ("index.json", cut, r"index\.json: line \d+, column \d+: no JSON"),
        ("index.json", lambda path: path.write_text("[]"), r"index\.json: not as it was written"),
        ("index.json", lambda path: path.write_text("{}"), r"index\.json: not as it was written"),
        ("index.json", lambda path: path.write_text("[" * 100_000), r"index\.json: nested too deep"),
        ("index.json", lambda path: path.write_text("9" * 400), r"index\.json: a number of 400 digits"),
        ("index.json", lambda path: path.write_bytes(b"\xff"), r"index\.json: byte 0 is not UTF-8"),
        ("index.json", edit("format", 1), r"index\.json: format 1; this version reads format 4"),
        ("index.json", edit("shards", []), r"index\.json: not as it was written"),
        ("index.json", edit("validation", 0.5), r"index\.json: not as it was written"),
        ("index.json", forge("vocab_size", 70_000), r"index\.json: id_type=uint16: a vocabulary of 70000 is too large"),
        ("index.json", forge("vocab_size", 0), r"index\.json: vocab_size=0: allowed is 1 or more"),
        ("index.json", forge("vocab_size", "many"), r"index\.json: not an index of prepared text"),
        ("index.json", forge("end_of_document_id", 300), r"end_of_document_id=300: allowed is 0 to 299"),
        ("index.json", forge("id_type", "int8"), r"index\.json: id_type=int8: allowed is uint16 | uint32"),
        ("index.json", forge("positions", [1]), r"index\.json: not an index of prepared text"),
        ("index.json", forge("positions", [[0, 1]]), r"index\.json: not an index of prepared text"),
        ("index.json", forge("tasks", 1), r"index\.json: not an index of prepared text"),
        ("index.json", forge("parts", []), r"index\.json: parts=0: allowed is 1 or more"),
        ("index.json", forge("parts", [{"tokens": 1}]), r"index\.json: not an index of prepared text"),
        ("index.json", forge("source", -1), r"index\.json: source=-1: allowed is 0 or more"),
        ("index.json", forge("source", 1), r"index\.json: source=1: allowed is less than 1"),
        ("index.json", forge("split", "exam"), r"index\.json: split=exam: allowed is train | validation | test"),
        ("index.json", forge("tokens", -1), r"index\.json: tokens=-1: allowed is 1 or more"),
        ("index.json", forge("tokens", 1.5), r"index\.json: not an index of prepared text: TypeError\('tokens=1\.5'\)"),
        ("index.json", forge("file", "/etc/passwd"), r"index\.json: file=/etc/passwd: allowed is train-00000\.bin"),
        ("index.json", forge("file", "../x/train-00000.bin"), r"file=\.\./x/train-00000\.bin: allowed is train-00000"),
        ("index.json", forge("file", "train-00001.bin"), r"file=train-00001\.bin: allowed is train-00000\.bin"),
        ("train-00000.bin", too_large_an_id, r"train-00000\.bin: token id 300; allowed is up to 299"),
    ],
)
def test_damage_is_named(
    file: str, damage: Callable[[Path], object], told: str, directory: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    TokenData.open(copy)
    damage(copy / file)
    for _ in range(2):
        with pytest.raises(InputError, match=told) as refusal:
            TokenData.open(copy)
        assert "\n" not in str(refusal.value)


def test_shards_are_verified_once(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    (copy / VERIFIED).unlink(missing_ok=True)
    hashed: list[str] = []

    def counted(path: Path) -> str:
        hashed.append(path.name)
        return sha256_of(path)

    monkeypatch.setattr("loopt.text.token_data.sha256_of", counted)
    data = TokenData.open(copy)
    assert sorted(hashed) == sorted(shard.file for shard in data.index.shards)
    hashed.clear()
    TokenData.open(copy)
    assert hashed == []
    os.utime(copy / "train-00002.bin")
    TokenData.open(copy)
    assert hashed == ["train-00002.bin"]
    hashed.clear()
    data.verify()
    assert len(hashed) == len(data.index.shards)
    for damage in ("[]", "[" * 100_000, '{"train-00000.bin": 1}'):
        (copy / VERIFIED).write_text(damage)
        hashed.clear()
        TokenData.open(copy)
        assert len(hashed) == len(data.index.shards)


def test_what_cannot_be_written_to_is_verified_each_time(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    (copy / VERIFIED).unlink(missing_ok=True)

    def read_only(path: Path, data: str | bytes) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr("loopt.text.token_data.write_atomically", read_only)
    for _ in range(2):
        assert len(TokenData.open(copy).read("train", [0], 3)[0]) == 4
    assert not (copy / VERIFIED).exists()
    change(copy / "train-00001.bin")
    with pytest.raises(InputError, match=r"train-00001\.bin: its contents changed"):
        TokenData.open(copy)


@pytest.mark.slow
def test_more_shards_than_a_process_may_open(directory: Path) -> None:
    program = (
        "import resource, sys; from loopt.text.token_data import TokenData;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12));"
        "data = TokenData.open(sys.argv[1]); all_but_one = data.index.tokens('train') - 1;"
        "print(data.read('train', [0], all_but_one).sum().item())"
    )
    told = subprocess.run([sys.executable, "-c", program, directory], capture_output=True, text=True)
    assert told.stdout.strip() == str(sum(expected_ids(TEXTS, "train"))), told.stderr


@pytest.mark.slow
def test_reading_needs_none_of_the_packages_for_preparing(directory: Path) -> None:
    program = (
        "import sys; sys.modules |= dict.fromkeys('tokenizers datasets pyarrow zstandard huggingface_hub'.split());"
        "from loopt.text.token_data import TokenData; from loopt.text.unigram import unigram;"
        "data = TokenData.open(sys.argv[1]); data.verify(); unigram(data); print(data.read('train', [1], 4).tolist())"
    )
    told = subprocess.run([sys.executable, "-c", program, directory], capture_output=True, text=True)
    assert json.loads(told.stdout) == [expected_ids(TEXTS, "train")[4:9]], told.stderr


def test_unigram_is_the_count_by_hand(data: TokenData, tmp_path: Path) -> None:
    train = expected_ids(TEXTS, "train")
    counts = Counter(train)
    entropy = -sum(n / len(train) * math.log2(n / len(train)) for n in counts.values())
    found = unigram(data)
    assert found.train_entropy == pytest.approx(entropy)
    for split in ("validation", "test"):
        held_out = expected_ids(TEXTS, split)
        loss = -sum(math.log((counts[token] + 1) / (len(train) + 300)) for token in held_out) / len(held_out)
        assert found.perplexity[split] == pytest.approx(math.exp(loss))
    assert list(unigram(TokenData.open(prepared(tmp_path, TEXTS, validation=0))).perplexity) == ["test"]
