"""A sweep trains what has no result yet, resumes what was stopped, and no row spoils the others."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import loopt
import tiny_runs
from loopt import __version__
from loopt._version import source_hash
from loopt.errors import InputError, RunError
from loopt.files import check_signature
from loopt.plan import LoopPlan
from loopt.report.figures import Spread
from loopt.reproduce.experiment import Experiment, Job, Scale, jobs_of
from loopt.reproduce.sweep import Folders, run_locally, status_of
from loopt.reproduce.table import by_difficulty, by_loops
from loopt.runs import Run, TrainConfig, codec
from loopt.scoring import exact_match
from loopt.tasks import IGSM
from loopt.training import Outcome, Session
from loopt.training.clock import SharedClock
from tiny_experiments import HOPS, SUMS
from tiny_runs import CPU


def sweep(
    experiment: Experiment, folder: Path, session: Session = CPU, seeds: int = 1, together: int = 1
) -> tuple[Outcome | None, list[str], list[str]]:
    said: list[str] = []
    jobs = jobs_of(experiment, "cpu", seeds)
    stopped, diverged = run_locally(jobs, folders_in(folder), session, said.append, together)
    return stopped, diverged, said


def folders_in(folder: Path) -> Folders:
    return Folders(folder / "runs", folder / "results")


def result_of(job: Job, folder: Path) -> dict[str, Any]:
    found = job.read_result(folder / "results")
    assert found is not None
    return found


def finished(job: Job, folder: Path) -> bool:
    return status_of(job, folders_in(folder)).startswith("finished ")


def found_finished(jobs: list[Job], results: Path) -> list[str]:
    """Returns what a sweep says of finished jobs: where they are, when and by which code they ended, and accuracy."""
    told = []
    for job in jobs:
        result = json.loads(job.result_path(results).read_text())["result"]
        code = f"loopt {__version__} (source {source_hash(Path(loopt.__file__).parent)})"
        end = f"finished {result['finished']} by {code}, accuracy {result['accuracy']:.1%}"
        told.append(f"{job.name}: found in {job.result_path(results)}, {end}")
    return told


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a directory where the whole experiment was run without a break."""
    folder = tmp_path_factory.mktemp("sweep")
    stopped, diverged, said = sweep(HOPS, folder)
    assert (stopped, diverged) == (None, [])
    assert [line.partition(": all steps done at step 12, accuracy ")[0] for line in said] == [
        *("2x1-p1-seed0", "2x1-p2-seed0", "1x1-p1-seed0", "1x1-p2-seed0", "1x2-p1-seed0", "1x2-p2-seed0"),
    ]
    return folder


def test_results_tell_all_about_their_runs(done: Path) -> None:
    for job in jobs_of(HOPS, "cpu", 1):
        assert finished(job, done)
        found = result_of(job, done)
        assert codec.from_json(found["config"]) == job.config.resolved()
        run = folders_in(done).run_of(job)
        result = found["result"]
        assert result == check_signature(json.loads((run / "result.json").read_text()), run)
        assert (result["config"], result["seed"]) == (codec.fingerprint(job.config.resolved()), 0)
        assert (result["step"], set(result["accuracies"])) == (12, {"phop"})
        assert result["hardware"].startswith("cpu ")
        assert (result["loopt"], len(result["source"])) == (__version__, 16)
        assert result["seconds"] > 0
        evaluations = [line for line in tiny_runs.metrics(run) if "validation_accuracy" in line]
        assert [point[:2] for point in found["curve"]] == [
            [line["step"], line["validation_accuracy"]] for line in evaluations
        ]
        assert [point[0] for point in found["curve"]] == [6, 12]


def test_what_is_finished_is_named_and_not_trained_again(done: Path) -> None:
    before = tiny_runs.snapshot(done)
    assert sweep(HOPS, done) == (None, [], found_finished(jobs_of(HOPS, "cpu", 1), done / "results"))
    assert tiny_runs.snapshot(done) == before


def test_results_alone_are_enough(done: Path, tmp_path: Path) -> None:
    (tmp_path / "results").symlink_to(done / "results")
    told = found_finished(jobs_of(HOPS, "cpu", 1), tmp_path / "results")
    assert sweep(HOPS, tmp_path) == (None, [], told)
    assert not (tmp_path / "runs").exists()


