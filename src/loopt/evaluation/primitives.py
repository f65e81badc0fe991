"""Reasoning primitives: variable assignment, generated, from the documents that no training corpus may hold.

Problems and shots are those of ``loopt.tasks.VariableAssignment`` and stand as it writes them, a newline after each
shot, so that a corpus with the task mixed in has the same form.
"""

from __future__ import annotations

from itertools import islice

from loopt.evaluation.catalogue import EvalTask
from loopt.evaluation.exchange import Request

EXAMPLES = 1000
"""How many are generated where no limit is given."""
SEED_STRIDE = 2**24
"""How far apart, among the examples of the task, the first ones of two seeds are."""


def requests(task: EvalTask, limit: int | None, seed: int) -> list[Request]:
    """Returns the first questions of the test split."""
    from loopt.tasks.assignment import VariableAssignment  # torch, which tasks need, takes seconds to import
    from loopt.text.task_documents import TaskDocuments

    assignment = VariableAssignment(depth=task.depth, rendering=task.rendering, shots=task.shots)
    documents = TaskDocuments(assignment, "test").documents(seed * SEED_STRIDE)
    found = []
    for number, document in enumerate(islice(documents, limit or EXAMPLES)):
        *shots, asked = _problems(document.text, task.rendering)
        question, answer = asked.rsplit(" ", 1)
        found.append(
            Request(
                task.name, f"{seed}-{number}", tuple(shots), question, (answer.strip(),), ("\n",), task.max_new_tokens
            )
        )
    return found


def _problems(document: str, rendering: str) -> list[str]:
    """Returns the solved problems of a document, each with its newline; in code, each ends with a line that prints."""
    problems = [""]
    for line in document.splitlines(keepends=True):
        problems[-1] += line
        if rendering == "math" or line.startswith("print("):
            problems.append("")
    return problems[:-1]
