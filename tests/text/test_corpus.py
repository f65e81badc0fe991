"""Every format gives the same documents, from any position on; what cannot be read is named."""

from __future__ import annotations

import gzip
import json
import lzma
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_text import documents, write_lines

from loopt.errors import InputError
from loopt.text.corpus import START, Corpus, Position

pyarrow = pytest.importorskip("pyarrow")
pyarrow_parquet = pytest.importorskip("pyarrow.parquet")
zstandard = pytest.importorskip("zstandard")

TEXTS = documents(30)


def lines(texts: list[str]) -> bytes:
    return "".join(json.dumps({"text": text, "n": 1}) + "\n" for text in texts).encode()


def frames(data: bytes) -> bytes:
    """Returns two Zstandard frames, as parallel compressors write them, cut in the middle of a line."""
    half = len(data) // 2
    return zstandard.compress(data[:half]) + zstandard.compress(data[half:])


def write_parquet(path: Path) -> None:
    pyarrow_parquet.write_table(pyarrow.table({"n": list(range(30)), "text": TEXTS}), path, row_group_size=7)


WRITERS: dict[str, Callable[[Path], object]] = {
    "x.jsonl": lambda path: path.write_bytes(lines(TEXTS)),
    "x.jsonl.gz": lambda path: path.write_bytes(gzip.compress(lines(TEXTS))),
    "x.jsonl.xz": lambda path: path.write_bytes(lzma.compress(lines(TEXTS))),
    "x.jsonl.zst": lambda path: path.write_bytes(frames(lines(TEXTS))),
    "x.parquet": write_parquet,
}


def read(*specs: Path | str, start: Position = START, text_field: str = "text") -> list[str]:
    return [document.text for document, _ in Corpus.find([str(spec) for spec in specs], text_field).documents(start)]


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_from_every_position(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name)
    assert read(tmp_path / name) == TEXTS
    found = list(Corpus.find([str(tmp_path / name)], "text").documents())
    for number, (_, position) in enumerate(found, 1):
        assert read(tmp_path / name, start=position) == TEXTS[number:]
    read_so_far = [document.bytes_read for document, _ in found]
    assert read_so_far == sorted(read_so_far)
    assert 0 < read_so_far[-1] <= (tmp_path / name).stat().st_size


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    for number, text in enumerate(TEXTS):
        (tmp_path / f"{number:02}.txt").write_bytes(text.encode())
    (tmp_path / "05.txt").write_bytes(gzip.compress(b""))
    (tmp_path / "05.txt").rename(tmp_path / "05.txt.gz")  # empty documents are left out
    expected = TEXTS[:5] + TEXTS[6:]
    assert read(tmp_path) == expected
    positions = [position for _, position in Corpus.find([str(tmp_path)], "text").documents()]
    assert [read(tmp_path, start=start) for start in positions] == [expected[n:] for n in range(1, len(positions) + 1)]


def test_folders_and_globs_are_read_by_name_and_specs_in_the_order_given(tmp_path: Path) -> None:
    for name, text in {"b/2.jsonl": "b2", "a/1.jsonl": "a1", "b/10.jsonl": "b10", "a/c/0.jsonl": "ac0"}.items():
        write_lines(tmp_path / name, [text])
    (tmp_path / "a" / "notes.md").write_text("not read")
    assert read(tmp_path) == ["a1", "ac0", "b10", "b2"]
    assert read(tmp_path / "b", tmp_path / "a") == ["b10", "b2", "a1", "ac0"]
    assert read(tmp_path / "b" / "*.jsonl", tmp_path / "a" / "1.jsonl") == ["b10", "b2", "a1"]
    assert read(f"{tmp_path}/**/1*.jsonl") == ["a1", "b10"]


def test_what_json_allows(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"text": "marked"}\r\n\n   \n{"text": ""}\n{"body": 1, "text": "half \\ud83d a pair"}'
    )
    assert read(path) == ["marked", "half \ufffd a pair"]


def test_another_field(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "no", "body": "yes"}\n')
    assert read(path, text_field="body") == ["yes"]


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("x.jsonl", b'{"text": "a"}\n{"text": \n', "x.jsonl, line 2: not a line of JSON"),
        ("x.jsonl", b'{"text": "a"}\n' + b"[" * 100_000, "x.jsonl, line 2: not a line of JSON"),
        ("x.jsonl", b'{"text": "a"}\n\n{"text": "\xff"}\n', "x.jsonl, line 3: not a line of JSON"),
        ("x.jsonl", b'{"body": "a", "n": 1}\n', "x.jsonl, line 1: no text in field 'text'; the fields are body, n"),
        ("x.jsonl", b'{"text": null}\n', "x.jsonl, line 1: no text in field 'text'; the fields are text"),
        ("x.jsonl", b'"text"\n', "x.jsonl, line 1: no text in field 'text'; it is no object"),
        ("x.txt", b"abc\xff", "x.txt: not UTF-8 at byte 3"),
        ("x.csv", b"a", "x.csv: unknown file extension; allowed are .txt, .jsonl, .parquet"),
        ("x.jsonl.gz", gzip.compress(lines(TEXTS))[:-20], "x.jsonl.gz: cannot be read, perhaps damaged or cut short"),
        ("x.jsonl.xz", lzma.compress(lines(TEXTS))[:-20], "x.jsonl.xz: cannot be read, perhaps damaged or cut short"),
        ("x.jsonl.zst", frames(lines(TEXTS))[:-20], "x.jsonl.zst: cannot be read, perhaps damaged or cut short"),
        ("x.jsonl.gz", b"plain", "x.jsonl.gz: cannot be read, perhaps damaged"),
        ("x.jsonl.zst", b"plain", "x.jsonl.zst: cannot be read, perhaps damaged"),
        ("x.parquet", b"plain", "x.parquet: cannot be read, perhaps damaged"),
    ],
)
def test_bad_files_are_named(name: str, data: bytes, told: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError) as refusal:
        read(tmp_path / name)
    assert told in str(refusal.value)


