"""The page of latent thoughts: one self-contained HTML file that shows a problem being solved, loop by loop."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from loopt.analysis.exploration import ERRORS, UNTYPED

HERE = Path(__file__).parent
SCRIPTS = ("core.js", "problem.js", "answers.js", "inside.js")
LONGEST_TEXT = 20_000
"""Characters that a person may type into the page."""

HEADINGS = {
    "phop": "Hops over the letters",
    "addition": "The sum, column by column",
    "group": "The word and its partial products",
    "igsm": "What depends on what",
}

INTRODUCTIONS = {
    "phop": "The model reads the letters and has to make {p} hops. A hop goes back to the last earlier place with the "
    "same letter, and on to the letter after it; the letter where the last hop lands is the answer, and ⊥ where there "
    "is no such place. Move the slider: each loop runs the same layers again, and fills the hops that can by then be "
    "read from the model's state.",
    "addition": "The model reads numbers and writes their sum, one digit after the other. Move the slider: each loop "
    "runs the same layers again, and below each column stands the digit that it would write if it stopped there.",
    "group": "The model reads elements of a group and has to multiply them all. Move the slider: each loop runs the "
    "same layers again, and fills the partial products that can by then be read from the model's state.",
    "igsm": "The model reads definitions of parameters, of which some use others, and is asked for the value of one, "
    "marked with “?”. Move the slider: each loop runs the same layers again, and fills the parameters whose value "
    "can by then be read from the model's state where they are defined; of the one that is asked for, what it answers.",
    "text": "The model reads a text. Move the slider: each loop runs the same layers again, and below each token "
    "stands the one that the model would expect next if it stopped there.",
    "tokens": "The model reads a problem. Move the slider: each loop runs the same layers again, and below each token "
    "stands what the model would answer there if it stopped.",
}


def render_explorer(
    title: str,
    models: Sequence[dict[str, Any]],
    examples: Sequence[dict[str, Any]],
    *,
    top: int,
    sure: float,
    command: str,
    version: str,
    serve: bool = False,
) -> str:
    """Returns the page for models and examples as ``loopt.analysis.exploration`` describes them. With ``serve`` it asks
    the server that it came from about what the user types; otherwise it asks nobody."""
    problem = examples[0]["problem"]
    kind = problem["kind"]
    script = "\n".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    data = {"models": models, "examples": examples, "top": top, "serve": serve}
    tokens = examples[0]["tokens"]
    words = [word for token in tokens if (word := examples[0]["words"][token]) not in UNTYPED]
    placeholder = ("" if kind in ("phop", "addition", "text") else " ").join(words[:40])
    return Template((HERE / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(title),
        intro=escape(INTRODUCTIONS[kind].format(p=problem.get("p"))),
        problem_heading=escape(HEADINGS.get(kind, "Token by token")),
        style=(HERE / "style.css").read_text(encoding="utf-8"),
        script=script,
        script_hash="sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        connect="'self'" if serve else "'none'",
        data=json_in_html(data),
        longest_text=LONGEST_TEXT,
        placeholder=escape(placeholder),
        sure=f"{sure:.0%}",
        errors=f"{ERRORS:.0%}",
        command=escape(command),
        version=escape(version),
    )


def json_in_html(data: Any) -> str:
    """Returns data as JSON that can stand in a script element: no text in it can end the element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
