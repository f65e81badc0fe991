"""The page of thoughts in a real browser: what it shows is what the models and the solver say."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from browser import Tab, opened_browser
from loopt.analysis import answers_by_loop
from loopt.analysis.exploration import Exploration, draw_examples
from loopt.analysis.latents import look_inside
from loopt.commands.explorer import make_page, make_server
from loopt.commands.thoughts import Options
from loopt.report.explorer.server import ExplorerServer
from loopt.shipped import load_shipped
from loopt.tasks import PHop

LOOPED, ONCE, DEEP, BUILT = range(4)
WORD = "abcadbcaddcbabcad"

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Shown:
    """The page of the models that come with loopt, as a file and as a server has it."""

    models: Exploration
    file: str
    server: ExplorerServer


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened_browser() as one:
        yield one


@pytest.fixture(scope="module")
def shown(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    options = Options(serve=True, examples=2, probe_examples=64, device="cpu")
    models, page = make_page(options, ["--serve"])
    path = tmp_path_factory.mktemp("page") / "thoughts.html"
    path.write_text(page.replace('"serve":true', '"serve":false'), encoding="utf-8")
    with make_server(0, models, page) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield Shown(models, path.as_uri(), server)
        server.shutdown()


@pytest.fixture
def tab(browser: Any) -> Iterator[Tab]:
    one = Tab(browser)
    yield one
    one.close()


def task() -> PHop:
    found = load_shipped("1x4").task
    assert isinstance(found, PHop)
    return found


def test_it_opens_by_itself_and_asks_for_nothing(shown: Shown, tab: Tab) -> None:
    page = tab.open(shown.file)
    assert page.title() == "4-hop induction, loop by loop"
    assert {address for address in tab.asked if not address.startswith(("data:", "about:"))} == {shown.file}
    assert page.locator("#models button").count() == 4
    assert not page.locator("#typing").is_visible()
    assert page.locator(".hopmark").count() == 4


def test_what_opens_it_is_painted_before_the_tables_below_are_made(shown: Shown, tab: Tab) -> None:
    tab.page.add_init_script("""(function look() {
      if (!document.querySelector(".hopmark")) setTimeout(look, 1);
      else requestAnimationFrame(() => { window.rowsAtFirst = document.querySelectorAll("#grid tr").length; });
    })()""")
    page = tab.open(shown.file)
    assert page.evaluate("rowsAtFirst") == 0
    assert page.locator("#grid tr").count() > 4
    for table in ("sides", "probes", "matrices", "change", "orbit"):
        assert page.locator(f"#{table} > *").count() > 0


def test_every_answer_on_it_is_that_of_thoughts_and_every_verdict_the_solvers(shown: Shown, tab: Tab) -> None:
    page = tab.open(shown.file)
    ((_, tokens),) = draw_examples(task(), 0, 1)
    words, right = task().vocabulary, task().solve(tokens)
    for which, subject in enumerate(shown.models.subjects[:2]):
        page.locator("#models button").nth(which).click()
        answers = answers_by_loop(subject.model, tokens, subject.steps, top=3)
        rows = page.locator("#grid tr[data-step]")
        assert rows.count() == len(answers)
        for row, answer in zip(rows.all(), answers, strict=True):
            written = row.locator("td").all_inner_texts()
            for cell, choices, label in zip(written, answer.choices, right, strict=True):
                assert cell == words[choices[0]] + ("✓" if choices[0] == label else "✗")
        step = len(answers)
        page.evaluate(f"go({{step: {step}}})")
        (likeliest, *_) = page.locator("#tops li").all_inner_texts()
        probability = answers[-1].probabilities[-1][0]
        assert f"“{words[answers[-1].choices[-1][0]]}”" in likeliest
        (percent,) = re.findall(r"([\d.]+)%", likeliest)
        assert float(percent) == pytest.approx(100 * probability, abs=0.51)


def test_the_built_model_follows_its_theorem(shown: Shown, tab: Tab) -> None:
    page = tab.open(f"{shown.file}#model={BUILT}&step=4")
    assert page.locator("#grid tr[data-step='4'] td.wrong").count() == 0
    assert re.search(r"right from (loop )?4 on", page.locator("#summary").inner_text())


def test_the_slider_fills_hops_one_after_the_other(shown: Shown, tab: Tab) -> None:
    page = tab.open(shown.file)
    known = []
    for step in range(1, 5):
        page.locator("#step").fill(str(step))
        known.append(page.locator(".hopmark.known").count())
        assert page.locator("#stepname").inner_text() == f"loop {step} of 4"
        assert page.locator("#step").get_attribute("aria-valuetext") == f"loop {step} of 4"
    assert known == sorted(known)
    assert known[0] < known[-1] == 4
    page.locator("#step").fill("8")
    assert "beyond the 4 it was trained with" in page.locator("#stepname").inner_text()


def test_a_newcomer_is_told_what_is_what(shown: Shown, tab: Tab) -> None:
    page = tab.open(shown.file)
    assert "⊥ where there is no such place" in page.locator("header").inner_text()
    assert page.locator("#rows span").all_inner_texts() == ["reads", "answers", "looks at", "true hops"]
    for which, made in enumerate(["1 layer, run 4 times", "1 layer, run once", "4 layers, run once"]):
        page.evaluate(f"go({{model: {which}}})")
        scores = re.escape(shown.models.subjects[which].note)
        assert re.fullmatch(rf"\(\d⊗\d\) [a-z ]+: {made}; {scores}\.", page.locator("#made").inner_text())
    for position in (31, 20):
        page.evaluate(f"go({{model: {LOOPED}, position: {position}}})")
        rows = [row.locator("td").all() for row in page.locator(".ladder tr").all()[1:5]]
        first = [
            next(i for i, row in enumerate(rows, 1) if "known" in str(row[hop].get_attribute("class")).split())
            for hop in range(4)
        ]
        told = page.locator("#story").inner_text()
        assert told.startswith(f"At position {position} a probe first reads hop")
        read = {
            int(hop): int(loop)
            for hops, loop in re.findall(r"hops? ([\d and]+) after loop (\d)", told)
            for hop in re.findall(r"\d", hops)
        }
        assert read == dict(enumerate(first, 1))


def test_keys_move_loops_positions_models_and_heads(shown: Shown, tab: Tab) -> None:
    page = tab.open(f"{shown.file}#step=2")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("view.step") == 3
    page.keyboard.press(",")
    assert page.evaluate("view.position") == 30
    page.keyboard.press("h")
    assert page.evaluate("view.head") == 0
    page.keyboard.press("m")
    assert page.evaluate("view.model") == 1
    page.keyboard.press("e")
    assert page.evaluate("view.example") == 1
    page.locator("#heads button").nth(2).click()
    assert page.evaluate("document.activeElement.textContent") == "2"  # what was pressed keeps the focus
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("view.step") == 2
    page.locator("#play").click()
    assert "stop" in page.locator("#play").inner_text()
    page.locator("#play").click()


def test_an_address_restores_the_whole_view(shown: Shown, tab: Tab) -> None:
    page = tab.open(shown.file)
    page.evaluate("go({example: 1, model: 2, step: 3, position: 17, head: 1})")
    page.wait_for_url("**#*position=17*")
    address, text = page.url, page.locator("main").inner_text()
    again = tab.open(address)
    assert again.locator("main").inner_text() == text
    assert again.locator("#example").input_value() == "1"
    for bad in ("#step=999&model=-4&position=1e9&head=77&example=x", "#%00=%FF", "#input=<script>alert(1)</script>"):
        tab.open(shown.file + bad)


def test_a_cell_and_a_matrix_choose_where_to_look(shown: Shown, tab: Tab) -> None:
    page = tab.open(f"{shown.file}#step=4")
    page.locator("#grid tr[data-step='3'] td").nth(20).click()
    assert (page.evaluate("view.position"), page.evaluate("view.step")) == (20, 3)
    page.locator("#matrices canvas").nth(2).click(position={"x": 5, "y": 5})
    assert page.evaluate("view.head") == 2
    assert page.evaluate("view.position") < 4


def test_arcs_show_where_the_position_under_the_mouse_looks(shown: Shown, tab: Tab) -> None:
    page = tab.open(f"{shown.file}#step=4&head=3")
    chosen = page.evaluate("cells.looks.innerHTML")
    page.locator(".token").nth(25).hover()
    assert page.evaluate("cells.looks.innerHTML") != chosen
    strongest = page.evaluate("Math.max(...attentionFrom(25).map(([, weight]) => weight))")
    seen = look_inside(shown.models.subjects[LOOPED].model, draw_examples(task(), 0, 1)[0][1])
    assert strongest == pytest.approx(float(seen.look_weights[3, 0, 3, 25, 0]), abs=0.003)
    page.locator("h1").hover()
    assert page.evaluate("cells.looks.innerHTML") == chosen


def test_what_is_typed_is_run_and_what_is_wrong_is_said(shown: Shown, tab: Tab) -> None:
    page = tab.open(shown.server.address)
    page.locator("#typed").fill(WORD)
    page.keyboard.press("Enter")
    page.locator("#example option").nth(2).wait_for(state="attached")
    tokens = task().encode(WORD)
    answers = answers_by_loop(shown.models.subjects[LOOPED].model, tokens, 8)
    written = page.locator("#grid tr[data-step='4'] td").all_inner_texts()
    assert [cell[0] for cell in written] == [task().vocabulary[choices[0]] for choices in answers[3].choices]
    page.wait_for_url("**#*input=*")
    address = page.url
    page.locator("#typed").fill("xyz <b>")
    page.keyboard.press("Enter")
    page.locator("#said", has_text="allowed are problems of phop").wait_for()
    again = tab.open(address)
    again.locator("#example option").nth(2).wait_for(state="attached")
    assert again.evaluate("view.example") == 2
    assert again.locator("#grid tr[data-step='4'] td").all_inner_texts() == written
    tab.complaints = [one for one in tab.complaints if "400 (Bad Request)" not in one]  # the browser's own word for it


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_it_fits_a_desk_and_a_phone_by_day_and_by_night(
    shown: Shown, browser: Any, width: int, scheme: str, tmp_path: Path
) -> None:
    tab = Tab(browser, width=width, height=844, scheme=scheme)
    page = tab.open(f"{shown.file}#step=3")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 26)")
    small = page.evaluate(
        "[...document.querySelectorAll('.controls button')].filter((b) => b.offsetHeight < 32).length"
    )
    assert small == 0
    assert len(page.screenshot()) > 10_000
    tab.close()


def test_a_screen_reader_finds_names_for_everything_it_can_use(shown: Shown, tab: Tab) -> None:
    page = tab.open(shown.file)
    nameless = page.evaluate("""() => [...document.querySelectorAll("button, input, select, canvas, svg[role=img]")]
      .filter((e) => e.offsetParent !== null || e.tagName === "svg")
      .filter((e) => !(e.getAttribute("aria-label") || e.textContent.trim() || e.closest("label"))).map((e) => e.id)""")
    assert nameless == []
    levels = page.evaluate("[...document.querySelectorAll('h1, h2')].map((h) => h.tagName)")
    assert levels[0] == "H1"
    assert set(levels[1:]) == {"H2"}
    assert page.locator("#summary").get_attribute("aria-live") == "polite"
