"""Which learner trains on which kind of source."""

from __future__ import annotations

from loopt.source import Source
from loopt.tasks import Task
from loopt.text.source import Text
from loopt.training.learner import Learner
from loopt.training.task_learner import TaskLearner
from loopt.training.text_learner import TextLearner

LEARNERS: dict[type[Source], type[Learner]] = {Task: TaskLearner, Text: TextLearner}  # type: ignore[type-abstract]


def learner_for(source: Source) -> type[Learner]:
    """Returns the kind of learner that trains on this source."""
    return next(learner for kind, learner in LEARNERS.items() if isinstance(source, kind))
