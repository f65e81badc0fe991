"""The command line: every command explains itself, does what it says, and refuses in one message what it cannot do."""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import loopt
import tiny_runs
from command_line import run
from loopt import LoopPlan, ModelConfig, __version__
from loopt.cli import main
from loopt.commands import COMMANDS
from loopt.report.drawing import human
from loopt.reproduce.catalogue import EXPERIMENTS, LANGUAGE
from loopt.reproduce.experiment import jobs_of
from loopt.runs import Run
from loopt.scoring import exact_match
from loopt.tasks import IGSM
from loopt.training import train
from tiny_experiments import leave_result
from tiny_text_runs import documents, text_directory

TINY = [
    *("--p", "1", "--n", "8", "--model.plan", "1x2", "--model.d-model", "8", "--model.n-heads", "2"),
    *("--model.d-ff", "16", "--optim.warmup-steps", "2", "--steps", "12", "--batch-size", "4", "--log-every", "2"),
    *("--eval-every", "4", "--eval-examples", "8", "--test-examples", "16", "--device", "cpu"),
]
TINY_TEXT = [
    *("--model.plan", "1x1+1x2", "--model.d-model", "16", "--model.n-heads", "2", "--model.d-ff", "24"),
    *("--model.max-len", "12", "--optim.warmup-steps", "2", "--steps", "8", "--batch-size", "4", "--log-every", "2"),
    *("--eval-every", "4", "--eval-examples", "8", "--device", "cpu"),
]
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")  # no message is wrapped


def in_a_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "loopt", *arguments], capture_output=True, text=True, timeout=60)


def test_version(capsys: Captured) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"loopt {__version__}\n"


@pytest.mark.parametrize(
    "command",
    [
        *COMMANDS,
        "reproduce quick",
        "reproduce phop",
        "reproduce status",
        "reproduce table",
        "train phop-cpu",
        "train phop",
        "train lm-cpu",
        "train lm-1b",
        "tasks show",
        "tasks show phop",
    ],
)
def test_help_gives_an_example(command: str, capsys: Captured) -> None:
    assert run(*command.split(), "--help") == 0
    shown = capsys.readouterr()
    assert not shown.err
    assert "or example" in shown.out
    assert re.search(rf"\n *loopt {command.split()[0]} \S", shown.out.partition("or example")[2])


def test_usage_names_every_command(capsys: Captured) -> None:
    assert run() == 0
    shown = capsys.readouterr().out
    assert run("--help") == 0
    assert capsys.readouterr().out == shown
    assert all(f"\n  loopt {command} " in shown for command in COMMANDS)


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_come_at_once(option: str) -> None:
    code = f"import sys; from loopt.cli import main; main([{option!r}]); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_a_crash_outside_python_says_where_it_was(tmp_path: Path) -> None:
    crashing = tmp_path / "crashing.py"
    crashing.write_text("import ctypes\n\n\ndef read_address_0():\n    ctypes.string_at(0)\n\n\nread_address_0()\n")
    done = in_a_process("tasks", "list", "--import", str(crashing))
    assert done.returncode == -signal.SIGSEGV
    assert "in read_address_0" in done.stderr


