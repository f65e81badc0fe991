"""loopt data: from the text in examples/ to tokens, and everything on the way that can go wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import command_line
from loopt.source import SPLITS

EXAMPLE = Path(__file__).parents[1] / "examples" / "persuasion"
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")  # no message is wrapped


def run(*arguments: str) -> int:
    return command_line.run("data", *arguments)


def example_tokenizer(vocab_size: int = 512) -> str:
    assert (
        run("tokenizer", "--source", str(EXAMPLE), "--vocab-size", str(vocab_size), "--out", "tok/tokenizer.json") == 0
    )
    return "tok/tokenizer.json"


def test_from_the_example_to_tokens(tmp_path: Path, capsys: Captured) -> None:
    tokenizer = example_tokenizer()
    assert capsys.readouterr().out == "tok/tokenizer.json: 512 tokens, from 24 documents\n"
    prepare = [
        "prepare",
        "--source",
        str(EXAMPLE),
        "--tokenizer",
        tokenizer,
        "--validation",
        "0.1",
        "--test",
        "0.1",
        "--out",
    ]
    prepare.append("data")
    assert run(*prepare, "--workers", "1") == 0
    made = capsys.readouterr()
    told = re.fullmatch(
        r"data: ([\d,]+) train tokens in (\d+) documents, ([\d,]+) validation tokens in (\d+) documents, "
        r"([\d,]+) test tokens in (\d+) documents; fingerprint ([0-9a-f]{16})\n",
        made.out,
    )
    assert told
    assert not made.err  # no progress bar where nobody watches
    *figures, fingerprint = told.groups()
    documents = [int(count) for count in figures[1::2]]
    assert sum(documents) == 24
    assert min(documents) > 1

    assert run(*prepare, "--workers", "2") == 0  # done already
    assert capsys.readouterr().out == made.out

    assert run("show", "data", "--verify") == 0
    shown = capsys.readouterr().out
    for split, tokens, count in zip(SPLITS, figures[::2], documents, strict=True):
        assert re.search(rf"│ {split} +│ +{tokens} │ +{count} │ +1 │ +\d\.\d\d │", shown)
    assert f"fingerprint    {fingerprint}" in shown
    assert "vocabulary     512 tokens, stored as uint16" in shown
    perplexity = re.search(
        r"entropy (\S+) bits a token on train, perplexity (\S+) on validation, perplexity (\S+) on test", shown
    )
    assert perplexity
    entropy, *held_out = map(float, perplexity.groups())
    assert held_out == pytest.approx([2**entropy] * 2, rel=0.1)
    assert "train begins   'Mr Shepherd, a civil, cautious lawyer, who, whatever might be his hold" in shown

    (tmp_path / "data" / "train-00000.bin").write_bytes(b"")
    assert run("show", "data") == 2
    assert "train-00000.bin: 0 bytes, the index says" in capsys.readouterr().err


def test_tasks_are_mixed_in_and_shown_by_source(capsys: Captured) -> None:
    tokenizer = example_tokenizer()
    tasks = ["task:assignment?depth=1&shots=5&share=0.1", "task:igsm?share=0.05"]
    prepare = ["prepare", "--source", tasks[0], str(EXAMPLE), tasks[1], "--tokenizer", tokenizer, "--workers", "1"]
    assert run(*prepare, "--validation", "0.1", "--test", "0.1", "--out", "data") == 0
    capsys.readouterr()
    assert run("show", "data") == 0
    shown = capsys.readouterr().out
    row = r"│ (\d) +│ (\w+) +│ +([\d,]+) │ +([\d.]+)% │ +(\d+) │ +(\d\.\d\d) │"
    rows = {(source, split): figures for source, split, *figures in re.findall(row, shown)}
    held_out = [("1", "validation"), ("1", "test")]
    assert list(rows) == [("0", "train"), ("1", "train"), *held_out, ("2", "train")]
    shares = {source: float(share) for (source, split), (_, share, *_) in rows.items() if split == "train"}
    assert shares == pytest.approx({"0": 10, "1": 85, "2": 5}, abs=0.4)
    assert [rows[one][1] for one in held_out] == ["100.00"] * 2
    for number, source in enumerate([tasks[0], str(EXAMPLE), tasks[1]]):
        assert f"\nsource {number}       {source}\n" in shown


def test_the_example_is_plain_text_of_a_size_to_ship() -> None:
    chapters = sorted(EXAMPLE.glob("*.txt"))
    assert len(chapters) == 24
    texts = [chapter.read_text(encoding="ascii") for chapter in chapters]
    assert 400_000 < sum(map(len, texts)) < 500_000
    assert all(text.endswith("\n") and "  " not in text for text in texts)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="the workers are looked up in /proc")
def test_killed_and_started_again(tmp_path: Path) -> None:
    """The process is killed, its workers end by themselves, and the same command gives the same bytes."""
    text = " ".join(chapter.read_text() for chapter in sorted(EXAMPLE.glob("*.txt")))
    with (tmp_path / "large.jsonl").open("w") as file:
        for n in range(0, 6 * len(text), 20_000):
            file.write(json.dumps({"text": f"{n} {(text[n % len(text) :] + text)[:20_000]}"}) + "\n")
    tokenizer = example_tokenizer(300)
    command = [sys.executable, "-m", "loopt", "data", "prepare", "--source", "large.jsonl", "--tokenizer", tokenizer]
    command += ["--validation", "0.1", "--test", "0.1", "--shard-bytes", "200000", "--workers", "2", "--out"]
    process = subprocess.Popen([*command, "killed"], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("killed/train-*.bin"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        workers = children_of(process.pid)
        assert len(workers) >= 2
    finally:
        process.kill()
        process.wait()
    assert not (tmp_path / "killed" / "index.json").exists()
    while any(is_running(worker) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(is_running(worker) for worker in workers)
    for name in ("killed", "unbroken"):
        subprocess.run([*command, name], check=True, stdout=subprocess.DEVNULL)
    killed, unbroken = ({p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in ("killed", "unbroken"))
    assert killed == unbroken


def children_of(parent: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="nobody can write there")
def test_a_tokenizer_that_cannot_be_written_is_told(capsys: Captured) -> None:
    given = ["--source", str(EXAMPLE), "--vocab-size", "257", "--out", "/proc/t.json"]
    assert run("tokenizer", *given) == 2
    told = capsys.readouterr().err
    assert re.fullmatch(r"loopt: (out=|cannot write )/proc/t\.json: .*\n", told)


@pytest.mark.parametrize("command", ["prepare", "tokenizer", "show"])
def test_help_gives_an_example(command: str, capsys: Captured) -> None:
    assert run(command, "--help") == 0
    assert re.search(rf"For example:\s+loopt data {command} \S", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("cook", "data command 'cook' allowed are prepare, tokenizer, show"),
        ("prepare --tokenizer t.json --out d", "--source required"),
        ("prepare --source x.jsonl --tokenizer t.json", "--out required"),
        ("prepare --source x.jsonl --tokenizer t.json --out d", "tokenizer t.json: no such file"),
        ("prepare --source y --tokenizer x.jsonl --out d", "tokenizer x.jsonl: not a file of the tokenizers package"),
        ("prepare --source x.jsonl --tokenizer t.json --out d --id-type int8", "--id-type 'int8'"),
        ("prepare --source x.jsonl --tokenizer t.json --out d --validation 2", "validation=2.0: allowed 0 to"),
        ("prepare --source x.jsonl --tokenizer t.json --out d --workers 0", "workers=0: allowed 1 to 1024"),
        (
            "prepare --source x.jsonl --tokenizer t.json --out d --workers 1000000000",
            "workers=1000000000: allowed 1 to",
        ),
        (
            "prepare --source x.jsonl --tokenizer t.json --out d --shard-bytes 9999999999999",
            "shard_bytes=99999 allowed",
        ),
        ("prepare --source x.jsonl --tokenizer t.json --out d --shard-bytes 9" + "9" * 9000, "--shard-bytes"),
        ("prepare --source x.jsonl --tokenizer t.json --out d --test 1e400", "test=inf: allowed 0 to"),
        ("prepare --source /dev/zero --tokenizer t.json --out d", "tokenizer t.json: no such file"),
        ("prepare --source x.jsonl --tokenizer /dev/zero --out d", "tokenizer /dev/zero: not a file"),
        ("prepare --source x.jsonl task:hop --tokenizer t.json --out d", "tokenizer t.json: no such file"),
        ("tokenizer --source task:phop?share=.1 --vocab-size 300 --out t.json", "task:phop?share=.1: a task, no end;"),
        ("tokenizer --source /dev/zero --vocab-size 300 --out t.json", "source /dev/zero: unknown file extension"),
        ("tokenizer --source x.jsonl --vocab-size 1000000000000 --out t.json", "vocab_size=1000000000000: to 4194304"),
        (
            "tokenizer --source x.jsonl --vocab-size 300 --out x.jsonl/t.json",
            "x.jsonl/t.json: Not a directory",
        ),
        ("tokenizer --source x.jsonl --vocab-size 300 --out " + "t" * 5000, "File name too long"),
        ("tokenizer --source x.jsonl --vocab-size 300 --out x.jsonl", "out=x.jsonl: exists already"),
        ("tokenizer --source x.jsonl --vocab-size 30 --out t.json", "vocab_size=30: allowed 257"),
        ("tokenizer --source x.jsonl --vocab-size 300 --out t.json", "source=x.jsonl: an empty corpus"),
        ("tokenizer --source y.jsonl --vocab-size 300 --out t.json", "source y.jsonl: no such file"),
        ("tokenizer --source z.jsonl --vocab-size 300 --out t.json", "source z.jsonl, line 2: not a line of JSON"),
        ("show nowhere", "data nowhere: no index.json there"),
        ("show", "PATH required"),
    ],
)
def test_what_cannot_be_done_is_refused(command: str, told: str, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "x.jsonl").write_text("\n")
    (tmp_path / "z.jsonl").write_text('{"text": "fine"}\nbroken\n')
    assert run(*command.split()) == 2
    shown = capsys.readouterr()
    assert not shown.out
    assert "Traceback" not in shown.err
    for words in told.split(" "):
        assert words in shown.err, shown.err
    assert {path.name for path in tmp_path.iterdir()} == {"x.jsonl", "z.jsonl"}
