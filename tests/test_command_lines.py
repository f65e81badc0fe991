"""Random command lines: each ends by itself with 0, 1 or 2, an error is one line, and nothing is written elsewhere."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from command_line import is_refusal, run
from loopt.text.tokenizer import train_tokenizer
from loopt.training import Session, train
from tiny_runs import TINY, with_source

LINES = 700
SLOWEST = 30
"""Seconds of this process's own time that one command line may take; what trains takes one."""
PATIENCE = 120
"""Seconds by the clock, for one that waits for ever and takes no time of its own."""

NASTY = (
    *("0", "1", "2", "3", "-1", "-9", "1000000000", "1000000000000", "9223372036854775807", "9223372036854775808"),
    *("99999999999999999999", "1" * 400, "7" * 5000, "1e30", "1e400", "-1e-400", "nan", "inf", "-inf", "0x10", "1_0"),
    *("", " ", "None", "none", "True", "[bold]", "[/]", "[red", ":smile:", "a\nb", "\x1b[31m", "⊗", "٣", "ß" * 300),
    *("\udcff", "..", ".", "missing.json", "deep.json", "digits.json", "empty.json", "list.json", "nan.json"),
    *(
        "latin.json",
        "table.json",
        "point.json",
        "run",
        "run/config.json",
        "unfinished",
        "x" * 5000,
        "--",
        "-",
        "=",
        "1x1",
        "4x(1,2,1)",
    ),
    *("1000000000x1", "1x1000000000000", "3x", "best", "last", "24", "S3", "Z2xZ2", "cpu", "auto", "every", "planted"),
)
TINY_RUN = (
    *("--model.plan", "1x2", "--model.d-model", "8", "--model.n-heads", "2", "--model.d-ff", "16", "--steps", "1"),
    *("--optim.warmup-steps", "0", "--batch-size", "8", "--eval-examples", "4", "--test-examples", "4"),
    *("--log-every", "1", "--eval-every", "1", "--device", "cpu", "--time-limit", "1", "--no-progress"),
)
MODEL = ("plan", "d-model", "n-heads", "d-ff", "vocab-size", "max-len", "head-dim", "attention-scale", "rope-base")
TRAIN = (
    *(f"--model.{name}" for name in (*MODEL, "positions", "norm-placement", "feed-forward")),
    *("--steps", "--batch-size", "--seed", "--log-every", "--eval-every", "--eval-examples", "--test-examples"),
    *("--optim.lr", "--optim.warmup-steps", "--optim.name", "--regularizer.block", "--regularizer.weight"),
    *("--stacking.block", "--time-limit", "--micro-batch", "--keep", "--run", "--train-examples", "--answer-weight"),
    *("--target-accuracy", "--device", "--parallel"),
)
TASKS = {
    "phop": ("--p", "--n", "--alphabet", "--sampler", "--supervision"),
    "addition": ("--operands", "--digits", "--test-operands", "--room", "--fill"),
    "group": ("--group", "--n", "--test-lengths"),
    "assignment": ("--depth", "--variables", "--shots", "--letters", "--largest", "--order", "--rendering"),
    "igsm": ("--modulus", "--law", "--operations", "--edges", "--levels", "--statements", "--needed"),
}
EXPERIMENTS = ("addition", "phop", "phop-uniform", "igsm", "igsm-even", "group", "loops", "language", "depth-scaling")
SOURCES = (
    *("text.txt",) * 20,
    *("task:", "task:?", "task:phop", "task:phop?share=0.1", "task:phop?p=1&n=4&documents=20", "[red"),
    *(f"task:{task}?{option.strip('-').replace('-', '_')}=" for task, options in TASKS.items() for option in options),
)
"""Sources of text: a file, and tasks, those with = at their end for a value."""
PREPARE = ("data", "prepare", "--tokenizer", "tokenizer.json", "--out", "prepared", "--workers", "1")
FORMS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("plan", "4x6"), tuple(f"--{name}" for name in MODEL[1:6])),
    (("plan",), ("--d-model",)),
    (("tasks", "show", "phop"), ("--import",)),
    (("train", "phop-cpu", "--p", "1", "--n", "8", *TINY_RUN), (*TRAIN, *TASKS["phop"])),
    (("train", "--from", "run/config.json", "--device", "cpu"), TRAIN),
    (("train", "--from"), ("--run",)),
    (("eval", "run", "--examples", "4"), ("--loops", "--checkpoint", "--examples", "--split", "--data", "--device")),
    (("eval",), ("--loops",)),
    (("eval", "run", "--suite", "svamp", "--data-dir", "nowhere"), ("--suite", "--limit", "--loops", "--checkpoint")),
    (("eval", "--show-prompt", "svamp"), ("--show-prompt", "--limit")),
    (("eval", "predict", "run", "--out", "predictions"), ("--requests", "--loops", "--checkpoint", "--hf")),
    (("thoughts", "run"), ("--input", "--index", "--position", "--loops", "--top", "--checkpoint", "--device")),
    (
        ("thoughts", "run", "--page", "--probe-examples", "2"),
        ("--input", "--index", "--loops", "--examples", "--probe-examples", "--built", "--out", "--port"),
    ),
    (("analyze", "probe", "run", "--examples", "4"), ("--loops", "--examples", "--checkpoint", "--out")),
    (("report", "run"), ("--scale", "--results", "--out")),
    (("report", "phop"), ("--scale", "--results", "--out")),
    (("analyze", "similarity", "run"), ("--apart", "--checkpoint", "--out")),
    (("analyze", "similarity"), ("--checkpoint",)),
    (("analyze", "gap", "run", "point.json", "run"), ("--metrics", "--out")),
    (("analyze", "difference", "run", "point.json"), ("--metrics", "--out")),
    (("analyze", "scaling", "run", "point.json"), ("--metrics", "--out")),
    (("analyze", "loops", "run", "--examples", "4"), ("--loops", "--checkpoint", "--examples", "--split", "--device")),
    (("analyze", "isoplot", "run"), ("--first", "--metric", "--suite", "--limit")),
    (("analyze",), ("--out",)),
    (
        ("prove", "group-composition", "--group", "S3", "--n", "3", "--inputs", "2"),
        ("--group", "--n", "--inputs", "--seed", "--save"),
    ),
    (("prove", "phop", "--p", "1", "--n", "8", "--inputs", "2"), ("--p", "--n", "--inputs", "--seed", "--compare")),
    (("prove", "cot", "--bits", "0"), ("--bits", "--seed")),
    (("prove",), ("--seed",)),
    (("reproduce", "status"), ("--scale", "--runs", "--results")),
    (("reproduce", "table", "phop"), ("--scale", "--format", "--rows", "--results")),
    (("reproduce",), ("--scale",)),
    (("tasks", "list"), ()),
    (("data", "show"), ()),
    (("data", "prepare"), ("--vocab-size", "--out", "--tokenizer")),
    *(((*PREPARE, "--validation", "0", "--test", "0"), ("--source",)),) * 8,
    *((("reproduce", name, "--seeds", "0"), ("--scale", "--rows", "--seeds", "--together")) for name in EXPERIMENTS),
    *((("tasks", "show", name), (*TASKS[name], "--index", "--seed", "--split")) for name in TASKS),
    *((("tasks", "audit", name, "--examples", "20"), (*TASKS[name], "--examples", "--seed")) for name in TASKS),
)
BAD = ("0", "-1", "101", "1000000000000", "9223372036854775808", "7" * 5000, "nan", "[bold]", "")
COSTLY = {"--seeds": BAD, "--bits": BAD}
"""Options of which a good value takes many seconds: it trains whole models, or proves a theorem on all inputs."""


