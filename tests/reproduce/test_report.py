"""Reports are made of what the files have: results, runs, and the paper's 18 artefacts."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import tiny_runs
from command_line import run
from loopt.reproduce.artefacts import ARTEFACTS, state_of
from loopt.reproduce.catalogue import EXPERIMENTS
from loopt.reproduce.experiment import jobs_of
from loopt.runs import codec
from loopt.training import train

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_an_experiment_has_its_table_figures_settings_and_command(tmp_path: Path) -> None:
    assert run("report", "group", "--scale", "cpu", "--results", str(RESULTS), "--out", "group.html") == 0
    page = (tmp_path / "group.html").read_text(encoding="utf-8")
    results = [json.loads(path.read_text()) for path in (RESULTS / "group" / "cpu").glob("*-seed*.json")]
    assert "loopt reproduce group --scale cpu" in page
    assert page.count("<svg") >= 2
    for found in results:
        accuracy = 100 * next(iter(found["result"]["accuracies"].values()))
        assert f"{accuracy:.1f}" in page
        assert str(found["config"]["optim"]["lr"]) in page
        assert found["result"]["hardware"] in page
    assert not re.search(r'(src|href)="(?!#)', page)  # it needs no other file
    assert run("report", "group", "--scale", "cpu", "--results", str(RESULTS), "--out", "group.md") == 0
    written = (tmp_path / "group.md").read_text(encoding="utf-8")
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", written):
        assert (tmp_path / picture).exists()


def test_runs_of_a_folder_are_told_apart(tmp_path: Path) -> None:
    for seed in (0, 1):
        train(replace(tiny_runs.TINY, seed=seed), tmp_path / "some" / f"seed{seed}", tiny_runs.CPU)
    train(replace(tiny_runs.TINY, steps=6, eval_every=3), tmp_path / "some" / "short", tiny_runs.CPU)
    assert run("report", "some", "--out", "some.md") == 0
    written = (tmp_path / "some.md").read_text(encoding="utf-8")
    assert "| run | steps | seed | eval_every |" in written
    assert "| seed1 | 24 | 1 | 6 |" in written
    assert "| short | 6 | 0 | 3 |" in written
    accuracy = json.loads((tmp_path / "some" / "seed1" / "result.json").read_text())["accuracy"]
    assert re.search(rf"\| seed1 \| \(1⊗2\) \| finished \| 24 \| .* \| {accuracy:.2%} \|", written)
    assert "loopt train --from some/seed1/config.json --run some/seed1" in written
    assert "some-figures/validation-accuracy.svg" in written


def test_a_run_of_a_task_that_is_not_imported_is_named_with_what_to_import(tmp_path: Path, capsys: Captured) -> None:
    for name in ("known", "own"):
        train(replace(tiny_runs.TINY, steps=6, eval_every=3), tmp_path / "some" / name, tiny_runs.CPU)
    config = tmp_path / "some" / "own" / "config.json"
    settings = json.loads(config.read_text())
    settings["source"] |= {"name": "mine", codec.IMPORT: "<b>.py"}
    config.write_text(json.dumps(settings))
    assert run("report", "some", "--out", "some.html") == 0
    page = (tmp_path / "some.html").read_text(encoding="utf-8")
    assert re.search(r"Not in this report: some/own/config.json: .*add --import .*&lt;b&gt;\.py", page)
    assert "loopt train --from some/known/config.json" in page
    assert "<b>" not in page
    assert "--run some/own" not in page
    shutil.rmtree(tmp_path / "some" / "known")
    capsys.readouterr()
    assert run("report", "some") == 2
    assert "some/own/config.json: " in capsys.readouterr().err


def test_every_artefact_of_the_readme_is_there_with_its_state(tmp_path: Path) -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Status\n")[2].partition("\n## ")[0]
    rows = [row for row in section.splitlines() if row.startswith("| ")][1:]
    assert [row.split("|")[1].strip() for row in rows] == [one.name for one in ARTEFACTS]
    assert run("report", "--all", "--results", str(RESULTS), "--out", "all.md") == 0
    page = (tmp_path / "all.md").read_text(encoding="utf-8")
    assert all(f"| {one.name} | {one.command} | " in page for one in ARTEFACTS)
    for table in RESULTS.glob("*/short/table.md"):
        for line in table.read_text(encoding="utf-8").splitlines():
            assert not line.startswith(("| Base", "| Loop")) or line in page


def test_a_state_counts_the_files(tmp_path: Path) -> None:
    addition = next(one for one in ARTEFACTS if one.experiments == ("addition",))
    assert state_of(addition, tmp_path, {}) == "not measured yet"
    jobs = jobs_of(EXPERIMENTS["addition"], "short", 1)
    for job in jobs[:3]:
        path = job.result_path(tmp_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(job.result_path(RESULTS), path)
    assert state_of(addition, tmp_path, {}) == f"short: 3 of {len(jobs)} runs"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("report", "report: of what? Allowed is an experiment, a folder of runs, or --all"),
        ("report phop --all", "report: of what?"),
        ("report nothing", "report: nothing: no such experiment or folder; experiments are addition, phop"),
        ("report phop --out page.pdf", "out=page.pdf: allowed is a name that ends in .html or .md"),
        ("report phop --results nowhere", "nowhere/phop/cpu: has no result files; `loopt reproduce phop"),
        ("report .", "folder=.: has 0 runs; allowed are 1 to 200"),
    ],
)
def test_what_cannot_be_reported_is_refused(line: str, told: str, capsys: Captured, tmp_path: Path) -> None:
    assert run(*line.split()) == 2
    assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