def test_runs_alone_only_want_their_results_written(done: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").symlink_to(done / "runs")
    before = tiny_runs.snapshot(done / "runs")
    stopped, diverged, said = sweep(HOPS, tmp_path)
    assert (stopped, diverged, len(said)) == (None, [], 6)
    assert tiny_runs.snapshot(done / "runs") == before
    for job in jobs_of(HOPS, "cpu", 1):
        assert job.read_result(tmp_path / "results") == job.read_result(done / "results")


def test_out_of_time_it_stops_and_then_resumes(done: Path, tmp_path: Path) -> None:
    first, second, *_ = jobs = jobs_of(HOPS, "cpu", 1)
    for step in (1, 2):
        stopped, diverged, said = sweep(HOPS, tmp_path, Session(device="cpu", time_limit=0))
        assert isinstance(stopped, Outcome)
        assert (stopped.finished, stopped.step, stopped.reason) == (False, step, "time limit")
        assert (diverged, said) == ([], [f"{first.name}: time limit, saved at step {step}"])
        assert status_of(first, folders_in(tmp_path)) == f"step {step} of 12"
        assert status_of(second, folders_in(tmp_path)) == "missing"
    assert not (tmp_path / "results").exists()

    assert sweep(HOPS, tmp_path)[:2] == (None, [])
    for job in jobs:
        tiny_runs.assert_same(folders_in(tmp_path).run_of(job), folders_in(done).run_of(job))


@pytest.mark.slow
@pytest.mark.parametrize("together", [2, 4, 99])
def test_together_they_end_as_one_by_one(together: int, done: Path, tmp_path: Path) -> None:
    jobs = jobs_of(HOPS, "cpu", 1)
    stopped, _, said = sweep(HOPS, tmp_path, Session(device="cpu", time_limit=0), together=together)
    assert isinstance(stopped, Outcome)
    assert said[0] == f"{jobs[0].name}: time limit, saved at step 1"
    assert sweep(HOPS, tmp_path, together=together)[:2] == (None, [])
    for job in jobs:
        tiny_runs.assert_same(folders_in(tmp_path).run_of(job), folders_in(done).run_of(job))


def test_together_each_is_charged_its_share_of_the_time(tmp_path: Path) -> None:
    began = time.monotonic()
    sweep(HOPS, tmp_path, together=6)
    took = time.monotonic() - began
    charged = [result_of(job, tmp_path)["result"]["seconds"] for job in jobs_of(HOPS, "cpu", 1)]
    assert sum(charged) <= took
    assert max(charged) < took / 2


def test_shares_add_up_to_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does so also while one run is built and the others wait."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    clock = SharedClock()
    begins: list[float] = []
    for built_in in (40.0, 7.0, 13.0):
        begins.append(clock.seconds_each(len(begins) + 1))
        now += built_in
    now += 30.0
    assert sum(clock.seconds_each() - begin for begin in begins) == pytest.approx(now)


@pytest.mark.slow
@pytest.mark.parametrize("together", [1, 3])
def test_a_signal_saves_all_that_train_and_starts_no_other(together: int, tmp_path: Path) -> None:
    jobs = jobs_of(HOPS, "cpu", 1)

    def stop(line: str) -> None:
        if not said:
            signal.raise_signal(signal.SIGTERM)
        said.append(line)

    said: list[str] = []
    stopped, _ = run_locally(jobs, folders_in(tmp_path), CPU, stop, together)
    assert isinstance(stopped, Outcome)
    assert stopped.signal == signal.SIGTERM
    states = [status_of(job, folders_in(tmp_path)) for job in jobs]
    assert states[:together].count("missing") == 0
    assert set(states[together:]) == {"missing"}
    assert sweep(HOPS, tmp_path, together=together)[0] is None


def test_how_many_together_is_checked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="together=0: allowed is 1 or more"):
        sweep(HOPS, tmp_path, together=0)


def test_the_time_limit_is_for_the_whole_sweep(tmp_path: Path) -> None:
    """Each session has time for some steps only; several sessions finish all runs."""
    sessions = 0
    while sessions < 200:
        sessions += 1
        stopped, _, _ = sweep(HOPS, tmp_path, Session(device="cpu", time_limit=0.05))
        if stopped is None:
            break
    assert 1 < sessions < 200
    assert all(finished(job, tmp_path) for job in jobs_of(HOPS, "cpu", 1))


