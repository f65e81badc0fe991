"""Math word problems: a story with a question, answered by a number without its unit.

>>> from loopt.evaluation.rows import Row
>>> row = {"id": "1", "body": "Ada has 3 pears.", "question": "How many are 2 more?", "answer": "5 (pears)"}
>>> print(questions(Row(row, "row 1"))[0].solved().rstrip())
Question: Ada has 3 pears. How many are 2 more?
Answer: 5
"""

from __future__ import annotations

import re

from loopt.evaluation.questions import Question, ask
from loopt.evaluation.rows import Row


def questions(row: Row) -> list[Question]:
    """Returns the problem of a row."""
    problem = row.text("question")
    if row.has("body"):
        problem = f"{row.text('body')} {problem}"
    return [Question(row.text("id"), problem, ask(problem), (without_units(row.text("answer")),))]


def without_units(answer: str) -> str:
    """Returns an answer without the units that ASDiv writes in brackets.

    >>> without_units("9 (apples)"), without_units("5 (years old); 15 (years old)"), without_units("-(1/3)")
    ('9', '5; 15', '-(1/3)')
    """
    return re.sub(r" \([^)]*\)", "", answer)