def test_the_module_is_the_command() -> None:
    installed = subprocess.run([Path(sys.executable).with_name("loopt"), "--help"], capture_output=True, text=True)
    module = in_a_process("--help")
    assert installed.returncode == module.returncode == 0
    assert installed.stdout == module.stdout


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("fly", "command 'fly' allowed reproduce, train, eval, tasks, thoughts, plan"),
        ("train tiny", "preset 'tiny' allowed phop-cpu, phop"),
        ("reproduce all", "experiment 'all' allowed quick"),
        ("tasks draw", "'draw' allowed list, show"),
        ("tasks list phop", "tasks list: 'phop'"),
        ("tasks show sudoku", "task 'sudoku' allowed phop"),
        ("tasks show phop --p 0", "p=0 allowed 1 to 1000000000"),
        ("tasks show phop --p", "p=() allowed one or more"),
        ("tasks show phop --index -1", "index=-1 allowed 0 to"),
        ("tasks show phop --split exam", "--split: 'exam': allowed is train | validation | test"),
        ("plan", "PLAN required"),
        ("plan 4y6", "plan '4y6': expected 'x' (character 2)"),
        ("plan 4x6 --d-model 0", "d_model=0 allowed 1 to 1000000000"),
        ("plan 4x6 --d-model wide", "--d-model 'wide'"),
        ("plan 4x6 --n-heads 3", "n_heads=3 allowed divisor of d_model=128"),
        ("plan 4x6 --max-len 0", "max_len=0 allowed 1 or more"),
        ("plan 4x6 --feed-forward linear", "--feed-forward: 'linear': allowed is gelu | relu | swiglu"),
        ("plan 4x6 --colour red", "unrecognized --colour"),
        ("train phop-cpu --model.plan 1x0", "plan '1x0': expected a number of loops, 1 or more"),
        ("train phop-cpu --steps 0", "steps=0 allowed 1 to"),
        ("train phop-cpu --seed -1", "seed=-1 allowed 0 to"),
        ("train phop-cpu --optim.lr -1", "optim.lr=-1.0 allowed more than 0"),
        ("train phop-cpu --optim.lr high", "--optim.lr 'high'"),
        ("train phop-cpu --p 16", "p=16 with n=32 n of at least 33"),
        ("train phop-cpu --model.max-len 3", "model.max_len=3: allowed is 32 or more, the length of phop"),
        ("train phop-cpu --model.norm batch", "--model.norm: 'batch': allowed is rms | layer"),
        ("train phop-cpu --stpes 3", "unrecognized --stpes"),
        ("train phop-cpu --data book", "unrecognized --data"),
        ("train phop-cpu --optim.name sgd", "optim.name=sgd: allowed is adafactor | adamw | muon"),
        ("train phop-cpu --optim.name", "--optim.name: which?"),
        ("train phop-cpu --optim.name adafactor --optim.betas 0.9 0.9", "unrecognized --optim.betas"),
        ("thoughts nowhere", "nowhere/config.json: no such file"),
        ("trian", "command 'trian' did you mean train?"),
        ("train pohp-cpu", "preset did you mean phop-cpu?"),
        ("reproduce additoin", "did you mean addition?"),
        ("train phop-cpu --optim.lrr 1", "unrecognized option --optim.lrr; did you mean --optim.lr?"),
        ("train phop-cpu --parallel fsdp", "unrecognized option --parallel: no use"),
        ("runs list nowhere", "folder=nowhere: no such folder"),
        ("runs compare nowhere", "runs=1: allowed are two or more"),
        ("--install-completion tcsh", "--install-completion tcsh: allowed is bash | zsh | fish"),
        ("thoughts nowhere --top 0", "top=0: allowed is 1 or more"),
        ("thoughts one two", "runs: 2 of them; allowed is one, or several on a page"),
        ("thoughts --page --examples 0", "examples=0: allowed is 1 to 20"),
        ("thoughts --page --loops 65", "loops=65: allowed is 1 to 64, on a page"),
        ("thoughts --page --port -1", "port=-1: allowed is 0 to 65535"),
        ("thoughts --page --probe-examples -1", "probe_examples=-1: allowed is 0 to 100000"),
        ("thoughts --page --input xyz", "task phop: 'xyz' in the input; allowed are a b c d"),
        ("thoughts --page --input " + "ab" * 20, "input of 40 tokens: allowed are 1 to 32"),
        ("train lm-cpu", "data: which text? `loopt data prepare`"),
        ("train lm-1b --data nowhere", "data=nowhere: no such file, folder or glob"),
        ("train lm-cpu --regularizer.block 2", "regularizer.block=2: allowed is 1, to divide the model's 2"),
        ("train lm-cpu --stacking.block 1 --stacking.grow-at 5", "stacking.grow_at=(5,): plan 2x3, not into 2x1"),
        ("train lm-cpu --loop-counts.low 3", "loop_counts.high=0: allowed is low=3 or more"),
        (
            "train lm-cpu --loop-counts.low 1 --loop-counts.high 3 --loop-counts.distribution growing",
            "until=None: allowed",
        ),
        ("train lm-cpu --micro-batch 0", "micro_batch=0: allowed is 1 or more"),
        ("train lm-cpu --parallel tensor", "--parallel: 'tensor': allowed is ddp | fsdp"),
        ("train --from", "--from config.json"),
        ("train --from nowhere/config.json", "nowhere/config.json: no such file"),
        ("reproduce quick --seed one", "--seed 'one'"),
        ("reproduce phop --together", "--together: which? Give a value after it"),
        ("reproduce phop --rows", "--rows: which? Give one or more after it"),
        ("reproduce language --rows --seeds 2", "--rows: which? Give one or more after it"),
        ("reproduce phop --rows 5x5", "rows=5x5: allowed 6x1 | 1x1 | 1x6 | 2x1 | 2x3 | 3x1 | 3x2"),
        ("reproduce phop --rows 1x6 5y5", "rows=5y5: allowed 6x1 | 1x1 | 1x6 | 2x1 | 2x3 | 3x1 | 3x2"),
        ("reproduce regularization --rows k4", "rows=k4: allowed 24x1 | 24x1-k4-w10 | 24x1-k6-w10"),
        ("reproduce language --scale short", "data: Allowed --data loopt data prepare --source TEXTS"),
        ("reproduce language --seeds 0", "seeds=0: allowed 1 to 100"),
        ("reproduce language --data text --data-dir nowhere", "nowhere"),
        ("reproduce igsm --seeds 0", "seeds=0: allowed 1 to 100"),
        ("reproduce addition --scale huge", "--scale 'huge'"),
        ("reproduce table", "NAME required"),
        ("reproduce table sudoku", "experiment 'sudoku' allowed addition, phop, phop-uniform, igsm"),
        ("reproduce table phop --format html", "--format 'html'"),
        ("reproduce status --scale huge", "--scale 'huge'"),
        ("eval", "PATH required"),
        ("eval nowhere", "nowhere/config.json: no such file"),
        ("eval nowhere --examples 0", "examples=0 allowed 1 to 1000000000"),
    ],
)
def test_what_cannot_be_done_is_refused(command: str, told: str, tmp_path: Path, capsys: Captured) -> None:
    assert run(*command.split()) == 2
    shown = capsys.readouterr()
    assert not shown.out
    assert "Traceback" not in shown.err
    for words in told.split(" "):
        assert words in shown.err, shown.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command", ["train --from bad/config.json", "eval bad", "thoughts bad", "analyze similarity bad"]
)
def test_a_damaged_config_is_refused_in_one_line(command: str, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "bad").mkdir()
    for text in ("", "{}", "[]", "null", "[" * 5000, "1" * 400, '{"source": NaN}', "\x80"):
        (tmp_path / "bad" / "config.json").write_bytes(text.encode("latin-1"))
        assert run(*command.split()) == 2
        shown = capsys.readouterr().err
        assert re.fullmatch(r"loopt: .*\n", shown), (text[:20], shown)


