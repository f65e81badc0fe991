"""Open book questions: the answer is to be found in a passage, or, in SQuADv2, is not to be found.

>>> from loopt.evaluation.rows import Row
>>> row = {"id": "1", "context": "Ada Vint dug the canal.", "question": "Who dug it?", "answers": ["Ada Vint"]}
>>> print(questions(Row(row, "row 1"))[0].solved().rstrip())
Passage: Ada Vint dug the canal.
Question: Who dug it?
Answer: Ada Vint
"""

from __future__ import annotations

from loopt.evaluation.questions import UNANSWERABLE, Question, about, ask
from loopt.evaluation.rows import Row


def questions(row: Row, may_be_unanswerable: bool = False) -> list[Question]:
    """Returns the question of a row; where it may have no answers, ``unanswerable`` is the answer then."""
    passage, asked = row.text("context"), row.text("question")
    golds = (row.answers() or (UNANSWERABLE,)) if may_be_unanswerable else row.answered()
    return [Question(row.text("id"), passage, about(passage) + ask(asked), golds)]
