"""What `loopt prove --save` writes as runs: `loopt eval`, `loopt thoughts` and `loopt train` take them."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
import torch

import command_line
from loopt.runs import Run

pytestmark = pytest.mark.slow

Captured = pytest.CaptureFixture[str]

RUNS = {
    "group-composition/S3-n5": ("group-composition --group S3 --n 5 --inputs 2", "(1 2) (2 3) e e (1 3)"),
    "phop/p4-n12": ("phop --p 4 --n 12 --inputs 2", "abcabca"),
    "phop/p4-n12-looped": ("phop --p 4 --n 12 --inputs 2", "abcabca"),
    "cot/addition-2-chain": ("cot --bits 2 --group Z2", "11+01="),
    "cot/addition-2-looped": ("cot --bits 2 --group Z2", "11+01=##"),
    "cot/addition-2-uncounted": ("cot --bits 2 --group Z2", "11+01=##"),
    "simulation/S3-n16": ("simulation", "# (1 2) (2 3)"),
}
"""By name, the command that saves it and an input."""
NOT_TRAINED = "simulation/S3-n16"
"""A switch of 2e16 that the optimizer moves by 1e-4 is off."""


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def accuracy(run: str, capsys: Captured, *options: str) -> list[float]:
    capsys.readouterr()
    assert command_line.run("eval", run, "--examples", "256", "--device", "cpu", *options) == 0
    return [float(share) for share in re.findall(r"([\d.]+)%", capsys.readouterr().out)]


@pytest.mark.parametrize("name", RUNS)
def test_a_built_model_is_a_run(name: str, capsys: Captured) -> None:
    command, typed = RUNS[name]
    assert command_line.run("prove", *command.split(), "--save", "out") == 0
    run = f"out/{name}/run"
    assert f"for loopt eval, thoughts and train: {run}\n" in capsys.readouterr().out
    assert accuracy(run, capsys) == [100.0]
    loops = Run.load(Path(run)).config.model.plan.blocks[-1].loops
    if loops > 1:
        short, whole = accuracy(run, capsys, "--loops", str(loops - 1), str(loops))
        assert short < 99
        assert whole == 100

    for index in range(4):
        assert command_line.run("thoughts", run, "--index", str(index), "--device", "cpu") == 0
        assert right_in_the_end(capsys.readouterr().out)
    assert command_line.run("thoughts", run, "--input", typed, "--device", "cpu") == 0
    assert len(re.findall(r"^│ +\d+ │", capsys.readouterr().out, re.MULTILINE)) == loops
    page = ["--page", "--probe-examples", "32", "--examples", "1", "--device", "cpu"]
    assert command_line.run("thoughts", run, *page) == 0
    assert Path(run, "thoughts.html").exists()

    train = ["train", "--from", f"{run}/config.json", "--device", "cpu"]
    assert command_line.run(*train, "--help") == 0
    assert ("--task.n INT" in capsys.readouterr().out) == (name == "group-composition/S3-n5" or "p4-n12-looped" in name)
    before = Run.load(Path(run)).load_model("last").state_dict()
    if name == NOT_TRAINED:
        assert command_line.run(*train) == 2
        assert "diverged at step 2" in capsys.readouterr().err
        return
    assert command_line.run(*train) == 0
    assert "all steps done, step 200; accuracy" in capsys.readouterr().out
    after = Run.load(Path(run)).load_model("last").state_dict()
    assert not all(torch.equal(before[part], after[part]) for part in after)
    assert command_line.run("prove", *command.split(), "--save", "out") == 0  # what was trained stays
    kept = Run.load(Path(run)).load_model("last").state_dict()
    assert all(torch.equal(kept[part], after[part]) for part in after)


def right_in_the_end(shown: str) -> bool:
    """Tells whether the first choice after the last loop is what the title says is right."""
    right = re.search(r"right is ('.*?')", shown)
    last = re.findall(r"^│ +\d+ │ ('.*?') ", shown, re.MULTILINE)[-1]
    return right is not None and right[1] == last


def test_a_looped_run_beside_one_that_is_not(tmp_path: Path) -> None:
    """Past the two layers that are not looped, both go through the same states: probes read the same of them."""
    assert command_line.run("prove", "phop", "--p", "4", "--n", "12", "--inputs", "2", "--save", "out") == 0
    runs = [f"out/phop/p4-n12{looped}/run" for looped in ("", "-looped")]
    page = ["--page", "--probe-examples", "32", "--examples", "1", "--device", "cpu", "--out", "both.html"]
    assert command_line.run("thoughts", *runs, *page) == 0
    read = []
    for run in runs:
        assert command_line.run("analyze", "probe", run, "--examples", "64", "--device", "cpu") == 0
        with Path(run, "probe.csv").open() as file:
            read.append({(row["quantity"], int(row["step"])): row["accuracy"] for row in csv.DictReader(file)})
    unlooped, looped = read
    assert {quantity for quantity, _ in looped} == {f"hop {count}" for count in range(5)}
    assert {(what, step - 2): share for (what, step), share in looped.items() if step >= 2} == unlooped


def test_the_simulation_of_a_run_is_a_run_of_its_task(capsys: Captured) -> None:
    assert command_line.run("prove", "group-composition", "--group", "S3", "--n", "4", "--save", "out") == 0
    mine = "out/group-composition/S3-n4/run"
    assert command_line.run("prove", "simulation", "--run", mine, "--save", "out") == 0
    assert accuracy("out/simulation/own/run", capsys) == [100.0]
    source = Run.load(Path("out/simulation/own/run")).config.source
    assert source.max_len == Run.load(Path(mine)).config.source.max_len + 1