@pytest.mark.parametrize("command", ["eval", "thoughts", "analyze similarity"])
def test_a_step_of_5000_digits_is_no_checkpoint(command: str, tmp_path: Path, capsys: Captured) -> None:
    train(replace(tiny_runs.TINY, steps=6), tmp_path / "run", tiny_runs.CPU)
    capsys.readouterr()
    for step in ("7" * 5000, "9" * 30, "-1", "٣"):
        assert run(*command.split(), "run", "--checkpoint", step) == 2
        shown = capsys.readouterr().err
        assert shown.startswith("loopt: checkpoint=")
        assert len(shown) < 200


def test_a_reader_that_leaves_early_is_no_error(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:  # closing flushes, as the end of a process does
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(["tasks", "show", "phop"]) == 0
    assert capsys.readouterr().err == ""


def test_a_terminal_without_the_letters_gets_question_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(terminal, encoding="ascii"))
    assert main(["tasks", "show", "phop", "--p", "3", "--n", "24"]) == 0
    shown = terminal.getvalue().decode("ascii")
    assert re.search(r"hop  3: from [a-d] at \d+ to [a-d] at \d+", shown)
    assert "?" in shown


def test_train_evaluate_and_train_again_from_the_config(tmp_path: Path, capsys: Captured) -> None:
    assert run("train", "phop-cpu", *TINY, "--run", "first") == 0
    trained = capsys.readouterr()
    assert re.fullmatch(r"first: all steps done, step 12; accuracy \d+\.\d\d% on 16 test examples\n", trained.out)
    assert trained.err.startswith("first: plan 1x2, ")

    before = tiny_runs.snapshot(tmp_path / "first")
    assert run("train", "phop-cpu", *TINY, "--run", "first") == 0
    assert capsys.readouterr().out == trained.out.replace("all steps done", "already finished")
    assert tiny_runs.snapshot(tmp_path / "first") == before

    assert run("train", "phop-cpu", *TINY, "--run", "first", "--seed", "1") == 2
    assert "seed=0, now 1" in capsys.readouterr().err
    assert tiny_runs.snapshot(tmp_path / "first") == before

    assert run("train", "--from", "first/config.json", "--run", "second") == 0
    assert capsys.readouterr().out == trained.out.replace("first", "second")
    tiny_runs.assert_same(tmp_path / "second", tmp_path / "first")

    result = {"result": {"step": 12}, "config": json.loads((tmp_path / "first" / "config.json").read_text())}
    (tmp_path / "tried.json").write_text(json.dumps(result))
    assert run("train", "--from", "first/result.json") == 2
    assert "first/result.json: it has no config, only its hash" in capsys.readouterr().err
    assert run("train", "--from", "tried.json") == 0
    assert capsys.readouterr().out == trained.out.replace("first", "runs/tried")
    tiny_runs.assert_same(tmp_path / "runs" / "tried", tmp_path / "first")

    accuracy = json.loads((tmp_path / "first" / "result.json").read_text())["accuracy"]
    assert run("eval", "first", "--loops", "1", "2", "8", "--examples", "16") == 0
    rows = re.findall(r"│ +(\S+)( \(trained\))? +│ +phop │ +16 │ +(\S+)% │ +\S+ │", capsys.readouterr().out)
    assert [(plan, bool(marked)) for plan, marked, _ in rows] == [("1x1", False), ("1x2", True), ("1x8", False)]
    assert rows[1][2] == f"{accuracy:.2%}".rstrip("%")

    for options, told in {
        "--checkpoint worst": "checkpoint=worst: allowed is best | last | a step",
        "--checkpoint 7": "checkpoint=7: allowed is best | last | 8 | 12",
        "--loops 0": "loops must be 1 or more",
        "--loops 2 20000": "at most 10000",
        "--by-difficulty": "this phop has no difficulties to tell apart; allowed is a run of igsm",
    }.items():
        assert run("eval", "first", *options.split()) == 2
        refused = capsys.readouterr()
        assert told in refused.err
        assert not refused.out


