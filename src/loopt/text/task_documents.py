"""The documents of a task, as a source of text without an end.

An example is a function of seed, split and index. So that no document of one split is in another, even where a task has
few different examples, the hash of a document has to agree with the split that its example was drawn for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, islice
from typing import TYPE_CHECKING

from loopt.errors import InputError
from loopt.source import Split
from loopt.text.splits import split_of
from loopt.text.task_spec import TaskSpec
from loopt.text.text_files import Document

if TYPE_CHECKING:  # torch, which tasks need, takes seconds to import
    from loopt.tasks import Task

SEED = 0
HELD_OUT = 1 / 16
"""The share of a task's documents that are for validation only, and as many for test only, in every corpus."""
MOST_SKIPPED = 4096
"""The examples to draw for one document: where these are all different, the hash of one agrees, but for e^-264."""
DRAWN_TOKENS = 2**16
"""About how many tokens of examples to draw at a time."""
VERSION_DOCUMENTS = 8


class TaskDocuments:
    """The documents of one split of a task, in the order of their examples: a ``DocumentSource`` without an end."""

    size = None

    def __init__(self, task: Task, split: Split) -> None:
        self.name = str(TaskSpec(task, None, None))
        self._task = task
        self._split = split
        self._drawn_at_once = max(1, min(256, DRAWN_TOKENS // task.length))
        first = [document.text for document in islice(self.documents(0), VERSION_DOCUMENTS)]
        self.version = hashlib.sha256("\n\n".join([self.name, split, *first]).encode()).hexdigest()
        """The settings and the first documents: nearly any change to how a task draws or writes changes these."""

    def documents(self, start: int) -> Iterator[Document]:
        """Yields the documents of the examples from ``start`` on that have the right hash."""
        skipped = 0
        for first in count(start, self._drawn_at_once):
            with _one_thread():
                examples = self._task.sample(range(first, first + self._drawn_at_once), SEED, self._split)
            for index, tokens in enumerate(examples.tokens.tolist(), first):
                text = self._task.document(tokens)
                if split_of(text.encode(), HELD_OUT, HELD_OUT) == self._split:
                    skipped = 0
                    yield Document(text, index + 1, 0)
                    continue
                skipped += 1
                if skipped == MOST_SKIPPED:
                    raise InputError(
                        f"source {self.name}: none of {MOST_SKIPPED} examples in a row is a {self._split} document; "
                        "allowed are settings with more different examples"
                    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keeps torch from using more threads: for tensors this small they only wait, on cores that workers need."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
