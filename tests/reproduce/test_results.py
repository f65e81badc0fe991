"""The tables in results/ and in docs/results.md are what the result files give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from loopt.plan import LoopPlan
from loopt.report import sheet as sheets
from loopt.reproduce.catalogue import EXPERIMENTS, LANGUAGE
from loopt.reproduce.experiment import Scale
from loopt.reproduce.language_table import build_language_sheets
from loopt.reproduce.table import build_sheet

ROOT = Path(__file__).parents[2]
MEASURED = sorted(path.relative_to(ROOT / "results") for path in (ROOT / "results").glob("*/*") if path.is_dir())


@pytest.mark.parametrize("measured", MEASURED, ids=str)
def test_a_table_is_what_its_files_give(measured: Path) -> None:
    name, scale = measured.parts
    if name in EXPERIMENTS:
        tables = {"table": build_sheet(EXPERIMENTS[name], cast(Scale, scale), ROOT / "results")}
    else:
        tables = build_language_sheets(LANGUAGE[name], cast(Scale, scale), ROOT / "results")
    folder = ROOT / "results" / measured
    for file, sheet in tables.items():
        assert (folder / f"{file}.md").read_text(encoding="utf-8") == sheets.markdown(sheet)
        assert (folder / f"{file}.tex").read_text(encoding="utf-8") == sheets.latex(sheet)
        assert not any("have changed since" in note for note in sheet.notes)
    if scale != "cpu":
        shown = sheets.markdown(tables["table"]).strip()
        assert shown in (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def test_rows_8_deep_of_igsm_even_are_compared_on_their_three_seeds() -> None:
    plans = [LoopPlan.parse(plan) for plan in ("8x1", "1x8", "2x4")]
    igsm = EXPERIMENTS["igsm-even"]
    sheet = build_sheet(
        replace(igsm, rows=tuple(row for row in igsm.rows if row.plan in plans)), "short", ROOT / "results"
    )
    assert [line.seeds for line in sheet.lines] == [3, 3, 3]
    rows = [line for line in sheets.markdown(sheet).splitlines() if line.startswith("|")]
    assert "\n".join(rows) in (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