@pytest.mark.parametrize(
    ("task", "unit"),
    [
        (IGSM(operations=3, edges=4, levels=(2, 2)), "operations?"),
        (IGSM(law="even", statements=4, needed=(1, 3)), "needed"),
    ],
    ids=["light", "even"],
)
def test_a_model_is_measured_difficulty_by_difficulty(task: IGSM, unit: str, tmp_path: Path, capsys: Captured) -> None:
    config = replace(tiny_runs.TINY, source=task, steps=6)
    train(config, tmp_path / "first", tiny_runs.CPU)
    train(replace(config, source=replace(task, query="any")), tmp_path / "any", tiny_runs.CPU)
    assert run("eval", "any", "--by-difficulty") == 2
    assert "this igsm has no difficulties to tell apart; allowed is one with query=last" in capsys.readouterr().err
    assert run("eval", "first", "--by-difficulty", "--loops", "1", "2", "--examples", "16") == 0
    shown = capsys.readouterr().out
    assert shown.endswith("┘\n")
    rows = re.findall(rf"│ +1x(\d)(?: \(trained\))? +│ +(\d {unit}) *│ +16 │ +\S+% │ +(\S+) │", shown)
    model = Run.load(tmp_path / "first").load_model()
    losses = {
        (str(loops), name): f"{exact_match(model, task, 'test', 16, loops).loss:.4f}"
        for loops in (1, 2)
        for name, task in tiny_runs.task_of(config).difficulties.items()
    }
    assert {(loops, name): loss for loops, name, loss in rows} == losses
    assert len(set(losses.values())) == 6


