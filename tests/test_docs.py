"""What README and the documents show is true: code runs, links lead somewhere, numbers are those of the result
files."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from loopt.analysis import percent_gap
from loopt.report.drawing import human
from loopt.training import Session, presets, train
from tiny_text_runs import prepared, tiny_text

HOME = Path(__file__).parents[1]
README = (HOME / "README.md").read_text(encoding="utf-8")
PAGES = [HOME / "README.md", HOME / "CONTRIBUTING.md", *sorted((HOME / "docs").glob("*.md"))]


def test_the_readme_can_be_read_in_a_minute() -> None:
    lines = README.splitlines()
    assert len(lines) <= 150
    assert max(map(len, lines)) <= 120


def test_code_in_the_readme_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With fewer steps than it would take."""
    monkeypatch.chdir(tmp_path)
    whole = presets.phop_cpu()
    short = replace(whole, steps=6, eval_every=3, test_examples=16, optim=replace(whole.optim, warmup_steps=2))
    monkeypatch.setattr(presets, "phop_cpu", lambda: short)
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 2
    exec("\n".join(blocks), {})
    assert (tmp_path / "runs" / "seed-1" / "result.json").exists()


def test_code_of_the_page_on_generation_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    config = tiny_text(data=str(prepared(tmp_path)))
    longer = replace(config, model=replace(config.model, max_len=100), steps=4)
    train(longer, "runs/lm-cpu", Session(device="cpu", progress=False))
    (block,) = re.findall(r"```python\n(.*?)```", (HOME / "docs" / "generation.md").read_text(), re.DOTALL)
    exec(block, {})


def test_the_demos_table_is_what_its_files_have() -> None:
    rows = re.findall(
        r"^\| \**(?:Base|Loop) \((\d)⊗(\d)\)\** \| (\S+) \| (\S+) \| (\S+) \| (\d*) ?\|$", README, re.MULTILINE
    )
    results = {
        (layers, loops): json.loads((HOME / "results" / "quick" / f"{layers}x{loops}-seed0.json").read_text())["result"]
        for layers, loops, *_ in rows
    }
    for layers, loops, parameters, flops, accuracy, _ in rows:
        result = results[layers, loops]
        found = (human(result["parameters"]), human(result["flops"]), f"{result['accuracy']:.1%}")
        assert found == (parameters, flops, accuracy)
    once, looped, deep = (results[key]["accuracy"] for key in (("1", "1"), ("1", "4"), ("4", "1")))
    assert [row[5] for row in rows] == ["", f"{percent_gap(looped, once, deep):.0f}", ""]


def test_every_artefact_of_the_paper_has_its_status() -> None:
    section = README.partition("\n## Status\n")[2].partition("\n## ")[0]
    rows = [row for row in section.splitlines() if row.startswith("| ")][1:]
    assert len(rows) == 18
    assert all(len(row.strip("|").split("|")) == 4 for row in rows)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).replace("`", "").lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        where = (page.parent / path).resolve() if path else page
        assert where.exists(), target
        assert not anchor or anchor in anchors(where), target
