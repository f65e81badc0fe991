"""The experiments are consistent, and their rows and settings are the paper's."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import get_args

import pytest

from loopt.reproduce.catalogue import EXPERIMENTS
from loopt.reproduce.experiment import Experiment, Scale, jobs_of
from loopt.reproduce.sweep import Folders
from loopt.runs.loop_counts import LoopCounts
from loopt.tasks import IGSM, Addition, PHop
from tiny_runs import task_of

SCALES: tuple[Scale, ...] = get_args(Scale)

# Tables 1 and 2 of the paper (arXiv 2502.17416), copied line by line.
PAPER = {
    "addition": """
        Base 12 1 100.0 100.0 100.0 100.0
        Base 1 1 0.1 0.1 0.1 0.0
        Loop 1 12 99.9 100.0 99.9 99.6
        Base 2 1 85.8 71.5 49.3 38.8
        Loop 2 6 100.0 99.8 99.7 99.5
        Base 3 1 97.2 78.5 69.2 60.7
        Loop 3 4 100.0 99.1 97.0 96.6""",
    "phop": """
        Base 6 1 99.9 99.6
        Base 1 1 48.9 49.0
        Loop 1 6 99.9 99.5
        Base 2 1 68.8 59.4
        Loop 2 3 99.9 99.8
        Base 3 1 97.2 73.0
        Loop 3 2 99.9 99.5""",
    "igsm": """
        Base 8 1 73.2
        Base 1 1 24.5
        Loop 1 2 52.3
        Loop 1 4 69.9
        Loop 1 8 73.2
        Base 2 1 54.0
        Loop 2 2 66.9
        Loop 2 4 73.6
        Base 4 1 71.3
        Loop 4 2 71.6""",
}
PAPER["phop-uniform"] = PAPER["phop"]
PAPER["igsm-any"] = PAPER["igsm-even"] = PAPER["igsm"]

every_experiment = pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=list(EXPERIMENTS))
of_the_paper = pytest.mark.parametrize("experiment", [EXPERIMENTS[name] for name in PAPER], ids=list(PAPER))
every_scale = pytest.mark.parametrize("scale", SCALES)


def test_which_experiments_are_the_papers() -> None:
    assert {
        name for name, experiment in EXPERIMENTS.items() if any(row.paper for row in experiment.rows)
    } == PAPER.keys()


@of_the_paper
def test_the_papers_numbers(experiment: Experiment) -> None:
    columns = experiment.columns("paper")
    shown = [row for row in experiment.rows if row.paper]
    lines = [line.split() for line in PAPER[experiment.name].strip().splitlines()]
    assert len(shown) == len(lines)
    for row, (kind, layers, loops, *numbers) in zip(shown, lines, strict=True):
        assert (str(row.plan), row.looped) == (f"{layers}x{loops}", kind == "Loop")
        assert row.paper == dict(zip(columns, map(float, numbers), strict=True))


@every_scale
@every_experiment
def test_every_column_is_filled_once(experiment: Experiment, scale: Scale) -> None:
    columns = experiment.columns(scale)
    assert len(set(columns)) == len(columns)
    assert set(columns) == set(experiment.small if scale == "cpu" else experiment.columns("paper"))
    for row in experiment.rows:
        assert not row.paper or set(row.paper) >= set(columns)
        for variant in experiment.variants:
            tests = task_of(experiment.configure(row.plan, variant or row.recipe, scale)).tests
            assert set(experiment.columns_of(variant, scale)) == set(tests)


@every_scale
@every_experiment
def test_rows_differ_in_their_plan_and_its_growth_alone(experiment: Experiment, scale: Scale) -> None:
    for variant, recipe in itertools.product(experiment.variants, {row.recipe for row in experiment.rows}):
        rows = [row for row in experiment.rows if row.recipe == recipe]
        configs = [experiment.configure(row.plan, variant or recipe, scale).resolved() for row in rows]
        assert [config.model.plan for config in configs] == [row.plan for row in rows]
        fixed = [replace(c, loop_counts=LoopCounts()) if c.loop_counts.until else c for c in configs]
        alike = {repr(config).replace(repr(config.model.plan), "PLAN") for config in fixed}
        assert len(alike) == 1


OF_PLANS = [e for e in EXPERIMENTS.values() if not (e.loops_to_test or any(row.recipe for row in e.rows))]


@pytest.mark.parametrize("experiment", OF_PLANS, ids=lambda e: e.name)
def test_looped_rows_have_their_baselines(experiment: Experiment) -> None:
    plans = [row.plan for row in experiment.rows]
    assert len(set(plans)) == len(plans)
    for row in experiment.rows:
        assert {row.plan.iso_param, row.plan.iso_flop} <= set(plans) or not row.looped


@of_the_paper
def test_the_papers_setting(experiment: Experiment) -> None:
    """Appendix, simple reasoning setup details."""
    adding = experiment.name == "addition"
    for scale in ("short", "paper"):
        for job in jobs_of(experiment, scale, 1):
            config = job.config.resolved()
            model, task = config.model, task_of(config)
            assert (model.d_model, model.d_ff, model.n_heads) == ((256, 1024, 8) if adding else (128, 512, 8))
            assert task.train_examples == (None if adding else 4_000_000)
            # The paper does not say where norms stand, nor for addition which positions there are.
            positions = "learned" if scale == "short" and adding else "rope"
            assert (model.positions, model.norm_placement) == (positions, "pre")
            if scale == "paper":
                assert config.batch_size == (1024 if adding else 256)
                assert (config.optim.name, config.optim.lr) == ("adafactor", 5e-3 if adding else 1e-3)
                assert (config.steps, task.target_accuracy) == (200_000, None)
            else:
                assert config.steps < 200_000
    assert experiment.best_of == (3 if adding else 1)
    assert [experiment.seeds_at(scale) for scale in SCALES] == [1, 1, experiment.best_of]


def test_loops_of_igsm_grow_from_half_at_scale_short_alone() -> None:
    for job in [*jobs_of(EXPERIMENTS["igsm"], "short", 1), *jobs_of(EXPERIMENTS["igsm-even"], "short", 1)]:
        counts, (block,), steps = job.config.loop_counts, job.row.plan.blocks, job.config.steps
        found = [
            counts.count_at(step, 0) if counts.active else 1 for step in (0, steps // 2 - 1, steps // 2, steps - 1)
        ]
        half = max(1, block.loops // 2)
        assert found == [half, max(1, block.loops - 1), block.loops, block.loops]
    for scale in SCALES:
        growing = [job.config.loop_counts.active for job in jobs_of(EXPERIMENTS["igsm"], scale, 1)]
        assert any(growing) == (scale == "short")


def test_loops_at_inference_keep_the_recipe_of_their_runs() -> None:
    for job in jobs_of(EXPERIMENTS["loops"], "short", 1):
        config, igsm = job.config, job.variant.startswith("igsm")
        assert not isinstance(config.source, IGSM) or config.source.law == "even"
        assert (config.optim.lr, config.optim.weight_decay, config.steps) == (4e-3, 0.0, 16_000)
        assert config.model.norm_placement == ("sandwich" if igsm else "pre")
        assert config.loop_counts.distribution == "uniform"


@pytest.mark.parametrize("scale", ["short", "paper"])
def test_the_papers_tasks(scale: Scale) -> None:
    for name, sampler in (("phop", "planted"), ("phop-uniform", "uniform")):
        tasks = {job.variant: job.config.source for job in jobs_of(EXPERIMENTS[name], scale, 1)}
        found = {
            variant: (task.p, task.n, task.alphabet, task.sampler)
            for variant, task in tasks.items()
            if isinstance(task, PHop)
        }
        assert found == {"p16": ((16,), 256, 4, sampler), "p32": ((32,), 256, 4, sampler)}
    adding, light, even = (
        jobs_of(EXPERIMENTS[name], scale, 1)[0].config.source for name in ("addition", "igsm", "igsm-even")
    )
    assert isinstance(adding, Addition)
    assert (adding.operands, adding.digits) == ((2, 4, 8, 16, 32), 3)
    for task, whole in ((light, IGSM()), (even, IGSM(law="even"))):
        assert isinstance(task, IGSM)
        assert task == replace(whole, train_examples=4_000_000, supervision=task.supervision)
    assert isinstance(light, IGSM)
    assert (light.modulus, light.operations, light.edges, light.levels) == (7, 15, 20, (4, 4))


def test_every_job_has_a_place_of_its_own() -> None:
    folders = Folders()
    jobs = [job for experiment in EXPERIMENTS.values() for scale in SCALES for job in jobs_of(experiment, scale, 3)]
    assert len({job.result_path(folders.results) for job in jobs}) == len(jobs)
    assert len({folders.run_of(job) for job in jobs}) == len(jobs)
    for job in jobs:
        assert re.fullmatch(r"[a-z0-9-]+", job.name)
        assert (job.config.seed, str(job.config.model.plan)) == (job.seed, str(job.row.plan))


@every_experiment
def test_one_seed_of_all_rows_comes_before_the_next(experiment: Experiment) -> None:
    jobs = jobs_of(experiment, "cpu", 2)
    half = len(experiment.rows) * len(experiment.variants)
    assert [job.seed for job in jobs] == [0] * half + [1] * half


@pytest.mark.parametrize("scale", SCALES)
def test_numbers_left_out_of_training_are_tested_in_every_row(scale: Scale) -> None:
    left_out = {"cpu": {6}}.get(scale, {12, 20, 24})
    configs = {job.row.recipe: job.config for job in jobs_of(EXPERIMENTS["addition-lengths"], scale, 1)}
    base = configs["padding"]
    for recipe, config in configs.items():
        task = config.source
        assert isinstance(task, Addition)
        wanted = {24} if recipe == "more lengths" and scale != "cpu" else left_out
        assert set(task.test_operands) - set(task.operands) == wanted
        alike = replace(config, source=base.source, model=replace(config.model, positions=base.model.positions))
        assert alike == base
        assert (config.model.positions == "rope") == (recipe == "unpadded rotary")
    tasks = [config.source for config in configs.values()]
    assert len({(task.fill, task.room, len(task.operands)) for task in tasks if isinstance(task, Addition)}) == 4
