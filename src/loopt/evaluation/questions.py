"""A question with its prompt and answers: what each form of data is turned into."""

from __future__ import annotations

from dataclasses import dataclass

UNANSWERABLE = "unanswerable"
"""What a model is to say where SQuADv2's passage has no answer."""
CANNOT_ANSWER = "CANNOTANSWER"
"""The same in QuAC."""


@dataclass(frozen=True)
class Question:
    """One question."""

    id: str
    topic: str
    """What it is about, the passage or else the question itself: no shot shares it with a question that is scored."""
    prompt: str
    golds: tuple[str, ...]

    @property
    def answerable(self) -> bool:
        return self.golds[0] not in (UNANSWERABLE, CANNOT_ANSWER)

    def solved(self) -> str:
        """Returns the question as a shot."""
        return f"{self.prompt} {self.golds[0]}\n\n"


def ask(question: str) -> str:
    """Returns how every question is asked."""
    return f"Question: {question}\nAnswer:"


def about(passage: str) -> str:
    """Returns how a passage is shown before its questions."""
    return f"Passage: {passage}\n"
