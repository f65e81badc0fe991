"""A table has every number of ours and the paper's in its place, in every format, also when half of it is measured."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread
from rich.console import Console

from loopt.errors import RunError
from loopt.plan import LoopPlan
from loopt.report import sheet as sheets
from loopt.report.sheet import Cell, Sheet
from loopt.report.sheet_figure import draw_sheet
from loopt.reproduce.catalogue import EXPERIMENTS
from loopt.reproduce.experiment import Experiment, Scale, jobs_of
from loopt.reproduce.table import build_sheet
from loopt.runs import TrainConfig
from tiny_experiments import HOPS, SUMS, leave_result
from tiny_runs import task_of

ACCURACIES = {"2x1": (0.9, 0.8), "1x1": (0.5, 0.4), "1x2": (0.75, 0.65)}


def leave_hops(results: Path, scale: Scale = "short", seed: int = 0, skip: str = "") -> None:
    for job in jobs_of(HOPS, scale, seed + 1):
        if job.seed == seed and str(job.row.plan) != skip:
            leave_result(job, results, {"phop": ACCURACIES[str(job.row.plan)][job.variant == "p2"]})


def leave_all(experiment: Experiment, scale: Scale, results: Path) -> None:
    """Writes results of every run but two, with accuracies that are all different."""
    numbers = itertools.count(1)
    for job in jobs_of(experiment, scale, 1):
        if str(job.row.plan) not in ("3x1", "6x2"):
            leave_result(job, results, {test: next(numbers) / 100 for test in task_of(job.config).tests})


def full_sheet(name: str, scale: Scale, results: Path) -> Sheet:
    leave_all(EXPERIMENTS[name], scale, results)
    return build_sheet(EXPERIMENTS[name], scale, results)


def test_numbers_are_in_their_places(tmp_path: Path) -> None:
    leave_hops(tmp_path)
    sheet = build_sheet(HOPS, "short", tmp_path)
    assert sheet.columns == ["p=16", "p=32"]
    assert [line.texts[:4] for line in sheet.lines] == [
        ["Base (2⊗1)", "90.0 (90.0, +0.0)", "80.0 (80.0, +0.0)", ""],
        ["Base (1⊗1)", "50.0 (50.0, +0.0)", "40.0 (40.0, +0.0)", ""],
        # 100 · (70 - 45) / (85 - 45) and, of the paper, 100 · (75 - 45) / (85 - 45)
        ["Loop (1⊗2)", "75.0 (70.0, +5.0)", "65.0 (80.0, -15.0)", "62 (75, -13)"],
    ]
    for line, row in zip(sheet.lines, HOPS.rows, strict=True):
        model = HOPS.configure(row.plan, "p1", "short").resolved().model
        assert (line.looped, line.parameters, line.flops) == (row.looped, model.parameters(), model.flops(8))
        assert (line.seeds, line.steps) == (1, [12, 12])
        assert line.seconds == pytest.approx(122.8)  # of both variants
        assert line.solved == [None, 2]
        assert "-, 2" in line.details
    assert sheet.notes[-3:] == ["On abacus_3 & 10% more.", "torch 2.11.0.", "loopt 0.1.0."]
    assert "One seed each." in sheet.notes


def test_at_another_size_the_papers_numbers_have_no_difference(tmp_path: Path) -> None:
    leave_hops(tmp_path, "cpu")
    sheet = build_sheet(HOPS, "cpu", tmp_path)
    assert sheet.columns == ["p=1 (p=16)", "p=2 (p=32)"]
    assert sheet.lines[2].texts[:4] == ["Loop (1⊗2)", "75.0 (70.0)", "65.0 (80.0)", "62 (75)"]
    assert any("look at the pattern alone" in note for note in sheet.notes)


@pytest.mark.parametrize("missing", ["2x1", "1x1", "1x2"])
def test_a_row_that_is_not_measured(missing: str, tmp_path: Path) -> None:
    leave_hops(tmp_path, skip=missing)
    sheet = build_sheet(HOPS, "short", tmp_path)
    for line, row in zip(sheet.lines, HOPS.rows, strict=True):
        there = str(row.plan) != missing
        assert [cell.ours is not None for cell in line.cells] == [there, there]
        assert (line.parameters is not None, len(line.steps)) == (there, 2 if there else 0)
        assert line.accuracies[0].startswith("-") is not there
    assert sheet.lines[2].gap == Cell.of([], 75.0)


def test_one_variant_of_two(tmp_path: Path) -> None:
    leave_hops(tmp_path)
    jobs_of(HOPS, "short", 1)[1].result_path(tmp_path).unlink()  # 2x1-p2
    (line, *_, looped) = build_sheet(HOPS, "short", tmp_path).lines
    assert line.accuracies == ["90.0 (90.0, +0.0)", "- (80.0)"]
    assert line.steps == [12]
    assert looped.gap == Cell.of([], 75.0)


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["cpu", "short", "paper"])
@pytest.mark.parametrize("experiment", [*EXPERIMENTS.values(), SUMS], ids=lambda experiment: experiment.name)
def test_nothing_measured_at_all(experiment: Experiment, scale: Scale, tmp_path: Path) -> None:
    sheet = build_sheet(experiment, scale, tmp_path)
    assert all(text.startswith("-") for line in sheet.lines for text in line.accuracies)
    assert all(line.details[1:] == [""] * 6 for line in sheet.lines)
    assert not any("seed" in note for note in sheet.notes)
    for form in (sheets.markdown, sheets.latex):
        assert form(sheet).count("\n") >= len(sheet.lines)
    assert draw_sheet(sheet, tmp_path) == []


def test_a_note_tells_rows_of_one_plan_apart(tmp_path: Path) -> None:
    plain, *others = SUMS.rows
    treated = replace(plain, recipe="slowly")
    experiment = replace(SUMS, rows=(plain, treated, *others))
    for job in jobs_of(experiment, "paper", 2):
        if job.seed == 0 or job.row == treated:
            leave_result(job, tmp_path, {"n=2": 0.2, "n=3": 0.4})
    (note,) = [note for note in build_sheet(experiment, "paper", tmp_path).notes if note.startswith("Noise")]
    assert note.endswith(": (1⊗1), slowly 30.0, 30.0.")


def leave_sums(results: Path, by_plan: dict[str, list[tuple[float, float]]], validation: Sequence[float] = ()) -> None:
    """Writes one result for each seed of each row: accuracy for two and three operands."""
    for job in jobs_of(SUMS, "paper", 9):
        accuracies = by_plan.get(str(job.row.plan), [])
        if job.seed < len(accuracies):
            leave_result(job, results, dict(zip(("n=2", "n=3"), accuracies[job.seed], strict=True)))
            if validation:
                path = job.result_path(results)
                found = json.loads(path.read_text()) | {"curve": [[4, validation[job.seed], 0.4]]}
                path.write_text(json.dumps(found))


def test_a_number_is_the_mean_over_seeds_with_their_range(tmp_path: Path) -> None:
    leave_sums(tmp_path, {"1x1": [(1.0, 0.1), (0.7, 0.6), (0.1, 0.8)], "1x2": [(0.9, 0.9)] * 3})
    first, missing, looped = build_sheet(SUMS, "paper", tmp_path).lines
    assert first.accuracies == ["60.0 [10.0 to 100.0]", "50.0 [10.0 to 80.0]"]
    assert (first.seeds, first.steps) == (3, [12, 12, 12])
    assert first.seconds == pytest.approx(3 * 61.4)
    assert (missing.accuracies, missing.seeds) == (["-", "-"], 0)
    assert looped.accuracies == ["90.0 [90.0 to 90.0]"] * 2
    notes = build_sheet(SUMS, "paper", tmp_path).notes
    assert "Mean [range] over the seeds that all rows have: 0 1 2." in notes


def test_rows_are_compared_on_the_seeds_they_share(tmp_path: Path) -> None:
    """Seeds that only one row has change no number; a note has them."""
    leave_sums(tmp_path, {"1x1": [(0.2, 0.4), (0.9, 0.9), (1.0, 1.0)], "2x1": [(0.6, 0.8)], "1x2": [(0.4, 0.6)] * 2})
    sheet = build_sheet(SUMS, "paper", tmp_path)
    assert [line.accuracies for line in sheet.lines] == [["20.0", "40.0"], ["60.0", "80.0"], ["40.0", "60.0"]]
    assert [line.seeds for line in sheet.lines] == [1, 1, 1]
    assert sheet.lines[2].details[0] == "50"
    assert "One seed each." in sheet.notes
    told = "(1⊗1) 30.0, 90.0, 100.0; (1⊗2) 50.0, 50.0"
    assert f"Noise, the mean accuracy of every seed of rows that have more: {told}." in sheet.notes
    some = replace(SUMS, rows=(SUMS.rows[0], SUMS.rows[2]))
    assert build_sheet(some, "paper", tmp_path).lines[0].accuracies == ["55.0 [20.0 to 90.0]", "65.0 [40.0 to 90.0]"]


def test_rows_that_share_no_seed_are_not_called_comparable(tmp_path: Path) -> None:
    leave_sums(tmp_path, {"1x1": [(0.2, 0.4), (0.4, 0.6)], "1x2": [(0.9, 0.9)]})
    jobs_of(SUMS, "paper", 1)[0].result_path(tmp_path).unlink()
    sheet = build_sheet(SUMS, "paper", tmp_path)
    assert [line.accuracies for line in sheet.lines] == [["40.0", "60.0"], ["-", "-"], ["90.0", "90.0"]]
    assert "Rows share no seed, so they cannot be compared; each shows its own." in sheet.notes


def test_the_best_seed_is_chosen_on_validation(tmp_path: Path) -> None:
    """It is in a note only where the paper reports a best of several."""
    leave_sums(tmp_path, {"1x1": [(0.9, 0.9), (0.1, 0.3), (0.5, 0.5)]}, validation=[0.4, 0.8, 0.6])
    notes = build_sheet(SUMS, "paper", tmp_path).notes
    assert "The paper reports the best of 3 seeds." in notes
    assert "Ours that is best on validation has, on test: (1⊗1) 20.0." in notes
    assert not any("best" in note for note in build_sheet(replace(SUMS, best_of=1), "paper", tmp_path).notes)


def test_variants_share_seeds_each_for_itself(tmp_path: Path) -> None:
    for job in jobs_of(HOPS, "short", 2):
        if job.seed == 0 or job.variant == "p2":
            leave_result(job, tmp_path, {"phop": 0.5 + job.seed / 4})
    sheet = build_sheet(HOPS, "short", tmp_path)
    assert [cell.ours for cell in sheet.lines[0].cells] == [50.0, 62.5]
    assert "Mean [range] over the seeds that all rows have: p1 0; p2 0 1." in sheet.notes


@pytest.mark.parametrize(
    ("looped", "iso_param", "iso_flop", "gap"),
    [(0.6, 0.4, 0.8, 50), (0.9, 0.4, 0.8, 125), (0.2, 0.4, 0.8, -50), (0.6, 0.5, 0.5, None), (0.6, 0.8, 0.4, None)],
)
def test_the_gap_is_there_where_depth_helps(
    looped: float, iso_param: float, iso_flop: float, gap: float | None, tmp_path: Path
) -> None:
    for job, accuracy in zip(jobs_of(SUMS, "short", 1), (iso_param, iso_flop, looped), strict=True):
        leave_result(job, tmp_path, {"n=2": accuracy - 0.1, "n=3": accuracy + 0.1})
    found = [line.gap for line in build_sheet(SUMS, "short", tmp_path).lines]
    assert found[:2] == [None, None]
    assert found[2] is not None
    assert found[2].ours == (None if gap is None else pytest.approx(gap))


@pytest.mark.parametrize(
    ("plan", "gap"),
    [
        ("1x2", 100 * (52.3 - 24.5) / (54.0 - 24.5)),
        ("1x8", 100.0),
        ("2x4", 100 * (73.6 - 54.0) / (73.2 - 54.0)),
        ("4x2", 100 * (71.6 - 71.3) / (73.2 - 71.3)),
    ],
)
def test_the_papers_gaps(plan: str, gap: float, tmp_path: Path) -> None:
    sheet = build_sheet(EXPERIMENTS["igsm"], "paper", tmp_path)
    (line,) = [line for line in sheet.lines if line.name == f"Loop {LoopPlan.parse(plan).typography}"]
    assert line.gap == Cell.of([], pytest.approx(gap))  # type: ignore[arg-type]


def test_results_of_other_settings_are_noted(tmp_path: Path) -> None:
    leave_hops(tmp_path)
    assert not any("settings" in note for note in build_sheet(HOPS, "short", tmp_path).notes)

    def longer(plan: LoopPlan, variant: str, scale: Scale) -> TrainConfig:
        config = HOPS.configure(plan, variant, scale)
        return replace(config, steps=99) if (str(plan), variant) == ("1x2", "p2") else config

    sheet = build_sheet(replace(HOPS, configure=longer), "short", tmp_path)
    assert "Measured with settings that have changed since: 1x2-p2-seed0." in sheet.notes


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (Cell.of([99.9], 99.9), "99.9 (99.9, +0.0)"),
        (Cell.of([99.86], 99.9), "99.9 (99.9, +0.0)"),  # the numbers shown are alike; no -0.0
        (Cell.of([99.84], 99.9), "99.8 (99.9, -0.1)"),
        (Cell.of([100.0], 0.0), "100.0 (0.0, +100.0)"),
        (Cell.of([0.0], 0.0), "0.0 (0.0, +0.0)"),
        (Cell.of([12.3], None), "12.3"),
        (Cell.of([], 12.3), "- (12.3)"),
        (Cell.of([], None), "-"),
        (Cell.of([12.3], 45.6, comparable=False), "12.3 (45.6)"),
        (Cell.of([], 45.6, comparable=False), "- (45.6)"),
        (Cell.of([10.0, 30.0], 25.0), "20.0 [10.0 to 30.0] (25.0, -5.0)"),
        (Cell.of([10.0, 30.0], None), "20.0 [10.0 to 30.0]"),
        (Cell.of([10.0, 30.0], 25.0, comparable=False), "20.0 [10.0 to 30.0] (25.0)"),
    ],
)
def test_a_cell_as_text(cell: Cell, text: str) -> None:
    assert cell.text() == text


@given(st.floats(0, 100), st.floats(0, 100), st.sampled_from([0, 1]))
def test_the_difference_is_that_of_the_numbers_shown(ours: float, paper: float, digits: int) -> None:
    text = Cell.of([ours], paper).text(digits)
    found = re.fullmatch(r"(\S+) \((\S+), ([+-]\S+)\)", text)
    assert found is not None
    shown, theirs, difference = map(float, found.groups())
    assert shown - theirs == pytest.approx(difference)
    assert "-0.0)" not in text
    assert "-0)" not in text


@pytest.mark.parametrize("scale", ["cpu", "short"])
@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_markdown_and_latex_have_every_cell(name: str, scale: Scale, tmp_path: Path) -> None:
    sheet = full_sheet(name, scale, tmp_path)
    rows = [line for line in sheets.markdown(sheet).splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert cells[0] == sheet.header
    assert re.fullmatch(r"\|---\|(--:\|)+", rows[1])
    assert cells[2:] == [line.texts for line in sheet.lines]
    assert {len(row) for row in cells} == {len(sheet.header)}

    text = sheets.latex(sheet)
    assert "⊗" not in text
    assert "abacus\\_3 \\& 10\\% more" in text
    assert not re.search(r"(?<!\\)[%#_]", text)
    assert text.count("{") == text.count("}")
    assert re.findall(r"\\begin\{(\w+)\}", text) == list(reversed(re.findall(r"\\end\{(\w+)\}", text)))
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(body) == 1 + len(sheet.lines)
    assert {len(re.findall(r"(?<!\\)&", line)) for line in body} == {len(sheet.header) - 1}
    assert f"{{l{'r' * (len(sheet.header) - 1)}}}" in text


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("scale", ["cpu", "short"])
@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_the_terminal_shows_every_number_whole(name: str, scale: Scale, width: int, tmp_path: Path) -> None:
    sheet = full_sheet(name, scale, tmp_path)
    console = Console(width=width, record=True, file=(tmp_path / "screen").open("w"))
    console.print(sheets.terminal(sheet))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    assert lines[0] == sheet.title
    first, second = (i for i, line in enumerate(lines) if line.startswith("─"))

    def words(texts: list[str]) -> list[str]:
        return " ".join(texts).replace("\n", " ").split()

    for line in sheet.lines:
        (upper,) = [i for i in range(first, second) if lines[i].startswith(line.name)]
        below = lines[upper + 1] if lines[upper + 1].startswith(" ") else ""
        ours = [text.partition(" (")[0] for text in line.accuracies]
        theirs = [f"({text.partition(' (')[2]}" for text in line.accuracies if " (" in text]
        assert lines[upper].split() == words([line.name, *ours])
        assert below.split() == words(theirs)
        (detail,) = [text for text in lines[second:] if text.startswith(line.name)]
        assert detail.split() == words([line.name, *line.details])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["addition", "phop", "igsm", "group"])
def test_the_figure_is_drawn(name: str, tmp_path: Path) -> None:
    sheet = full_sheet(name, "short", tmp_path)
    draw_sheet(sheet, tmp_path)
    picture = imread(tmp_path / "table.png")[..., :3]  # [height, width, RGB]

    def pixels(colour: str) -> int:
        wanted = [int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        return int((abs(picture - wanted).max(-1) < 0.01).sum())

    assert min(pixels("0072b2"), pixels("a9b1ba")) > 500  # looped, baselines
    assert pixels("d55e00") == 0 if name == "group" else pixels("d55e00") > 500  # the paper's, which has no words
    assert picture.shape[1] < 2000  # eight columns go into two rows
    edge = max(picture[:, -1].std(), picture[:, 0].std(), picture[0].std(), picture[-1].std())
    assert edge == 0  # nothing is cut off


WRONG_RESULTS: list[tuple[str, object]] = [
    ("result", []),
    ("accuracy", "high"),
    ("accuracy", 1.5),
    ("accuracies", {"phop": None}),
    ("accuracies", {"addition": 0.5}),
    ("parameters", None),
    ("step", "12"),
    ("seconds", -1),
    ("hardware", 7),
    ("config", {}),
    ("curve", None),
    ("curve", [[1, 0.5]]),
    ("curve", [[1, 0.5, "soon"]]),
    ("by_loops", [1, 2]),
    ("by_loops", {"two": {"phop": 0.5}}),
    ("by_loops", {"2": 0.5}),
    ("by_loops", {"2": {"addition": 0.5}}),
    ("by_difficulty", {"1 needed": True}),
]


def test_a_broken_result_is_named(tmp_path: Path) -> None:
    leave_hops(tmp_path)
    path = jobs_of(HOPS, "short", 1)[0].result_path(tmp_path)
    whole = path.read_text()
    for field, value in WRONG_RESULTS:
        found = json.loads(whole)
        part = found["result"] if field in found["result"] else found
        part[field] = value
        path.write_text(json.dumps(found))
        message = f"{path}: not a result of this row, by its {field}; delete it to measure the row again"
        with pytest.raises(RunError, match=re.escape(message)):
            build_sheet(HOPS, "short", tmp_path)
    for text in ("{}", "[]", "null", "[" * 5000, "1" * 400, '{"result": NaN}', "\x80"):
        path.write_bytes(text.encode("latin-1"))
        with pytest.raises(RunError, match=re.escape(str(path))) as error:
            build_sheet(HOPS, "short", tmp_path)
        assert "\n" not in str(error.value)
