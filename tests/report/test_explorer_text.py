"""Whatever stands in a page of thoughts is text, and the page runs its own script alone."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

from look import contrast
from loopt.commands.explorer import FIRST_TEXT, make_page
from loopt.commands.thoughts import Options
from loopt.errors import InputError
from loopt.report.explorer import HERE, SCRIPTS, render_explorer
from loopt.training import train
from tiny_runs import CPU
from tiny_text_runs import tiny_text

NASTY = """</script><script>alert("1 & 2")</script><!--'\u2028"""


def page(serve: bool = False) -> str:
    example = {"problem": {"kind": "text"}, "words": [NASTY], "tokens": [0], "title": NASTY}
    models = [{"name": NASTY, "note": NASTY}]
    facts = {"top": 3, "sure": 0.9, "command": f"loopt {NASTY}", "version": NASTY}
    return render_explorer(NASTY, models, [example], serve=serve, **facts)  # type: ignore[arg-type]


def test_text_stays_text() -> None:
    shown = page()
    assert shown.count("<script") == 2
    assert shown.count("</script>") == 2
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', shown, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["models"][0]["name"] == NASTY
    assert "\u2028" not in data[1]
    assert "alert(" not in shown.replace(data[1], "").replace("alert(&quot;", "")


def test_models_of_text_are_served_before_anything_is_typed(tmp_path: Path) -> None:
    train(tiny_text(), tmp_path / "lm", CPU)
    _, shown = make_page(Options(runs=(tmp_path / "lm",), serve=True, device="cpu"), [])
    placeholder = re.search(r'placeholder="([^"]*)"', shown)
    assert placeholder is not None
    assert placeholder[1]
    assert FIRST_TEXT.startswith(placeholder[1].strip())
    with pytest.raises(InputError, match="which text"):
        make_page(Options(runs=(tmp_path / "lm",), page=True, device="cpu"), [])


def test_only_its_own_script_may_run_and_only_a_server_is_asked() -> None:
    script = "\n".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    for serve, connect in ((False, "'none'"), (True, "'self'")):
        shown = page(serve)
        assert f"<script>{script}</script>" in shown
        assert f"script-src 'sha256-{digest}'; connect-src {connect};" in shown
    assert not re.search(r"\.(inner|outer)HTML|insertAdjacentHTML|document\.write|\beval\(", script)


def test_text_can_be_read_by_day_and_by_night() -> None:
    style = (HERE / "style.css").read_text(encoding="utf-8")
    day, _, night = style.partition("@media (prefers-color-scheme: dark)")
    for scheme in (day, night):
        shade = dict(re.findall(r"--(\w+): (#\w{6})", scheme))
        pairs = [(text, "page") for text in ("ink", "muted", "looped", "deep", "no")]
        pairs += [("ink", ground) for ground in ("soft", "tint", "right", "wrong")]
        pairs += [("yes", "right"), ("no", "wrong"), ("page", "looped")]
        for text, ground in pairs:
            assert contrast(shade[text], shade[ground]) >= 4.5, (text, ground)
    used = set(re.findall(r"var\(--(\w+)\)", style)) - {"share"}
    assert used <= set(re.findall(r"--(\w+): #", day)) & set(re.findall(r"--(\w+): #", night))
