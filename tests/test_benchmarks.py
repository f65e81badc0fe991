"""The hashes that benchmarks/igsm_statistics.py counts templates by, the mixtures that igsm_mixture.py finds, what
trials.py says of the runs beside the tables, how row_differences.py compares rows, and what full_scale.py says the
paper's would cost."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from igsm_reading import SAMPLE, even_tasks, light_tasks, seeds
from loopt.plan import LoopPlan
from loopt.random_bits import Stream
from loopt.reproduce.experiment import jobs_of
from loopt.reproduce.igsm import igsm
from loopt.reproduce.language import language_experiments
from loopt.runs import codec, read_config
from loopt.tasks import IGSM
from loopt.tasks.igsm import Law
from loopt.tasks.igsm_text import worked_out, written
from loopt.training import presets
from tiny_text_runs import text_directory

HOME = Path(__file__).parents[1]


def load_benchmark(name: str) -> ModuleType:
    path = HOME / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look annotations up
    spec.loader.exec_module(module)
    return module


statistics = load_benchmark("igsm_statistics")
mixture = load_benchmark("igsm_mixture")
trials = load_benchmark("trials")
row_differences = load_benchmark("row_differences")

PAGES = ("results.md", "recipes.md", "log.md")
RESULTS, RECIPES, LOG = ((HOME / "docs" / page).read_text(encoding="utf-8") for page in PAGES)


def written_out(definitions: dict[str, Any], name: str) -> str:
    """What a parameter stands for, with c for constants and the terms of a sum in alphabetical order."""

    def terms(right: Any, sign: str) -> list[str]:
        if isinstance(right, tuple) and right[1] in "+-":
            return terms(right[0], sign) + terms(right[2], right[1])
        return [sign + text(right)]

    def text(right: Any) -> str:
        if isinstance(right, int):
            return "c"
        if isinstance(right, str):
            return f"[{written_out(definitions, right)}]"
        return f"c*({whole(right[2])})"

    def whole(right: Any) -> str:
        return "".join(sorted(terms(right, "+")))

    return whole(definitions[name])


def reading(text: str) -> Any:
    return statistics.Reading.of(re.findall(r":=|[0-9]+|\S", text))


def both(task: IGSM, seed: int, examples: int) -> set[tuple[int, str]]:
    """Hashes and templates written out from the text, side by side."""
    problem = task._law.draw(torch.arange(examples), Stream(task.name, seed, "train"), task.modulus)
    texts = task.sample(range(examples), seed, "train").tokens.tolist()
    return set(
        zip(
            statistics.template_hashes(problem).tolist(),
            [written_out(*task._read(tokens)) for tokens in texts],
            strict=True,
        )
    )


@pytest.mark.slow
@given(seed=seeds, task=st.one_of(light_tasks(), even_tasks()))
@settings(max_examples=20, deadline=None)
def test_hashes_are_equal_where_templates_are(seed: int, task: IGSM) -> None:
    pairs = both(task, seed, 200)
    hashes, texts = zip(*pairs, strict=True)
    assert len(pairs) == len(set(hashes)) == len(set(texts))


@pytest.mark.slow
def test_all_templates_of_three_needed_statements() -> None:
    """Law even. Each using the one before: 3 * 12, of which step 7 excludes x - y and c * (x - y), either way round,
    where one is a copy of the other. And two constants, added or subtracted, with a constant, a factor or neither."""
    pairs = both(IGSM(law="even", statements=3, needed=(3, 3)), 0, 5000)
    assert len(pairs) == 3 * 12 - 2 * 2 + 6


def statements_of(task: IGSM, tokens: list[int]) -> tuple[str, ...]:
    """The needed statements, one after the other, with c for constants and v0, v1, … for parameters."""
    definitions, query = task._read(tokens)
    needed = list(worked_out(definitions, query, task.modulus))
    texts = (re.sub(r"\d", "c", written(definitions[name])) for name in needed)
    return tuple(re.sub("[A-P]#[A-P]", lambda name: f"v{needed.index(name[0])}", text) for text in texts)


@pytest.mark.slow
def test_all_templates_of_few_operations() -> None:
    """Law light: those that the formula counts are drawn, all of them and no others."""
    task = IGSM(operations=4, edges=6, levels=(2, 2))
    hardest = task.difficulties["4 operations"].sample(range(14_000), 0, "train").tokens
    found = {statements_of(task, tokens) for tokens in hardest.tolist()}
    assert len(found) == statistics.how_many(4) - statistics.how_many(3)


@pytest.mark.parametrize("task", [IGSM(), IGSM(law="even")], ids=["light", "even"])
def test_operations_are_counted_alike_in_text_and_tensors(task: IGSM) -> None:
    problem = task._law.draw(torch.arange(300), Stream(task.name, 0, "test"), task.modulus)
    texts = [[task.vocabulary[token] for token in tokens] for tokens in task.sample(range(300), 0, "test").tokens]
    assert statistics.operations_of(problem).tolist() == [statistics.Reading.of(text).operations for text in texts]


def test_equal_rows_and_no_others_have_equal_hashes() -> None:
    tokens = IGSM().sample(range(1000), 0, "test").tokens
    twice = statistics.row_hashes(torch.cat([tokens, tokens]))
    assert torch.equal(twice[:1000], twice[1000:])
    assert len(twice.unique()) == 1000


def test_what_is_read_from_a_problem() -> None:
    """The paper's sample: 9 of 12 statements needed, a chain of 8, 14 operations."""
    problem = reading(SAMPLE)
    assert (len(problem.values), problem.chain, problem.operations) == (9, 8, 14)
    assert problem.distractors == ["K#N", "J#O", "I#M"]
    assert all(problem.depends_on_needed(name) for name in problem.distractors)
    assert statistics.form(problem.definitions["I#N"]) == "c * (x + y + z)"
    assert [problem.terms(name) for name in ("E#I", "E#J", "J#P", "I#N")] == [1, 1, 2, 4]
    assert [problem.has_constant(name) for name in ("E#I", "E#J", "I#N")] == [True, False, True]
    assert (problem.commonest_constant, problem.constant_of_query) == (4, 0)


