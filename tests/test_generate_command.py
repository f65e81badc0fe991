"""loopt generate, score and analyze: they print what Python returns, and end cleanly however they end."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import loopt
from command_line import run
from loopt.generation import Entropy
from loopt.runs import Run
from loopt.scoring import score_text
from loopt.training import Session, train
from tiny_runs import TINY
from tiny_text_runs import prepared, tiny_text

CPU = Session(device="cpu", progress=False)
Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model that has seen a few thousand tokens, and reads long texts."""
    folder = tmp_path_factory.mktemp("writer")
    data = prepared(folder)
    config = tiny_text(data=str(data))
    train(replace(config, model=replace(config.model, max_len=200, exit_gate=True), steps=40), folder / "run", CPU)
    return folder / "run"


@pytest.fixture(scope="module")
def solver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("solver") / "run"
    train(TINY, path, CPU)
    return path


def test_what_is_printed_is_what_python_generates(writer: Path, capsys: Captured) -> None:
    model = loopt.load(writer)
    assert run("generate", str(writer), "--prompt", "the cat", "--max-new-tokens", "12", "--device", "cpu") == 0
    found = capsys.readouterr()
    (wanted,) = loopt.generate(model, "the cat", max_new_tokens=12)
    assert found.out == f"the cat{wanted.text}\n"
    assert re.fullmatch(
        r"12 tokens in [\d.]+ s, [\d,]+ tokens/s; 2.00 loops a token; cache all: [\d.]+k?B for 1 x \d+ tokens\n",
        found.err,
    )


def test_every_setting_reaches_generation(writer: Path, capsys: Captured) -> None:
    model, prompts = loopt.load(writer), ["the", "a dog sees"]
    line = "--temperature 0.9 --top-k 20 --top-p 0.8 --min-p 0.05 --repetition-penalty 1.3 --seed 7 --samples 2"
    words = ["generate", str(writer), "--prompt", *prompts, *line.split(), "--loops", "4", "--json", "--device", "cpu"]
    assert run(*words, "--max-new-tokens", "9", "--stop", "cat", "--exit", "entropy:3") == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    wanted = loopt.generate(
        model,
        prompts,
        max_new_tokens=9,
        temperature=0.9,
        top_k=20,
        top_p=0.8,
        min_p=0.05,
        repetition_penalty=1.3,
        seed=7,
        samples=2,
        loops=4,
        stop=("cat",),
        exit=Entropy(3.0),
    )
    assert [one["tokens"] for one in found] == [one.tokens for one in wanted]
    assert [one["loops"] for one in found] == [one.loops for one in wanted]
    assert [one["prompt"] for one in found] == ["the", "the", "a dog sees", "a dog sees"]
    assert all(one.keys() >= {"text", "log_probabilities", "finish", "drafted", "accepted"} for one in found)


def test_policies_and_drafts_are_told(writer: Path, capsys: Captured) -> None:
    words = ("generate", str(writer), "--prompt", "the", "--max-new-tokens", "10", "--device", "cpu")
    sizes = {}
    for cache in ("all", "last", "first+window"):
        assert run(*words, "--cache", cache, "--window", "4") == 0
        (size,) = re.findall(rf"cache {re.escape(cache)}: ([\d.]+)kB", capsys.readouterr().err)
        sizes[cache] = float(size)
    assert sizes["all"] > sizes["first+window"] > sizes["last"]
    assert run(*words, "--draft-loops", "1") == 0
    assert re.search(r"; \d+ of \d+ drafts accepted; ", capsys.readouterr().err)


def test_prompts_come_from_files_too(writer: Path, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "lines.txt").write_text("the\na dog\n")
    (tmp_path / "lines.jsonl").write_text('{"prompt": "the"}\n{"prompt": "a dog", "id": 3}\n')
    said = []
    for name in ("lines.txt", "lines.jsonl"):
        words = ("generate", str(writer), "--file", str(tmp_path / name), "--max-new-tokens", "5", "--json")
        assert run(*words, "--device", "cpu") == 0
        said.append([json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()])
    assert said[0] == said[1]
    assert len(said[0]) == 2


