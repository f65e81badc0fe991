"""Closed book questions: nothing but the question is shown, and the answer has to be remembered.

>>> from loopt.evaluation.rows import Row
>>> [question] = questions(Row({"id": "1", "question": "Who dug the Ostrel canal?", "answers": ["Ada Vint"]}, "row 1"))
>>> print(question.solved().rstrip())
Question: Who dug the Ostrel canal?
Answer: Ada Vint
"""

from __future__ import annotations

from loopt.evaluation.questions import Question, ask
from loopt.evaluation.rows import Row


def questions(row: Row) -> list[Question]:
    """Returns the question of a row; a passage that the row may have is left out."""
    asked = row.text("question")
    return [Question(row.text("id"), asked, ask(asked), row.answered())]
