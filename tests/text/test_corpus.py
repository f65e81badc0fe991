"""Every format gives the same documents, from any position on; what cannot be read is named."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import socket
import sys
import tracemalloc
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


def zst(data: bytes) -> bytes:
    return bytes(zstandard.ZstdCompressor(write_checksum=True).compress(data))


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zst}


def compressed(data: bytes, suffix: str) -> bytes:
    """Returns two streams, as parallel compressors write them, cut in the middle of a line."""
    half = len(data) // 2
    return COMPRESSORS[suffix](data[:half]) + COMPRESSORS[suffix](data[half:])


def write_parquet(path: Path, texts: list[str] = TEXTS) -> None:
    table = pyarrow.table({"n": list(range(len(texts))), "text": texts})
    pyarrow_parquet.write_table(table, path, row_group_size=7)


WRITERS: dict[str, Callable[..., object]] = {
    "x.jsonl": lambda path, texts=TEXTS: path.write_bytes(lines(texts)),
    "x.jsonl.gz": lambda path, texts=TEXTS: path.write_bytes(compressed(lines(texts), ".gz")),
    "x.jsonl.xz": lambda path, texts=TEXTS: path.write_bytes(compressed(lines(texts), ".xz")),
    "x.jsonl.zst": lambda path, texts=TEXTS: path.write_bytes(compressed(lines(texts), ".zst")),
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


def test_a_file_of_text_or_markdown_is_one_document(tmp_path: Path) -> None:
    for number, text in enumerate(TEXTS):
        (tmp_path / f"{number:02}.{'md' if number % 3 else 'txt'}").write_bytes(text.encode())
    (tmp_path / "05.md").unlink()
    (tmp_path / "05.md.gz").write_bytes(gzip.compress(b""))  # empty documents are left out
    expected = TEXTS[:5] + TEXTS[6:]
    assert read(tmp_path) == expected
    positions = [position for _, position in Corpus.find([str(tmp_path)], "text").documents()]
    assert [read(tmp_path, start=start) for start in positions] == [expected[n:] for n in range(1, len(positions) + 1)]


def test_folders_and_globs_are_read_by_name_and_specs_in_the_order_given(tmp_path: Path) -> None:
    for name, text in {"b/2.jsonl": "b2", "a/1.jsonl": "a1", "b/10.jsonl": "b10", "a/c/0.jsonl": "ac0"}.items():
        write_lines(tmp_path / name, [text])
    (tmp_path / "a" / "notes.rst").write_text("not read")
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
    path.write_bytes(b'{"n": ' + b"9" * 400 + b', "x": NaN, "text": "beside numbers that no one reads"}')
    assert read(path) == ["beside numbers that no one reads"]


def test_another_field(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "no", "body": "yes"}\n')
    assert read(path, text_field="body") == ["yes"]


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("x.jsonl", b'{"text": "a"}\n{"text": \n', "x.jsonl, line 2: not a line of JSON"),
        ("x.jsonl", b'{"text": "a"}\n' + b"[" * 100_000, "x.jsonl, line 2: not a line of JSON"),
        ("x.jsonl", b'{"text": "a", "n": ' + b"9" * 5000 + b"}", "x.jsonl, line 1: not a line of JSON"),
        ("x.jsonl", b'{"text": "a"}\n\n{"text": "\xff"}\n', "x.jsonl, line 3: not a line of JSON"),
        ("x.jsonl", b'{"body": "a", "n": 1}\n', "x.jsonl, line 1: no text in field 'text'; the fields are body, n"),
        ("x.jsonl", b'{"text": null}\n', "x.jsonl, line 1: no text in field 'text'; the fields are text"),
        ("x.jsonl", b'"text"\n', "x.jsonl, line 1: no text in field 'text'; it is no object"),
        ("x.txt", b"abc\xff", "x.txt: not UTF-8 at byte 3"),
        ("x.csv", b"a", "x.csv: unknown file extension; allowed are .txt, .md, .jsonl, .parquet"),
        ("x.jsonl.gz", gzip.compress(lines(TEXTS))[:-20], "x.jsonl.gz: damaged or cut short near byte"),
        ("x.jsonl.xz", lzma.compress(lines(TEXTS))[:-20], "x.jsonl.xz: damaged or cut short near byte"),
        ("x.jsonl.zst", compressed(lines(TEXTS), ".zst")[:-20], "x.jsonl.zst: damaged or cut short near byte"),
        ("x.jsonl.gz", b"plain", "x.jsonl.gz: damaged or cut short"),
        ("x.jsonl.zst", b"plain", "x.jsonl.zst: damaged or cut short"),
        ("x.parquet", b"plain", "x.parquet: damaged or cut short"),
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


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_a_damaged_byte_of_a_compressed_file_is_refused_or_changes_nothing(suffix: str, tmp_path: Path) -> None:
    whole = compressed(TEXTS[0].encode(), suffix)
    path = tmp_path / f"x.txt{suffix}"
    harmless = 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        try:
            assert read(path) == TEXTS[:1]
            harmless += 1
        except InputError as refusal:
            assert "\n" not in str(refusal)  # noqa: PT017
            assert f"{path}: damaged or cut short near byte" in str(refusal)  # noqa: PT017
    assert harmless < 20  # such as the time in the header of gzip


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_a_compressed_file_that_is_cut_within_a_stream_is_refused(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.txt{suffix}"
    first, second = COMPRESSORS[suffix](b"one half and "), COMPRESSORS[suffix](b"the other")
    for length in range(len(first + second)):
        path.write_bytes((first + second)[:length])
        if length == len(first):
            assert read(path) == ["one half and "]
        else:
            with pytest.raises(InputError, match="damaged or cut short near byte"):
                read(path)


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize("padding", [0, 4, 5000])
def test_garbage_after_a_compressed_file_is_refused_and_padding_is_not(
    suffix: str, padding: int, tmp_path: Path
) -> None:
    path = tmp_path / f"x.jsonl{suffix}"
    whole = compressed(lines(TEXTS), suffix) + bytes(padding)
    path.write_bytes(whole + b"garbage")
    with pytest.raises(InputError, match="damaged or cut short near byte"):
        read(path)
    path.write_bytes(whole)
    if padding and suffix == ".zst":  # which has no padding
        with pytest.raises(InputError, match="damaged or cut short near byte"):
            read(path)
    else:
        assert read(path) == TEXTS


@pytest.mark.slow
@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_little_of_what_a_file_expands_to_is_in_memory(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.jsonl{suffix}"
    path.write_bytes(compressed((b" " * 999 + b"\n") * 50_000 + lines(TEXTS), suffix))
    tracemalloc.start()
    try:
        assert read(path) == TEXTS
        assert tracemalloc.get_traced_memory()[1] < 40e6
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_no_damaged_byte_of_a_parquet_file_gives_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    table = pyarrow.table({"text": TEXTS[:3]})
    pyarrow_parquet.write_table(table, path, write_page_checksum=True, compression="none")
    whole = path.read_bytes()
    refused = 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xA5]) + whole[place + 1 :])
        try:
            read(path)
        except InputError as refusal:
            assert str(path) in str(refusal)  # noqa: PT017
            assert "\n" not in str(refusal)  # noqa: PT017
            refused += 1
    assert refused > len(whole) // 3


@pytest.mark.parametrize("name", ["x.jsonl", "x.txt", "x.parquet", "x.jsonl.gz", "x.jsonl.xz", "x.jsonl.zst"])
@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "nothing"])
@pytest.mark.parametrize("spec", ["{}", "folder", "folder/*"])
def test_what_is_not_a_file_is_refused_at_once(
    name: str, kind: str, spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    (tmp_path / "folder").mkdir()
    path = Path("folder") / name
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        socket.socket(socket.AF_UNIX).bind(str(path))
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "nowhere")
    with pytest.raises(InputError, match=f"^source folder/{name}: (not a file, but a pipe|no such file)"):
        read(spec.format(path))


def test_a_name_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(InputError, match=r"^source xxx.{200,250}$"):
        read("x" * 5000 + ".txt")


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("changed", [0, 11, 12, 29])
def test_what_was_read_is_known_by_every_document(name: str, changed: int, tmp_path: Path) -> None:
    first, second = tmp_path / "a" / name, tmp_path / "b" / name
    for path in (first, second):
        path.parent.mkdir()
        WRITERS[name](path)

    def corpus() -> Corpus:
        return Corpus.find([str(first), str(second)], "text")

    positions = [position for _, position in corpus().documents()]
    assert not any(corpus().has_changed(position) for position in [START, *positions])
    texts = TEXTS.copy()
    texts[changed] = "".join(reversed(texts[changed]))
    WRITERS[name](second, texts)
    for read, position in enumerate(positions, 1):
        assert corpus().has_changed(position) == (read > 30 + changed)
    WRITERS[name](first, texts)
    assert corpus().has_changed(positions[35])
    WRITERS[name](first, TEXTS[:changed] + TEXTS[changed + 1 :])
    assert corpus().has_changed(positions[35])


def test_a_document_that_gets_its_text_only_later_is_a_change(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.jsonl", ["a", "", "b"])
    (*_, (_, last)) = Corpus.find([str(path)], "text").documents()
    write_lines(path, ["a", "new", "b"])
    assert Corpus.find([str(path)], "text").has_changed(last)


def test_fewer_sources_than_were_read_are_a_change(tmp_path: Path) -> None:
    paths = [str(write_lines(tmp_path / f"{n}.jsonl", [f"text {n}"])) for n in range(3)]
    corpus = Corpus.find(paths, "text")
    list(corpus.documents())
    assert corpus.end
    assert corpus.is_all_of(corpus.end)
    assert not corpus.has_changed(corpus.end)
    assert Corpus.find(paths[:2], "text").has_changed(corpus.end)
    assert not Corpus.find([*paths, paths[0]], "text").is_all_of(corpus.end)


def test_the_rest_of_a_file_that_is_begun_may_change(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.jsonl", TEXTS)
    *_, begun = [position for _, position in Corpus.find([str(path)], "text").documents()][:5]
    write_lines(path, [*TEXTS[:5], "others", "than before"])
    assert not Corpus.find([str(path)], "text").has_changed(begun)


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
