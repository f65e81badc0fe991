"""What README and the documents show is true: links lead somewhere, every page is on the site, numbers are those of the
result files."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopt.analysis import percent_gap
from loopt.report.drawing import human

HOME = Path(__file__).parents[1]
README = (HOME / "README.md").read_text(encoding="utf-8")
PAGES = [HOME / "README.md", HOME / "CONTRIBUTING.md", *sorted((HOME / "docs").glob("*.md"))]


def test_the_readme_can_be_read_in_a_minute() -> None:
    lines = README.splitlines()
    assert len(lines) <= 150
    assert max(map(len, lines)) <= 120


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


def test_every_page_is_on_the_site() -> None:
    def pages(entries: list[Any]) -> Iterator[str]:
        for entry in entries:
            ((_, target),) = entry.items()
            yield from [target] if isinstance(target, str) else pages(target)

    site = tomllib.loads((HOME / "zensical.toml").read_text(encoding="utf-8"))["project"]
    shown = [page for page in pages(site["nav"]) if not page.startswith("reference/")]  # made from the code
    written = [page.name for page in (HOME / "docs").glob("*.md")]
    assert sorted(shown) == sorted([*written, "contributing.md", "changelog.md"])


def test_no_page_has_marks_of_an_unfinished_merge() -> None:
    for page in [*PAGES, HOME / "CHANGELOG.md"]:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"^(<{7}|>{7}|={7}$)", text, re.MULTILINE), page