def test_a_tasks_model_reads_the_words_of_its_task(solver: Path, capsys: Captured) -> None:
    assert run("generate", str(solver), "--prompt", "abcabca", "--max-new-tokens", "1", "--device", "cpu") == 0
    (wanted,) = loopt.generate(loopt.load(solver), "abcabca", max_new_tokens=1)
    assert capsys.readouterr().out == f"abcabca{wanted.text}\n"
    assert wanted.text in "abc"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], 'prompt: which? Allowed is one of --prompt "…", --file PATH and -i'),
        (["--prompt", "a", "-i"], "prompt: which?"),
        (["--prompt", ""], "prompt 0 is empty; allowed are 1 to 200 tokens"),
        (["--prompt", "the " * 300], "tokens; allowed are 1 to 200, the model's max_len"),
        (["--prompt", "a", "--max-new-tokens", "0"], "max_new_tokens=0: allowed is 1 to"),
        (["--prompt", "a", "--exit", "often:1"], "exit=often:1: allowed are change:THRESHOLD"),
        (["--prompt", "a", "--exit", "kl:x"], "exit=kl:x: allowed are"),
        (["--prompt", "a", "--temperature", "-1"], "temperature=-1.0: allowed is 0 (greedy) or more"),
        (["--prompt", "a", "--draft-loops", "2"], "draft_loops=2: allowed is 1 to 1, fewer than the 2 loops"),
        (["--file", "missing.txt"], "cannot read missing.txt"),
        (["--file", "broken.jsonl"], "broken.jsonl:2: allowed is an object with a text in its field prompt"),
        (["--file", "latin.txt"], "file=latin.txt: allowed is text in UTF-8"),
    ],
)
def test_what_cannot_be_generated_is_refused_in_one_line(
    writer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.jsonl").write_text('{"prompt": "a"}\n{"text": "b"}\n')
    Path("latin.txt").write_bytes(b"caf\xe9")
    assert run("generate", str(writer), *words, "--device", "cpu") == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.startswith("loopt: ")
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_lines_typed_at_the_prompt_are_completed_one_by_one(
    writer: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("the\n\na dog\n"))
    assert run("generate", str(writer), "-i", "--max-new-tokens", "4", "--device", "cpu") == 0
    wanted = loopt.generate(loopt.load(writer), ["the", "a dog"], max_new_tokens=4)
    said = capsys.readouterr()
    assert said.out == f"the{wanted[0].text}\na dog{wanted[1].text}\n\n"
    assert said.err == "loopt: prompt 0 is empty; allowed are 1 to 200 tokens\n"  # and it goes on


def read_until(terminal: int, expected: bytes, seconds: float = 60) -> bytes:
    seen, deadline = b"", time.monotonic() + seconds
    while expected not in seen and time.monotonic() < deadline:
        try:
            seen += os.read(terminal, 1024)
        except OSError:  # the other side has closed it
            break
    return seen


@pytest.fixture(scope="module")
def slow_writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model that takes seconds for a text."""
    folder = tmp_path_factory.mktemp("slow-writer")
    config = tiny_text(data=str(prepared(folder, count=400)))
    model = replace(config.model, plan=loopt.LoopPlan.parse("4x8"), max_len=2000)
    train(replace(config, model=model, steps=3, batch_size=1, eval_examples=1, test_examples=1), folder / "run", CPU)
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize("interactive", [False, True])
def test_ctrl_c_while_streaming_leaves_the_terminal_clean(slow_writer: Path, interactive: bool) -> None:
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "loopt", "generate", str(slow_writer), "--max-new-tokens", "1900"]
    words += ["--device", "cpu", *(["-i"] if interactive else ["--prompt", "the cat"])]
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # ignored in whatever a shell runs in the background
    process = subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, preexec_fn=heed
    )
    os.close(theirs)
    if interactive:
        read_until(ours, b"> ")
        os.write(ours, b"the cat\n")
        read_until(ours, b"\r\n")
    seen = read_until(ours, b"the cat")
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    if interactive:
        seen += read_until(ours, b"> ")
        assert seen.endswith(b"\r\n> ")  # ready for the next prompt, on a line of its own
        os.write(ours, b"\x04")
        assert process.wait(60) == 0
    else:
        assert process.wait(60) == 130
        seen += read_until(ours, b"interrupted\r\n")
        assert seen.endswith(b"\r\nloopt: interrupted\r\n")
    os.close(ours)
    assert b"Traceback" not in seen


def test_scores_are_those_of_python(writer: Path, tmp_path: Path, capsys: Captured) -> None:
    text = "the cat sees a dog"
    (tmp_path / "text.txt").write_text(text)
    wanted = score_text(loopt.load(writer), text, Run.load(writer).codec)
    last = (
        f"{len(wanted.tokens)} tokens, {len(text)} bytes: "
        f"{wanted.bits_per_byte:.4f} bits per byte, perplexity {wanted.perplexity:.3f}\n"
    )
    assert run("score", str(writer), "--text", text, "--device", "cpu") == 0
    shown = capsys.readouterr().out
    assert shown.endswith(last)
    assert all(f"{one:.4f}" in shown for one in wanted.log_probabilities)
    assert run("score", str(writer), "--file", str(tmp_path / "text.txt"), "--summary", "--device", "cpu") == 0
    assert capsys.readouterr().out == last
    assert run("score", str(writer), "--text", text, "--json", "--device", "cpu") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["log_probabilities"] == pytest.approx(wanted.log_probabilities)
    assert "".join(found["pieces"]) == text


def test_what_cannot_be_scored_is_refused(writer: Path, solver: Path, capsys: Captured) -> None:
    for words, message in (
        ((str(writer),), 'text: which one? Allowed is one of --text "…" and --file PATH'),
        ((str(writer), "--text", ""), "text: empty"),
        ((str(solver), "--text", "abc"), "text: this model has no token that texts begin after"),
        ((str(writer), "--text", "a", "--loops", "0"), "plan: 2x2 with loops=0; loops must be 1 or more"),
    ):
        assert run("score", *words, "--device", "cpu") == 2
        assert capsys.readouterr().err.startswith(f"loopt: {message}")


def test_analyses_print_and_draw(writer: Path, tmp_path: Path, capsys: Captured) -> None:
    pytest.importorskip("matplotlib")
    common = ("--device", "cpu", "--examples", "2")
    assert run("analyze", "exit", str(writer), *common, "--rules", "kl", "gate", "--out", str(tmp_path)) == 0
    assert (tmp_path / "exit.png").read_bytes()[:4] == b"\x89PNG"
    points = json.loads((tmp_path / "exit.json").read_text())
    assert {point["rule"] for point in points} == {"fixed", "kl", "gate"}
    assert run("analyze", "cache", str(writer), *common, "--windows", "3") == 0
    assert run("analyze", "drafts", str(writer), *common, "--draft-loops", "1", "--draft-tokens", "2") == 0
    out = capsys.readouterr().out
    assert "first+window 3" in out
    assert "differing tokens" in out
    assert run("analyze", "drafts", str(writer), *common, "--draft-loops", "2") == 2
    assert capsys.readouterr().err.startswith("loopt: draft_loops=2: allowed is 1 to 1")
    assert run("analyze", "exits", str(writer)) == 2