def test_a_row_that_diverges_leaves_the_others_alone(tmp_path: Path) -> None:
    for how in ("all steps done", "found in"):
        stopped, diverged, said = sweep(SUMS, tmp_path)
        assert (stopped, diverged) == (None, ["2x1-seed0"])
        others = [line for line in said if "diverged" not in line]
        assert [line.partition(":")[0] for line in others] == ["1x1-seed0", "1x2-seed0"]
        assert all(how in line for line in others)
        (told,) = [line for line in said if "diverged" in line]
        assert "2x1-seed0 diverged at step" in told
        assert "\n" not in told
    well, broken, after = jobs_of(SUMS, "cpu", 1)
    assert [finished(job, tmp_path) for job in (well, broken, after)] == [True, False, True]
    assert status_of(broken, folders_in(tmp_path)) == "missing"
    found = result_of(well, tmp_path)
    accuracies = found["result"]["accuracies"]
    assert list(accuracies) == ["n=2", "n=3"]
    assert found["result"]["accuracy"] == pytest.approx(sum(accuracies.values()) / 2)


def test_seeds_are_runs_of_their_own(tmp_path: Path) -> None:
    jobs = [job for job in jobs_of(SUMS, "cpu", 2) if str(job.row.plan) == "1x1"]
    assert run_locally(jobs, folders_in(tmp_path), CPU, lambda line: None) == (None, [])
    first, second = (result_of(job, tmp_path) for job in jobs)
    assert (first["seed"], second["seed"], second["config"]["seed"]) == (0, 1, 1)
    assert first["result"]["loss"] != second["result"]["loss"]


def test_models_are_measured_with_other_loops_where_asked(tmp_path: Path) -> None:
    experiment = replace(HOPS, rows=HOPS.rows[2:], variants=("p1",), loops_to_test=(1, 2, 5))
    sweep(experiment, tmp_path)
    (job,) = jobs_of(experiment, "cpu", 1)
    found = result_of(job, tmp_path)
    model, config = Run.load(folders_in(tmp_path).run_of(job)).load_model(), job.config
    task = tiny_runs.task_of(config)
    expected = {n: exact_match(model, task, "test", config.test_examples, loops=n).accuracy for n in (1, 2, 5)}
    assert found["by_loops"] == {str(n): {"phop": accuracy} for n, accuracy in expected.items()}
    assert expected[2] == found["result"]["accuracy"]
    assert by_loops(experiment, "cpu", tmp_path / "results") == {
        job.row.label: {"p=16": {n: Spread.of([100 * accuracy]) for n, accuracy in expected.items()}}
    }


def test_models_are_measured_on_each_difficulty_of_their_task(tmp_path: Path) -> None:
    task = IGSM(modulus=3, operations=3, edges=4, levels=(2, 2))

    def problems(plan: LoopPlan, variant: str, scale: Scale) -> TrainConfig:
        model = replace(tiny_runs.TINY.model, plan=plan)
        return replace(tiny_runs.TINY, source=task, model=model, steps=6)

    experiment = replace(SUMS, name="problems", columns_of=lambda variant, scale: {"igsm": "n=8"}, configure=problems)
    sweep(experiment, tmp_path)
    rows = by_difficulty(experiment, "cpu", tmp_path / "results")
    assert list(rows) == [row.plan for row in experiment.rows]
    for job in jobs_of(experiment, "cpu", 1):
        model, config = Run.load(folders_in(tmp_path).run_of(job)).load_model(), job.config
        assert rows[job.row.plan] == {
            name: Spread.of([100 * exact_match(model, one, "test", config.test_examples).accuracy])
            for name, one in task.difficulties.items()
        }
        assert len(rows[job.row.plan]) == 3
    assert by_difficulty(HOPS, "cpu", tmp_path / "results") == {}


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"result": 3}', '{"result": {"accuracies": {"n=9": 1}}}', "\xff"]
)
def test_a_broken_result_is_named(content: str, tmp_path: Path) -> None:
    job: Job = jobs_of(SUMS, "cpu", 1)[0]
    path = job.result_path(tmp_path / "results")
    path.parent.mkdir(parents=True)
    path.write_bytes(content.encode("latin-1"))
    for look in (lambda: sweep(SUMS, tmp_path), lambda: status_of(job, folders_in(tmp_path))):
        with pytest.raises(RunError) as error:
            look()
        assert str(error.value).startswith(f"{path}: ")
        assert str(error.value).endswith("; delete it to measure the row again")
        assert "\n" not in str(error.value)
    assert path.read_bytes() == content.encode("latin-1")


def test_a_result_that_cannot_be_written_is_told(done: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").symlink_to(done / "runs")
    (tmp_path / "results").write_text("a file")
    with pytest.raises(RunError, match=r"cannot write .*2x1-p1-seed0\.json: "):
        sweep(HOPS, tmp_path)