def test_a_parameter_that_cancels_does_not_matter() -> None:
    problem = reading("A#E := 3. A#F := 2 + A#E. A#G := A#F - A#E. A#G?")
    assert [problem.matters(name) for name in ("A#E", "A#F", "A#G")] == [False, True, True]


@given(st.data(), st.integers(1, 10), st.floats(0, 1))
def test_a_mixture_is_found_by_what_rows_have_on_it(data: st.DataObject, up_to: int, share: float) -> None:
    accuracies = st.lists(st.floats(0, 100), min_size=10, max_size=10).map(lambda row: sorted(row, reverse=True))
    rows = data.draw(st.lists(accuracies, min_size=1, max_size=10))
    rows.append([100.0] * 9 + [0.0])  # one that tells the two kinds apart
    wanted = [share * sum(row[:up_to]) / up_to + (1 - share) * row[-1] for row in rows]
    found = mixture.fit(rows, wanted, up_to)
    assert abs(found.share - share) < 1e-6
    assert found.error < 1e-6


def test_the_page_has_what_the_result_files_give(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["igsm_mixture.py", "--results", str(HOME / "results")])
    monkeypatch.setattr(mixture, "EXAMPLES", 3000)  # of 50,000, so that predictions are close to the log's
    mixture.main()
    fits, rows, *predictions = capsys.readouterr().out.strip().split("\n\n")
    assert fits in RESULTS
    assert rows in RESULTS
    assert len(predictions) == 2
    for prediction in predictions:
        head, _, *ours = prediction.splitlines()
        logged = LOG[LOG.index(head) :].splitlines()[2 : 2 + len(ours)]
        for line, other in zip(ours, logged, strict=True):
            (name, *found), (same_name, *wanted) = (
                [cell.strip() for cell in one.split("|")[1:-1]] for one in (line, other)
            )
            assert name == same_name
            numbers = [float(cell) for cell in wanted if cell]
            assert [float(cell) for cell in found if cell] == pytest.approx(numbers, abs=1.5)


def test_rows_that_are_not_measured_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["igsm_mixture.py", "--results", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"rows 8x1, 1x1, .* no accuracy by difficulty"):
        mixture.main()


def test_problems_of_other_difficulty_are_matched_with_those_that_were_measured() -> None:
    row, steps = [100.0, 60.0, 20.0], [1.0, 2.0, 4.0]
    assert [mixture.interpolate(row, steps, k) for k in (1, 2, 3, 4, 9)] == [100, 60, 40, 20, 20]
    law = Counter({(1, 1): 2, (2, 3): 1, (5, 9): 1})  # needed statements and operations
    assert mixture.by_needed(row, law) == (2 * 100 + 60 + 20) / 4
    assert mixture.by_operations(row, law, steps) == (2 * 100 + 40 + 20) / 4
    assert mixture.mean_operations(Counter({(1, 1): 5, (2, 2): 1, (2, 4): 3})) == [1, 3.5]


def test_no_share_is_below_nothing_or_above_everything() -> None:
    rows = [[100.0, 50.0], [90.0, 10.0]]
    assert [mixture.fit(rows, wanted, 1).share for wanted in ([0.0, 0.0], [200.0, 200.0])] == [0.0, 1.0]


def test_the_page_has_every_trial(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["trials.py", "--results", str(HOME / "results")])
    trials.main()
    blocks = capsys.readouterr().out.strip().split("\n\n")
    tables = blocks[1::2]  # each below its title
    assert sum(len(table.splitlines()) - 2 for table in tables) == len(list((HOME / "results" / "trials").iterdir()))
    assert all(table in RECIPES for table in tables)