def test_a_language_model_is_trained_on_files_of_text_and_measured(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "texts").mkdir()
    for number, text in enumerate(documents(seed=0)):
        (tmp_path / "texts" / f"{number:02}.txt").write_text(text, encoding="utf-8")
    command = ["train", "lm-cpu", "--data", "texts", *TINY_TEXT, "--run", "first"]
    assert run(*command, "--time-limit", "0") == 0
    begun = capsys.readouterr()
    sizes = re.match(r"preparing texts in first-data\n(first: plan .*, [\d,]+ parameters\n)", begun.err)
    assert sizes
    assert begun.out == "first: time limit, saved at step 1; the same command resumes from there\n"
    assert run(*command) == 0
    trained = capsys.readouterr()
    figures = r"perplexity (\d+\.\d\d) on (\d+) tokens of test text"
    told = re.fullmatch(rf"first: all steps done, step 8; {figures}\n", trained.out)
    assert told
    assert trained.err.startswith(sizes.group(1))
    perplexity, tokens = told.groups()

    before = tiny_runs.snapshot(tmp_path / "first")
    assert run(*command) == 0
    assert capsys.readouterr().out == trained.out.replace("all steps done", "already finished")
    (tmp_path / "texts" / "more.txt").write_text("the cat")
    assert run(*command) == 2
    assert "data=texts: first-data was made from texts, which is not this text or has" in capsys.readouterr().err
    assert tiny_runs.snapshot(tmp_path / "first") == before
    assert run("train", "--from", "first/config.json", "--run", "second") == 0
    assert capsys.readouterr().out == trained.out.replace("first", "second")
    tiny_runs.assert_same(tmp_path / "second", tmp_path / "first")

    (tmp_path / "first-data").rename("moved")
    assert run("eval", "first", "--by-difficulty") == 2
    assert "by-difficulty: this text has no difficulties" in capsys.readouterr().err
    assert run("eval", "first") == 2
    assert "data first-data: no index.json there" in capsys.readouterr().err
    assert run("eval", "first", "--data", "moved", "--loops", "1", "2", "4") == 0
    table = re.findall(r"│ +(\S+)( \(trained\))? │ +(\S+) │ +(\S+) │ +(\S+) │", capsys.readouterr().out)
    assert [(plan, bool(marked)) for plan, marked, *_ in table] == [("1x(1,1*)", 0), ("1x(1,2)", 1), ("1x(1,4)", 0)]
    assert all(row[2] == tokens for row in table)
    assert f"{float(table[1][3]):.2f}" == perplexity
    assert len({row[3] for row in table}) == 3
    for _, _, _, found, loss in table:
        assert float(found) == pytest.approx(math.exp(float(loss)), rel=1e-3)


def test_ways_of_training_a_language_model(tmp_path: Path, capsys: Captured) -> None:
    command = ["train", "lm-cpu", "--data", str(text_directory()), *TINY_TEXT]
    growing = ["--model.plan", "4x1", "--stacking.block", "2", "--stacking.grow-at", "6", "--keep", "5"]
    assert run(*command, *growing, "--run", "growing") == 0
    together = ["--model.plan", "4x1", "--regularizer.block", "2", "--regularizer.weight", "10", "--micro-batch", "1"]
    assert run(*command, *together, "--recompute", "--optim.name", "adafactor", "--run", "together") == 0
    assert "cosine query" in tiny_runs.metrics(tmp_path / "together")[0]
    assert run(*command, "--loop-counts.low", "1", "--loop-counts.high", "3", "--run", "loops") == 0
    capsys.readouterr()
    for step, plan in (("5", "2x1"), ("8", "4x1")):
        assert run("eval", "growing", "--checkpoint", step, "--examples", "20") == 0
        shown = capsys.readouterr().out
        assert f"growing, step {step}, " in shown
        assert re.search(rf"│ +{plan} \(trained\) │ +240 │", shown)


def test_a_time_limit_stops_and_the_same_command_resumes(tmp_path: Path, capsys: Captured) -> None:
    assert run("train", "phop-cpu", *TINY, "--run", "unbroken") == 0
    capsys.readouterr()
    for step in (1, 2):
        assert run("train", "phop-cpu", *TINY, "--run", "limited", "--time-limit", "0") == 0
        assert f"limited: time limit, saved at step {step}; the same command resumes" in capsys.readouterr().out
    assert run("train", "phop-cpu", *TINY, "--run", "limited") == 0
    assert "limited: all steps done" in capsys.readouterr().out
    tiny_runs.assert_same(tmp_path / "limited", tmp_path / "unbroken")


