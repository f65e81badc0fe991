"""A document says the same as HTML and as Markdown, and text in it is text."""

from __future__ import annotations

from pathlib import Path

from loopt.report.document import Code, Document, Grid, Paragraph, Picture, Section, to_html, to_markdown

NASTY = '<script>alert("1 & 2")</script> | x'


def document(folder: Path) -> Document:
    svg = folder / "pictures" / "one.svg"
    svg.parent.mkdir()
    svg.write_text('<?xml version="1.0"?>\n<svg width="3"><text>hello</text></svg>\n')
    table = Grid(["run", NASTY], [["a", "1"], [NASTY, "2"]], note=NASTY, marked=frozenset({1}))
    sections = [Section(NASTY, [table, Picture(svg, NASTY), Code(f"loopt {NASTY}\nloopt report")])]
    return Document(NASTY, [Paragraph(NASTY)], sections)


def test_text_is_text(tmp_path: Path) -> None:
    page = to_html(document(tmp_path))
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 9
    assert '<svg width="3"><text>hello</text></svg>' in page
    assert "<?xml" not in page


def test_markdown_has_no_html_outside_of_code(tmp_path: Path) -> None:
    written = to_markdown(document(tmp_path), tmp_path / "report.md")
    assert written.count("<script") == written.count(f"loopt {NASTY}") == 1


def test_markdown_has_rows_of_equal_length_and_finds_its_figures(tmp_path: Path) -> None:
    place = tmp_path / "elsewhere" / "report.md"
    lines = to_markdown(document(tmp_path), place).splitlines()
    rows = [line.replace("\\|", "") for line in lines if line.startswith("| ")]
    assert len(rows) == 4
    assert {row.count("|") for row in rows} == {3}
    (picture,) = [line for line in lines if line.startswith("![")]
    assert (place.parent / picture.rpartition("(")[2].rstrip(")")).resolve() == tmp_path / "pictures" / "one.svg"
    assert "```sh" in lines
