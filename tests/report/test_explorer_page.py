"""The page of thoughts in a real browser: what it shows is what the models and the solver say."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from browser import Tab, opened_browser
from loopt.analysis import answers_by_loop
from loopt.analysis.exploration import Exploration, draw_examples, is_sure
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
    tab.page.add_init_script("""window.painted = []; (function look() {
      painted.push([document.querySelectorAll(".hopmark").length, document.querySelectorAll("#grid tr").length]);
      requestAnimationFrame(look);
    })()""")  # before every frame, however slow: a timer can come too late
    page = tab.open(shown.file)
    assert [4, 0] in page.evaluate("painted")
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
    told = page.locator("#summary").inner_text()
    assert re.search(
        r"(right from loop 4 on|right from loop 4 to \d|(right|again) after loop 4; run on, it is wrong)", told
    )
    page.evaluate("go({position: 31})")
    assert "letters in binary digits" in page.locator("#made").inner_text()
    assert "hops 3 and 4 never, though it answers rightly after loop 4." in page.locator("#story").inner_text()


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


def hops_named(text: str) -> list[int]:
    """The hops in a list such as 1, 3 to 5 and 7."""
    bounds = [re.findall(r"\d+", part) for part in re.split(", | and ", text)]
    return [hop for ends in bounds for hop in range(int(ends[0]), int(ends[-1]) + 1)]


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
            hop: int(loop)
            for hops, loop in re.findall(r"hops? ([\d andto]+) after loop (\d)", told)
            for hop in hops_named(hops)
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


def slow(models: Exploration, seconds: float) -> Any:
    """A server's think that takes its time."""

    def think(text: str, limit: float) -> dict[str, Any]:
        time.sleep(seconds)
        return models.describe([("typed", models.encode(text))], limit)[0]

    return think


def test_a_link_to_a_typed_input_restores_the_view_when_the_answer_is_there(
    tab: Tab,
) -> None:
    models, page = make_page(Options(serve=True, input="abca", probe_examples=0, device="cpu"), ["--serve"])
    with make_server(0, models, page) as server:
        server.think = slow(models, 0.5)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        shows = tab.open(f"{server.address}#position=9&step=3&model=2&input={WORD}")
        assert shows.evaluate("[view.example, DATA.examples.length]") == [0, 1]  # it is still thinking
        shows.wait_for_timeout(200)
        assert f"input={WORD}" in shows.url
        shows.locator("#example option").nth(1).wait_for(state="attached")
        assert shows.evaluate("[view.example, view.position, view.step, view.model]") == [1, 9, 3, 2]
        assert shows.locator("#said").inner_text() == ""
        refused = tab.open(f"{server.address}#position=9&input=xyz")
        refused.locator("#said", has_text="allowed are problems of phop").wait_for()
        refused.keyboard.press("ArrowRight")
        refused.wait_for_url("**#*step=2*")
        assert "input=xyz" in refused.url
        assert "position=9" in refused.url
        server.shutdown()
    tab.complaints = [one for one in tab.complaints if "400 (Bad Request)" not in one]


def test_a_changed_address_changes_the_view(shown: Shown, tab: Tab) -> None:
    page = tab.open(shown.server.address)
    chosen = page.locator("#example option:checked")
    page.evaluate("location.hash = '#example=1&position=7'")
    chosen.filter(has_text="test example 1").wait_for(state="attached")
    assert page.evaluate("[view.example, view.position]") == [1, 7]
    for word in ("abcab", "badcab", "abcab"):
        page.evaluate(f"location.hash = '#input={word}'")
        chosen.filter(has_text=f"typed: {word}").wait_for(state="attached")
        assert page.evaluate("example().typed") == word
        assert page.evaluate("view.position") == len(word) - 1
    assert page.evaluate("DATA.examples.length") == 4  # what was run once is not run again


def test_an_address_is_followed_though_the_page_writes_its_own_meanwhile(shown: Shown, tab: Tab) -> None:
    page = tab.open(shown.server.address)
    page.evaluate("location.hash = '#example=1&position=7'; keepAddress()")
    page.locator("#example option:checked", has_text="test example 1").wait_for(state="attached")
    assert page.evaluate("[view.example, view.position]") == [1, 7]
    page.wait_for_url("**#*position=7*")


