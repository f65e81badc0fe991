"""The paper's 19 downstream tasks, in its four groups: shots, metric and data of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from loopt.errors import InputError
from loopt.evaluation.data_sets import DATA_SETS, DataSet

Group = Literal["closed_book", "open_book", "math_word_problems", "primitives"]
Metric = Literal["exact_match", "f1", "f1_no_answer", "f1_drop", "f1_quac", "f1_coqa", "number_match"]

GROUPS: tuple[Group, ...] = get_args(Group)
GROUP_TITLES: dict[Group, str] = {
    "closed_book": "Closed book QA",
    "open_book": "Open book QA",
    "math_word_problems": "Math word problems",
    "primitives": "Reasoning primitives",
}
SUITE = "paper"
"""The word for all tasks."""


@dataclass(frozen=True)
class EvalTask:
    """One downstream task."""

    name: str
    title: str
    group: Group
    data: DataSet | None
    """None where the questions are generated."""
    metric: Metric
    shots: int
    max_new_tokens: int
    """The most tokens to generate for an answer."""
    context: bool = True
    """Whether the passage, where the data has one, is shown."""
    paper_shots: bool = False
    """Whether the paper says how many shots; otherwise the number is our choice."""
    depth: int = 0
    """Of variable assignment: the copies between a question and its number."""
    rendering: Literal["math", "code"] = "math"
    """Of variable assignment."""


_SETS = {data.folder: data for data in DATA_SETS}


def _question(name: str, title: str, folder: str, shots: int = 5) -> EvalTask:
    return EvalTask(name, title, "closed_book", _SETS[folder], "exact_match", shots, 24, context=False)


def _passage(name: str, title: str, folder: str, metric: Metric, shots: int, tokens: int = 32) -> EvalTask:
    return EvalTask(name, title, "open_book", _SETS[folder], metric, shots, tokens)


def _math(name: str, title: str) -> EvalTask:
    return EvalTask(name, title, "math_word_problems", _SETS[name], "number_match", 5, 16, paper_shots=True)


def _assignment(rendering: Literal["math", "code"], depth: int) -> EvalTask:
    title = f"Variable assignment, {rendering}, depth {depth}"
    return EvalTask(
        f"assignment_{rendering}_{depth}",
        title,
        "primitives",
        None,
        "exact_match",
        5,
        4,
        paper_shots=True,
        depth=depth,
        rendering=rendering,
    )


TASKS: dict[str, EvalTask] = {
    task.name: task
    for task in (
        _question("triviaqa", "TriviaQA", "triviaqa"),
        _question("tydiqa_nocontext", "TydiQA-NoContext", "tydiqa_goldp_en"),
        _question("nq_open", "Natural Questions", "nq_open"),
        _question("webquestions", "Web Questions", "webquestions"),
        _passage("tydiqa_goldp", "TydiQA-GoldP", "tydiqa_goldp_en", "f1", 1, tokens=64),
        _passage("squad_v2", "SQuADv2", "squad_v2", "f1_no_answer", 2),
        _passage("drop", "DROP", "drop", "f1_drop", 1),
        _passage("quac", "QuAC", "quac", "f1_quac", 0, tokens=64),
        _passage("coqa", "CoQA", "coqa", "f1_coqa", 0),
        _math("asdiv", "ASDiv"),
        _math("mawps_addsub", "MAWPS AddSub"),
        _math("mawps_multiarith", "MAWPS MultiArith"),
        _math("mawps_singleeq", "MAWPS SingleEq"),
        _math("mawps_singleop", "MAWPS SingleOp"),
        _math("svamp", "SVAMP"),
        _assignment("math", 0),
        _assignment("math", 1),
        _assignment("code", 0),
        _assignment("code", 1),
    )
}


_WORDS = {
    **{group: title[0].lower() + title[1:] for group, title in GROUP_TITLES.items()},
    **{task.name: task.title for task in TASKS.values()},
    **{
        task.name: f"variable assignment as {task.rendering}, depth {task.depth}"
        for task in TASKS.values()
        if task.group == "primitives"
    },
    "tydiqa_nocontext": "TydiQA without context",
    "tydiqa_goldp": "TydiQA with context",
    "all_tasks": "15 tasks",
    "choice": "by choice",
}


def metric_in_words(metric: str) -> str:
    """Returns the name of a metric as a reader would say it; one that is not of the tasks with spaces in it.

    >>> metric_in_words("open_book/bits_per_byte"), metric_in_words("assignment_code_0/choice")
    ('open book QA, bits per byte', 'variable assignment as code, depth 0, by choice')
    >>> metric_in_words("validation_perplexity")
    'validation perplexity'
    """
    return ", ".join(_WORDS.get(part, part.replace("_", " ")) for part in metric.split("/"))


def select(words: Sequence[str]) -> list[EvalTask]:
    """Returns the tasks that ``words`` name, each once, in the order of the catalogue.

    >>> [task.name for task in select(["primitives", "svamp", "assignment_math_0"])][:3]
    ['svamp', 'assignment_math_0', 'assignment_math_1']
    """
    for word in words:
        if word != SUITE and word not in GROUPS and word not in TASKS:
            allowed = ", ".join([SUITE, *GROUPS, *TASKS])
            raise InputError(f"suite: no task or group {word[:40]!r}; allowed are {allowed}")
    if not words:
        raise InputError(f"suite: nothing named; allowed are {SUITE}, a group or a task")
    return [task for task in TASKS.values() if {SUITE, task.group, task.name} & set(words)]
