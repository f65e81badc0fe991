"""i-GSM problems read with regular expressions and Python alone, and the settings to try them with."""

from __future__ import annotations

import re

from hypothesis import strategies as st

from loopt.errors import InputError
from loopt.tasks import IGNORE, IGSM
from loopt.tasks.igsm_text import ENTITIES

# Table 2 of the paper, with the brackets that its own worked answer computes with.
SAMPLE = (
    "E#I := 4. E#J := E#I. K#N := I#N + J#O + F#K. F#K := E#J. J#O := F#K + K#O + E#J. H#J := E#J + F#K. "
    "I#P := L#M + I#N + K#O. I#M := J#O + J#P + F#K. J#P := H#J - F#K. L#M := I#N + J#P + F#K. "
    "I#N := 2 * (J#P + H#J + E#I). K#O := J#P + I#N + E#J. I#P?"
)

seeds = st.integers(-(2**63), 2**63 - 1)
moduli = st.sampled_from([3, 5, 7, 11, 23])


@st.composite
def even_tasks(draw: st.DrawFn) -> IGSM:
    statements = draw(st.integers(3, 20))
    fewest = draw(st.integers(1, statements))
    needed = (fewest, draw(st.integers(fewest, statements)))
    return IGSM(modulus=draw(moduli), law="even", statements=statements, needed=needed)


@st.composite
def light_tasks(draw: st.DrawFn) -> IGSM:
    most_levels = draw(st.integers(2, 4))
    levels = (draw(st.integers(2, most_levels)), most_levels)
    edges = draw(st.integers(4 * (most_levels - 1), 16 * (most_levels - 1)))
    return IGSM(modulus=draw(moduli), operations=draw(st.integers(1, min(edges, 20))), edges=edges, levels=levels)


def text_of(task: IGSM, tokens: list[int]) -> str:
    """Returns the problem without its padding, with a space between tokens."""
    words = task.vocabulary
    return " ".join(words[token] for token in tokens).replace("<pad> ", "")


def right_sides(text: str) -> tuple[dict[str, str], str]:
    """Returns what each parameter is defined as, and the query, from the text with regular expressions only."""
    *statements, query = text.replace(" ", "").split(".")
    found: dict[str, str] = {}
    for statement in statements:
        name, right = statement.split(":=")
        assert name not in found
        found[name] = right
    assert query.endswith("?")
    return found, query[:-1]


def names_in(right_side: str) -> list[str]:
    return re.findall("[A-P]#[A-P]", right_side)


def uses_by_name(task: IGSM, tokens: list[int]) -> tuple[dict[str, list[str]], str]:
    """Returns the parameters that each one is defined by, and the query."""
    found, query = right_sides(text_of(task, tokens))
    return {name: names_in(right) for name, right in found.items()}, query


def depths(uses: dict[str, list[str]], query: str) -> dict[str, int]:
    """Returns, for each parameter the query needs, the statements on its longest chain down to a constant; each after
    those that it uses."""
    found: dict[str, int] = {}

    def depth(name: str, above: tuple[str, ...]) -> int:
        assert name not in above
        if name not in found:
            found[name] = 1 + max((depth(used, (*above, name)) for used in uses[name]), default=0)
        return found[name]

    depth(query, ())
    return found


def operations_of(right_side: str) -> int:
    """Returns how many operations a statement takes, as Ye et al. count them: one that computes nothing is one too."""
    return max(1, len(re.findall(r"[-+*]", right_side)))


def check_labels_so_far(task: IGSM, tokens: list[int], targets: list[int]) -> None:
    """Compares labels with the solver's, which is asked for each parameter that a statement names, after the statements
    that are complete by then, and refuses what does not follow from them."""
    symbols = [task.vocabulary[token] for token in tokens]
    told, name, begin = "", "", symbols.count("<pad>")  # statements so far, what the present one defines, its start
    for i, symbol in enumerate(symbols[:-4]):
        query = ""
        if symbol in ENTITIES and symbols[i - 1] == "#":
            query = "".join(symbols[i - 2 : i + 1])
            if symbols[i + 1] == ":=":
                name, query = query, ""
        if symbol == ".":
            told, query = f"{told} {' '.join(symbols[begin : i + 1])}", name
            begin = i + 1
        try:
            wanted = task.solve(task.encode(f"{told} {query}?"))[-1] if query else IGNORE
        except InputError as error:
            if "is used and not defined" not in str(error):
                raise
            wanted = IGNORE
        assert targets[i] == wanted
    assert targets[-4:-1] == [IGNORE] * 3
