"""The first stage: the questions of a task become requests, each with shots of its own."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from random import Random

from loopt.errors import InputError, require
from loopt.evaluation import primitives
from loopt.evaluation.catalogue import EvalTask
from loopt.evaluation.data import load_questions
from loopt.evaluation.exchange import Request
from loopt.evaluation.questions import Question

STOP = ("\n",)


def render(task: EvalTask, data_dir: Path | None, limit: int | None, seed: int = 0) -> list[Request]:
    """Returns the requests of a task, at most ``limit``, from local files or, without ``data_dir``, from the hub.

    Questions come in the order of the hashes of their ids, so that the first few are from all over the set, the same
    ones whatever the seed, and among any more. Which shots a question has depends on the seed and its id.
    """
    require(limit is None or limit >= 1, "limit", limit, "1 or more", InputError)
    require(seed >= 0, "seed", seed, "0 or more", InputError)
    if task.data is None:
        return primitives.requests(task, limit, seed)
    scored, pool = load_questions(task, task.data, data_dir)
    if len(pool) < task.shots:
        raise InputError(
            f"data set {task.data.folder}: {task.name} takes {task.shots} shots and there are {len(pool)} questions "
            f"for them; allowed are more lines in {task.data.folder}/fewshot_pool.jsonl or eval.jsonl"
        )
    scored.sort(key=lambda question: sha256(question.id.encode()).digest())
    return [
        Request(
            task.name,
            question.id,
            tuple(shot.solved() for shot in draw_shots(pool, task.shots, Random(f"{seed} {task.name} {question.id}"))),
            question.prompt,
            question.golds,
            STOP,
            task.max_new_tokens,
        )
        for question in scored[:limit]
    ]


def draw_shots(pool: list[Question], count: int, random: Random) -> list[Question]:
    """Draws different questions; where some have no answer, both kinds are drawn in turns and then shuffled."""
    kinds = [[one for one in pool if one.answerable == answerable] for answerable in (True, False)]
    kinds = [random.sample(kind, min(count, len(kind))) for kind in kinds if kind]
    turns = [kind[turn] for turn in range(count) for kind in kinds if turn < len(kind)][:count]
    random.shuffle(turns)
    return turns