def test_a_file_says_that_it_cannot_run_what_a_link_asks_for(shown: Shown, tab: Tab) -> None:
    page = tab.open(f"{shown.file}#example=2&step=3&position=3&input={WORD}")
    assert "--serve can" in page.locator("#said").inner_text()
    assert page.evaluate("[view.example, view.step, view.position]") == [0, 3, 31]
    page.keyboard.press("e")
    assert page.locator("#said").inner_text() == ""
    page.wait_for_url("**#*example=1*")
    assert "input=" not in page.url


@pytest.mark.parametrize("position", [0, 16, 31])
def test_the_chosen_position_stays_in_view_on_a_phone(shown: Shown, browser: Any, position: int) -> None:
    inside = """([box, node]) => {
      const [a, b] = [document.querySelector(box), document.querySelector(node)].map((e) => e.getBoundingClientRect());
      const first = document.querySelector("#grid th").getBoundingClientRect().width;
      return b.left >= a.left + (box === "#gridbox" ? first : 0) - 1 && b.right <= a.right + 1;
    }"""
    tab = Tab(browser, width=390, height=844)
    page = tab.open(f"{shown.file}#position={position}")
    for key in ("", *",,,,,,,,,,", *".............."):
        if key:
            page.keyboard.press(key)
        assert page.evaluate(inside, ["#strip", ".token.chosen"])
        assert page.evaluate(inside, ["#gridbox", "#grid td.chosen"])
    scrolled = "[$('strip').scrollLeft, $('gridbox').scrollLeft]"
    page.evaluate("go({position: 31})")
    at_the_end = page.evaluate(scrolled)
    page.evaluate("go({position: 26, step: 3})")
    assert page.evaluate(scrolled) == at_the_end  # no further than needed
    tab.close()


@pytest.mark.parametrize(
    ("when", "told"),
    [
        ((4, 4, 0, 0), "right from loop 4 on."),
        ((4, 4, 8, 0), "right from loop 4 to 7; run on, it is wrong again."),
        ((2, 4, 5, 0), "first right after loop 2, and again after loop 4; run on, it is wrong again."),
        ((2, 0, 0, 0), "first right after loop 2, and does not stay right."),
        ((0, 0, 0, 0), "never right here within the 4 loops it was trained with."),
        ((0, 0, 0, 6), "within the 4 loops it was trained with; run on, it is first right after loop 6."),
    ],
    ids=str,
)
def test_when_it_is_right_is_told_without_contradiction(
    shown: Shown, tab: Tab, when: tuple[int, int, int, int], told: str
) -> None:
    page = tab.open(f"{shown.file}#step=8")
    for name, value in zip(("first", "stays", "lost", "late"), when, strict=True):
        page.evaluate(f"look().{name}[view.position] = {value}")
    assert told in page.evaluate("summary()")


def test_probes_are_marked_where_they_are_better_than_guessing(shown: Shown, tab: Tab) -> None:
    page = tab.open(f"{shown.file}#model={LOOPED}")
    assert [cell.inner_text() for cell in page.locator("#probes tr").first.locator("th").all()][-2:] == [
        "most frequent",
        "control",
    ]
    probes = shown.models.subjects[LOOPED].probes
    assert probes is not None
    marked = page.locator("#probes td.share").all_inner_texts()
    by_row = sorted(probes.scores, key=lambda one: one.quantity)
    assert ["●" in text for text in marked] == [is_sure(one) for one in by_row]
    page.evaluate("model().probes.forEach((one) => { one.sure = false; })")
    page.evaluate("go({step: 4, position: 20})")
    assert page.locator(".hopmark.known").count() == 0


def test_what_is_printed_has_its_matrices(shown: Shown, tab: Tab) -> None:
    page = tab.open(shown.file)
    drawn = "[...document.querySelectorAll('#matrices canvas')].filter((c) => c.width === 32).length"
    assert page.evaluate(drawn) == 0
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(drawn) == 4


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
    columns = page.locator("#grid th[scope=col]").all_inner_texts()
    letters = [task().vocabulary[token] for token in draw_examples(task(), 0, 1)[0][1]]
    assert [text.split() for text in columns] == [[str(i), letter] for i, letter in enumerate(letters)]
    assert page.locator("#strip .tick").all_text_contents() == ["0", "5", "10", "15", "20", "25", "30"]