@pytest.mark.parametrize("path", sorted((HOME / "results" / "trials").iterdir()), ids=lambda path: path.stem)
def test_a_trial_can_be_trained_again(path: Path) -> None:
    result = json.loads(path.read_text(encoding="utf-8"))["result"]
    assert codec.fingerprint(read_config(path)) == result["config"]


@given(lr=st.floats(0.003, 0.01), steps=st.integers(8001, 90_000), law=st.sampled_from(["light", "even"]))
def test_a_trial_is_told_by_what_it_changed(lr: float, steps: int, law: Law) -> None:
    standard = igsm(law).configure(LoopPlan.parse("1x8"), "", "short").resolved()
    changed = replace(standard, steps=steps, optim=replace(standard.optim, lr=lr, weight_decay=0.0))
    title, found = trials.recipe_of_the_table(changed, "short")
    assert (title, found.resolved()) == (f"i-GSM, {law}", standard)
    result = {"step": steps, "seconds": 1.6, "accuracies": {"igsm": 0.5}}
    told = trials.line({"result": result, "curve": [[500, 0.4, 1.0]]}, changed, found)
    schedule = f"{steps:,} | {steps:,} | - | 2 | 50.0 |"
    assert told == f"| (1⊗8) | optim.lr 0.002 → {lr}; optim.weight_decay 0.1 → 0.0 | {schedule}"


def test_no_trials_are_told_as_such(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["trials.py", "--results", str(tmp_path)])
    with pytest.raises(SystemExit, match="trials: no result files"):
        trials.main()


def test_the_page_on_full_scale_has_what_its_program_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["full_scale.py"])
    load_benchmark("full_scale").main()
    assert capsys.readouterr().out.strip() in (HOME / "docs" / "full-scale.md").read_text(encoding="utf-8")


def test_a_row_of_full_scale_is_what_its_preset_trains() -> None:
    """So that a run that torchrun made in the row's directory is the row."""
    for job in jobs_of(language_experiments("data/language")["language"], "paper", seeds=1):
        config = presets.lm_1b("data/language")
        assert job.config == replace(config, model=replace(config.model, plan=job.row.plan))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["task", "text"])
def test_models_are_regularized_looped_and_trained_on(kind: str, tmp_path: Path) -> None:
    loop_regularized = load_benchmark("loop_regularized")
    of_text = kind == "text"
    found = loop_regularized.of_text(str(text_directory()), 100) if of_text else loop_regularized.of_a_task()
    small: dict[str, Any] = {"steps": 5, "eval_every": 5, "eval_examples": 4, "test_examples": 16, "batch_size": 2}
    deep, looped = (
        replace(config, **small, optim=replace(config.optim, warmup_steps=1)) for config in (found.deep, found.looped)
    )
    rows = list(loop_regularized.compared(replace(found, deep=deep, looped=looped), 0, 2, tmp_path))
    assert [row[0] for row in rows] == [
        "none",
        *(f"{kind}, {weight:g}" for kind in ("cosine", "l2") for weight in found.weights),
        "random weights: 2 steps",
        "random weights, to the end: 5 steps",
    ]
    assert {len(row) for row in rows} == {7}
    cosines = {row[0]: float(row[3]) for row in rows if row[3]}
    assert cosines["cosine, 10"] > cosines["none"]


def test_rows_are_compared_seed_by_seed() -> None:
    mean, half = row_differences.difference([3.0, 5.0, 10.0], [1.0, 4.0, 7.0])  # differ by 2, 1 and 3
    assert mean == pytest.approx(2)
    assert half == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)  # 4.303 is Student's t for two degrees of freedom


@pytest.mark.parametrize(
    "rows", [("2x8-random-loops", "2x8-norm", "2x8-injection", "2x8-both"), ("2x8-injection", "2x8-both")]
)
def test_the_page_has_how_rows_differ(
    rows: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["row_differences.py", "more-loops", "cpu", *rows, "--results", str(HOME / "results")]
    monkeypatch.setattr(sys, "argv", arguments)
    row_differences.main()
    assert capsys.readouterr().out.strip() in RESULTS


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (("2x8-norm", "2x8-nrm"), "row 2x8-nrm: more-loops has none of that name; allowed are 2x8-fixed-loops,"),
        (("2x8-norm", "2x8-both"), "rows 2x8-norm, 2x8-both: share 0 seeds; allowed are 2 or more"),
    ],
)
def test_rows_that_cannot_be_compared_are_named(
    rows: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["row_differences.py", "more-loops", "cpu", *rows, "--results", str(tmp_path)])
    with pytest.raises(SystemExit, match=message):
        row_differences.main()