def test_parquet_without_the_field_or_the_text(tmp_path: Path) -> None:
    write_parquet(tmp_path / "x.parquet")
    with pytest.raises(InputError, match="no text in field 'body'; the fields are n, text"):
        read(tmp_path / "x.parquet", text_field="body")
    with pytest.raises(InputError, match=r"x\.parquet, row 1: no text in field 'n'"):
        read(tmp_path / "x.parquet", text_field="n")


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("nowhere.jsonl", "nowhere.jsonl: no such file, folder or glob"),
        ("none*.txt", "none.*: no such file, folder or glob"),
        ("empty", "empty: no text files in this folder"),
        ("hf:", "allowed are hf:NAME"),
        ("hf:a:b:c:d", "allowed are hf:NAME"),
    ],
)
def test_sources_that_are_none(spec: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=told):
        read(spec)
    with pytest.raises(InputError, match="none given"):
        read()


@pytest.mark.parametrize(
    ("package", "name"), [("pyarrow", "x.parquet"), ("zstandard", "x.jsonl.zst"), ("datasets", "hf:there")]
)
def test_a_missing_package_is_told(package: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "there").mkdir()
    (tmp_path / name).touch()
    with pytest.raises(InputError, match=rf"{package}; install it with: pip install 'loopt\[data\]'"):
        read(name)


@pytest.mark.parametrize("name", ["x.jsonl", "x.txt"])
def test_identity_changes_with_what_was_read(name: str, tmp_path: Path) -> None:
    first, second = tmp_path / "a" / name, tmp_path / "b" / name
    for path in (first, second):
        write_lines(path, TEXTS)

    def identity(source: int, next: int) -> str:
        return Corpus.find([str(first), str(second)], "text").identity(Position(source, next))

    whole, half, begun = identity(2, 0), identity(1, 1), identity(0, 1)
    assert len({whole, half, begun}) == 3
    assert (identity(2, 0), identity(1, 1), identity(0, 1)) == (whole, half, begun)
    write_lines(second, [*TEXTS, "one more"])
    assert identity(2, 0) != whole
    write_lines(second, ["another", *TEXTS])
    assert identity(1, 1) != half
    assert identity(0, 1) == begun
    for texts in (["another", *TEXTS], []):
        write_lines(first, texts)
        assert identity(0, 1) != begun


def test_the_rest_of_a_file_that_is_begun_may_change(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.jsonl", TEXTS)
    begun = Corpus.find([str(path)], "text").identity(Position(0, 5))
    path.write_bytes(path.read_bytes() + b"a broken line")
    assert Corpus.find([str(path)], "text").identity(Position(0, 5)) == begun


@pytest.mark.parametrize("place", [0, 2**20, 3 * 2**20 - 1])
def test_a_large_file_is_known_by_beginning_size_and_end(place: int, tmp_path: Path) -> None:
    path = tmp_path / "x.txt"

    def identity(data: bytes) -> str:
        path.write_bytes(data)
        return Corpus.find([str(path)], "text").sources[0].identity(only_begun=False)

    data = bytes(3 * 2**20)
    before = identity(data)
    assert identity(data + b"\0") != before
    changed = data[:place] + b"\1" + data[place + 1 :]
    assert (identity(changed) != before) == (place != 2**20)


class TestHub:
    """A local folder stands for a dataset of the hub: the same package reads both."""

    @pytest.fixture(autouse=True)
    def offline(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        datasets = pytest.importorskip("datasets")
        huggingface_hub = pytest.importorskip("huggingface_hub")
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        monkeypatch.chdir(tmp_path)

    def test_streamed_from_every_position(self, tmp_path: Path) -> None:
        write_lines(tmp_path / "corpus" / "train.jsonl", TEXTS[:20])
        write_lines(tmp_path / "corpus" / "test.jsonl", TEXTS[20:])
        assert read("hf:corpus") == TEXTS[:20]
        assert read("hf:corpus::test", "hf:corpus:default:train") == TEXTS[20:] + TEXTS[:20]
        positions = [position for _, position in Corpus.find(["hf:corpus"], "text").documents()]
        for number in (1, 7, 19, 20):
            assert read("hf:corpus", start=positions[number - 1]) == TEXTS[number:20]
        with pytest.raises(InputError, match="hf:corpus, row 1: no text in field 'body'; the fields are text"):
            read("hf:corpus", text_field="body")
        with pytest.raises(InputError, match=r"hf:corpus::exam: ValueError: Bad split: exam"):
            read("hf:corpus::exam")

    def test_a_dataset_that_is_a_script_is_refused(self, tmp_path: Path) -> None:
        write_lines(tmp_path / "corpus" / "train.jsonl", TEXTS)
        (tmp_path / "corpus" / "corpus.py").write_text("raise SystemExit('it ran')")
        with pytest.raises(InputError, match=r"hf:corpus: this dataset is a script .*, and running it is refused"):
            read("hf:corpus")

    def test_a_hub_out_of_reach_is_told(self) -> None:
        with pytest.raises(InputError, match="hf:someone/something: OfflineModeIsEnabled: "):
            read("hf:someone/something")
