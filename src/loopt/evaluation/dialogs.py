"""Dialogs about a passage (QuAC, CoQA): every turn is a question, and the turns before it are shown with their answers.

What a model answered earlier is not shown to it: a turn depends on the gold answers before it alone.

>>> from loopt.evaluation.rows import Row
>>> turns = [{"question": "Who dug it?", "answers": ["Ada Vint"]}, {"question": "When?", "answers": ["in 1801"]}]
>>> dialog = Row({"id": "d", "context": "Ada Vint dug the canal in 1801.", "turns": turns}, "row 1")
>>> print(questions(dialog)[1].prompt)
Passage: Ada Vint dug the canal in 1801.
Question: Who dug it?
Answer: Ada Vint
Question: When?
Answer:
"""

from __future__ import annotations

from loopt.evaluation.questions import CANNOT_ANSWER, Question, about, ask
from loopt.evaluation.rows import Row


def questions(row: Row) -> list[Question]:
    """Returns a question for every turn of a dialog."""
    name, passage = row.text("id"), row.text("context")
    shown, found = about(passage), []
    for number, turn in enumerate(row.turns()):
        shown += ask(turn.text("question"))
        golds = settle_cannot_answer(turn.answered())
        found.append(Question(f"{name}#{number}", passage, shown, golds))
        shown += f" {golds[0]}\n"
    return found


def settle_cannot_answer(references: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the references that count, by the rule of QuAC's scorer: where at least half of them say CANNOTANSWER,
    that is the one answer, and otherwise those that say so are left out."""
    spans = tuple(reference for reference in references if reference != CANNOT_ANSWER)
    return spans if 2 * len(spans) > len(references) else (CANNOT_ANSWER,)