def test_a_table_is_trained_bit_by_bit(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    folders = ["--runs", "X", "--results", "Y"]
    command = ["reproduce", "phop", "--scale", "cpu", "--rows", "1x1", "--device", "cpu", "--time-limit", "0", *folders]
    for step in (1, 2):
        assert run(*command) == 0
        shown = capsys.readouterr()
        assert f"1x1-p16-seed0: time limit, saved at step {step}\n" in shown.out
        assert "time limit: 2 of 2 runs are not finished; the same command resumes\n" in shown.out
        assert re.search(r"^Base \(1⊗1\) +- +- *\n +\(48\.9\) +\(49\.0\) *$", shown.out, re.MULTILINE)
        assert max(map(len, shown.out.splitlines())) <= 80
    assert tiny_runs.last_step(tmp_path / "X" / "phop" / "cpu" / "1x1-p16-seed0") == 2

    steps = jobs_of(EXPERIMENTS["phop"], "cpu", 1)[0].config.steps
    assert run("reproduce", "status", "--scale", "cpu", *folders) == 0
    states = re.findall(r"│ (\S+) +│ (\S+) +│ (\S.*?) +│ (\S.*?) +│", capsys.readouterr().out)
    assert [row for row in states if row[2] != "missing"] == [
        ("phop", "1x1-p16-seed0", f"step 2 of {steps}", "missing")
    ]
    language = sum(len(experiment.rows) for experiment in LANGUAGE.values())
    assert len(states) == 11 + 2 * 7 + 2 * 7 + 3 * 10 + 2 * 3 + 4 + 4 + 6 + 5 + language

    table = ["reproduce", "table", "phop", "--scale", "cpu", "--results", "Y"]
    for form, file in (("markdown", "table.md"), ("latex", "table.tex")):
        assert run(*table, "--format", form) == 0
        kept = (tmp_path / "Y" / "phop" / "cpu" / file).read_text(encoding="utf-8")
        assert capsys.readouterr().out == kept.replace("scale cpu", "scale cpu, from Y", 1) + "\n"
    assert run(*table) == 0
    assert "Loop (1⊗6)" in capsys.readouterr().out
    assert not (tmp_path / "Y" / "phop" / "cpu" / "table.png").exists()  # there is nothing to draw yet


def test_what_a_clone_has_is_not_taken_for_measured_here(capsys: Captured, tmp_path: Path) -> None:
    """The project's result files are shown as such, and no run counts as finished because of them."""
    first = jobs_of(EXPERIMENTS["phop"], "cpu", 1)[0]
    leave_result(first, Path("results"), {"phop": 0.75})
    command = ["reproduce", "phop", "--scale", "cpu", "--rows", "6x1", "--device", "cpu"]
    assert run(*command, "--time-limit", "0") == 0
    assert "6x1-p16-seed0: time limit, saved at step 1\n" in capsys.readouterr().out
    leave_result(first, Path("runs/results"), {"phop": 0.5})

    assert run("reproduce", "table", "phop", "--scale", "cpu", "--format", "markdown") == 0
    _, here, project = capsys.readouterr().out.split("**p-hop induction")
    assert "scale cpu, from runs/results**" in here
    assert "| Base (6⊗1) | 50.0 (99.9) |" in here
    assert "scale cpu, from results**" in project
    assert "| Base (6⊗1) | 75.0 (99.9) |" in project

    assert run("reproduce", "status", "--scale", "cpu") == 0
    (row,) = re.findall(r"│ 6x1-p16-seed0 +│ (finished .*?) +│ (finished .*?) +│", capsys.readouterr().out)
    assert [text.rpartition(" ")[2] for text in row] == ["50.0%", "75.0%"]

    assert run(*command, "--time-limit", "0") == 0
    told = (
        "6x1-p16-seed0: found in runs/results/phop/cpu/6x1-p16-seed0.json, finished 2026-11-17T10:00:00+00:00 by loopt"
    )
    assert told in capsys.readouterr().out


def test_a_table_of_some_rows_compares_them_on_the_seeds_they_share(capsys: Captured) -> None:
    for job in jobs_of(EXPERIMENTS["igsm"], "short", 2):
        if job.seed == 0 or str(job.row.plan) in ("8x1", "1x8"):
            leave_result(job, Path("results"), {"igsm": 0.5 + 0.2 * job.seed})
    table = ["reproduce", "table", "igsm", "--scale", "short", "--format", "markdown"]
    assert run(*table) == 0
    assert "| Loop (1⊗8) | 50.0 (73.2" in capsys.readouterr().out
    assert run(*table, "--rows", "8x1", "1x8") == 0
    shown = capsys.readouterr().out
    assert "| Loop (1⊗8) | 60.0 [50.0 to 70.0] (73.2" in shown
    assert "(2⊗4)" not in shown


def test_thoughts_are_printed_loop_by_loop(tmp_path: Path, capsys: Captured) -> None:
    assert run("train", "phop-cpu", *TINY, "--run", "hops") == 0
    assert run("train", "lm-cpu", "--data", str(text_directory()), *TINY_TEXT, "--run", "words") == 0
    capsys.readouterr()
    for run_name, options, tokens in (
        ("hops", ["--index", "3"], 8),
        ("hops", ["--input", "abca", "--loops", "5"], 4),
        ("words", ["--input", "the cat", "--loops", "3"], 0),
    ):
        assert run("thoughts", run_name, *options, "--top", "2") == 0
        shown = capsys.readouterr().out
        assert f"of {tokens}" in shown or run_name == "words"
        rows = re.findall(r"│ +(\d+) │ '.*?' +([\d.]+)% +│ '.*?' +([\d.]+)% +│ +([\d.]+) │", shown)
        assert [int(loops) for loops, *_ in rows] == [*range(1, 1 + int(options[-1] if "--loops" in options else 2))]
        assert all(float(first) >= float(second) for _, first, second, _ in rows)
    model = loopt.load("hops")
    tokens_of = tiny_runs.task_of(Run.load("hops").config).encode("abca")
    for (loops, first, *_), thought in zip(
        _hops_rows(capsys), model.thoughts(torch.tensor([tokens_of]), 5), strict=True
    ):
        best = model.readout(thought.state)[0, -1].softmax(-1).max().item()
        assert int(loops) == thought.loops
        assert float(first) == pytest.approx(100 * best, abs=0.051)
    for options, told in (
        (["--input", "xyz"], "task phop: 'xyz' in the input; allowed are a b c d"),
        (["--input", ""], "input of 0 tokens: allowed are 1 to 8"),
        (["--input", "ab" * 5], "input of 10 tokens: allowed are 1 to 8"),
        (["--position", "8"], "position=8: allowed is 0 to 7, or -1 for the last"),
        (["--checkpoint", "worst"], "checkpoint=worst: allowed is best | last | a step"),
    ):
        assert run("thoughts", "hops", *options) == 2
        assert told in capsys.readouterr().err
    assert run("thoughts", "words") == 2
    assert "input: which text?" in capsys.readouterr().err


def test_runs_stand_side_by_side_on_a_page(tmp_path: Path, capsys: Captured) -> None:
    assert run("train", "phop-cpu", *TINY, "--run", "hops") == 0
    assert run("train", "phop-cpu", *TINY, "--model.plan", "2x1", "--run", "deep") == 0
    assert run("train", "lm-cpu", "--data", str(text_directory()), *TINY_TEXT, "--run", "words") == 0
    capsys.readouterr()
    assert run("thoughts", "hops", "deep", "--built", "--page", "--probe-examples", "4") == 0
    assert "Wrote hops/thoughts.html" in capsys.readouterr().out
    page = (tmp_path / "hops" / "thoughts.html").read_text(encoding="utf-8")
    for name in ("hops (1⊗2)", "deep (2⊗1)", "built"):
        assert name in page
    assert run("thoughts", "words", "--page", "--input", "the cat", "--out", "there/words.html") == 0
    assert "What each loop would say next" in (tmp_path / "there" / "words.html").read_text(encoding="utf-8")
    capsys.readouterr()
    for line, told in (
        ("hops words --page", "runs: words reads other tokens than hops; allowed are runs on the same task"),
        ("words --page", "input: which text?"),
        ("words --page --input cat --built", "built: allowed for runs on p-hop with one p"),
        ("hops --page --out hops", "write hops"),
    ):
        assert run("thoughts", *line.split()) == 2
        assert told in capsys.readouterr().err


def _hops_rows(capsys: Captured) -> list[tuple[str, ...]]:
    assert run("thoughts", "hops", "--input", "abca", "--loops", "5", "--top", "1") == 0
    return re.findall(r"│ +(\d+) │ '.*?' +([\d.]+)% +│ +([\d.]+) │", capsys.readouterr().out)


def test_figures_are_drawn_of_what_the_results_have(tmp_path: Path, capsys: Captured) -> None:
    for name, figure in (("igsm", "difficulty"), ("loops", "loops"), ("more-loops", "loops")):
        for job in jobs_of(EXPERIMENTS[name], "cpu", 1):
            halves = dict.fromkeys(job.tests, 0.5)
            graded = {"by_difficulty": {"1 operation": 0.5, "2 operations": 0.25}}
            leave_result(
                job, tmp_path / "Y", halves, **(graded if name == "igsm" else {"by_loops": {"1": halves, "6": halves}})
            )
        assert run("reproduce", name, "--scale", "cpu", "--runs", "X", "--results", "Y") == 0
        folder = tmp_path / "Y" / name / "cpu"
        told = f"Also as table.md, table.tex, table.svg, table.png, {figure}.svg, {figure}.png in Y/{name}/cpu\n"
        assert told in capsys.readouterr().out
        assert {path.name for path in folder.glob("*.png")} == {"table.png", f"{figure}.png"}
        assert (folder / f"{figure}.png").read_bytes().startswith(b"\x89PNG")


def test_every_seed_of_the_paper_has_a_state(capsys: Captured) -> None:
    assert run("reproduce", "status", "--scale", "paper") == 0
    shown = capsys.readouterr().out
    tasks, language = 11 + 14 + 14 + 10 + 10 + 10 + 6 + 4 + 4 + 6 + 5, sum(len(one.rows) for one in LANGUAGE.values())
    assert [shown.count(f"-seed{seed} ") for seed in range(4)] == [tasks + language, 11, 11, 0]


@pytest.mark.slow
def test_a_signal_saves_and_stops(tmp_path: Path) -> None:
    command = ["train", "phop-cpu", *TINY, "--steps", "1000000", "--eval-every", "50", "--run", "run"]
    process = subprocess.Popen(
        [sys.executable, "-m", "loopt", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("run/checkpoints/step-*")) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 143
    assert re.search(r"^run: plan 1x2, [\d,]+ parameters\n", err, re.MULTILINE)
    stopped = re.fullmatch(r"run: stopped by SIGTERM, saved at step (\d+); .* resumes .*\n", out)
    assert stopped
    assert int(stopped.group(1)) == tiny_runs.last_step(tmp_path / "run")


def test_tasks_are_listed_and_shown(capsys: Captured) -> None:
    assert run("tasks", "list", "--help") == 0
    assert capsys.readouterr().out.startswith("usage: loopt tasks list\n")
    assert run("tasks", "list") == 0
    assert re.search(r"^phop +p-hop induction", capsys.readouterr().out, re.MULTILINE)
    assert run("tasks", "show", "phop", "--p", "3", "--n", "24") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("3-hop over 24 letters of abcd: answer ")
    stops = re.findall(r"hop +(\d): from (\w) at (\d+) to (\w) at (\d+)", shown)
    assert [int(hop) for hop, *_ in stops] == [1, 2, 3]
    assert stops[0][2] == "24"
    assert all(before[3:] == after[1:3] for before, after in itertools.pairwise(stops))
    assert f"answer {stops[-1][3]}\n" in shown


def test_plan_counts_are_the_models(capsys: Captured) -> None:
    sizes = {"d_model": 64, "n_heads": 4, "d_ff": 96, "vocab_size": 50, "max_len": 20, "feed_forward": "swiglu"}
    options = [word for name, value in sizes.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    assert run("plan", "4x(1,4,1)", *options) == 0
    shown = capsys.readouterr().out
    for plan in ("4x(1,4,1)", "12x1", "24x1"):
        config = ModelConfig(LoopPlan.parse(plan), **sizes)  # type: ignore[arg-type]
        assert re.search(rf" {re.escape(plan)} +{human(config.parameters())} +{human(config.flops(20))}\n", shown)


@pytest.mark.parametrize("plan", ["1x1", "1x60", "100x100", "40x1", "1x10000", "2x1+4x12+2x1", "12x(1,9*,1)"])
def test_a_plan_fits_the_terminal(plan: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run("plan", plan) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    drawn = [line for line in lines if "▢" in line]
    assert len(drawn) == len(LoopPlan.parse(plan).blocks)
    for line, block in zip(drawn, LoopPlan.parse(plan).blocks, strict=True):
        assert f"×{block.loops}" in line
        assert line.count("▢") == block.layers * block.loops or "…" in line