class TooSlow(Exception):
    """A command line ran for too long."""


@contextmanager
def writing_only_in(folder: Path) -> Iterator[None]:
    """Raises an error where a file or directory is opened for writing, made or renamed elsewhere."""
    watching = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if not watching or event not in ("open", "os.mkdir", "os.rename") or isinstance(arguments[0], int):
            return
        reads = event == "open" and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        path = Path(os.fsdecode(arguments[0])).absolute()
        allowed = path.is_relative_to(folder) or path.is_relative_to("/dev") or "__pycache__" in path.parts
        assert reads or allowed, f"{event} {path}"

    sys.addaudithook(hook)  # there is no taking it away again
    try:
        yield
    finally:
        watching = False


@contextmanager
def at_most(seconds: float, patience: float) -> Iterator[None]:
    """Raises TooSlow after so many seconds of this process's own time, however busy the machine is, or, where it waits
    for something, of the clock."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlow(signal.Signals(number).name)

    limits = ((signal.SIGPROF, signal.ITIMER_PROF, seconds), (signal.SIGALRM, signal.ITIMER_REAL, patience))
    before = {number: signal.signal(number, stop) for number, _, _ in limits}
    for _, timer, limit in limits:
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for number, timer, _ in limits:
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


def random_command_line(draw: random.Random) -> list[str]:
    start, options = draw.choice(FORMS)
    words = list(start)
    for option in draw.sample(options, min(len(options), draw.choice((0, 1, 1, 1, 2, 3)))):
        if option == "--source":
            words += [option, *random_sources(draw)]
            continue
        value = draw.choice(COSTLY.get(option, NASTY))
        words += [f"{option}={value}"] if draw.random() < 0.5 else [option, value]
    if not options or (len(start) < 4 and draw.random() < 0.15):
        words.insert(draw.randrange(1, len(words) + 1), draw.choice(NASTY))
    return words


def random_sources(draw: random.Random) -> list[str]:
    sources = draw.sample(SOURCES, draw.choice((1, 2, 2, 3)))
    amounts = ("&share=0.1",) if "text.txt" in sources else ("", "&documents=2", "&documents=20&q=1", "&share=0.1")
    values = NASTY if draw.random() < 0.5 else ("1", "2", "3", "5")
    return [f"{one}{draw.choice(values)}{draw.choice(amounts)}" if one.endswith("=") else one for one in sources]


def leave_files(folder: Path) -> None:
    """Leaves a trained run, text with a tokenizer, and files that no reader should believe."""
    (folder / "text.txt").write_text("one and two, " * 50)
    (folder / "tokenizer.json").write_text(train_tokenizer(["one and two"], 280).text, encoding="utf-8")
    train(with_source(TINY, n=8), folder / "run", Session(device="cpu", progress=False))
    (folder / "unfinished").mkdir()
    (folder / "unfinished" / "config.json").write_bytes((folder / "run" / "config.json").read_bytes())
    files = {
        "deep": "[" * 5000,
        "digits": "1" * 400,
        "empty": "{}",
        "list": "[]",
        "nan": '{"source": NaN}',
        "latin": "\x80",
        "table": "[[0, 1], [1, 0]]",
        "point": '{"plan": "2x1", "metrics": {"accuracy": 0.5}}',
    }
    for name, text in files.items():
        (folder / f"{name}.json").write_bytes(text.encode("latin-1"))


def compute_for_ever() -> None:
    while True:
        pass


def test_what_computes_and_what_waits_for_ever_are_too_slow() -> None:
    with pytest.raises(TooSlow, match="SIGPROF"), at_most(0.1, 60):
        compute_for_ever()
    with pytest.raises(TooSlow, match="SIGALRM"), at_most(0.1, 0.5):
        threading.Event().wait()
    with at_most(0.1, 60):
        time.sleep(0.5)  # as where other processes have the cores


@pytest.mark.slow
def test_every_command_line_ends_with_an_answer_or_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("COLUMNS", "200")  # no message is wrapped
    leave_files(home)
    capfd.readouterr()
    draw = random.Random(0)
    with writing_only_in(tmp_path):
        for _ in range(LINES):
            words = random_command_line(draw)
            with at_most(SLOWEST, PATIENCE):
                code = run(*words)
            shutil.rmtree(home / "prepared", ignore_errors=True)
            shown = capfd.readouterr()
            assert code in (0, 1, 2), words
            assert code < 2 or is_refusal(shown.err), (words, shown.err)
