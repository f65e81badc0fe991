"""Text and tasks mixed into one corpus, evenly: always next is a document of what is furthest behind its share.

Text is read once. Beside it a task has a share of the training tokens, and nothing is held out but text: the loss on a
task's document is mostly that of its random letters, and what tells is accuracy, on the task's own test split. Without
text a task has a number of documents, of which the shares for validation and test are drawn from its own splits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from loopt.errors import InputError
from loopt.source import SPLITS, Split
from loopt.text.corpus import Corpus, Position, sources_of
from loopt.text.encoding import BATCH, Encoders, Ids, Piece, batches
from loopt.text.index import Index, Recipe
from loopt.text.splits import split_of
from loopt.text.task_documents import TaskDocuments
from loopt.text.task_spec import TASK_PREFIX, TaskSpec


@dataclass(frozen=True)
class Stream:
    """Documents in a fixed order, with their weight in the mixture."""

    corpus: Corpus
    sources: tuple[int, ...]
    """The number, among the sources that the user named, of each source of the corpus."""
    split: Split | None
    """The split of all its documents; none: a hash of each decides."""
    weight: float
    """Its share of the training tokens beside text, otherwise its number of documents."""

    def batches(self, recipe: Recipe, position: Position, most: int | None, characters: int) -> Iterator[list[Piece]]:
        """Yields the documents after ``position``, at most so many, in batches of about so many characters."""

        def split(text: bytes) -> Split:
            return self.split or split_of(text, recipe.validation, recipe.test)

        return batches(islice(self.corpus.documents(position), most), split, characters)


@dataclass(frozen=True)
class Mixture:
    """The streams of a corpus, text first."""

    streams: tuple[Stream, ...]
    has_text: bool

    @classmethod
    def find(cls, specs: Sequence[str], text_field: str, validation: float, test: float) -> Mixture:
        """Returns the mixture that ``specs`` name: files, folders, globs, datasets of the hub, and tasks."""
        if not specs:
            raise InputError("source: none given; allowed are files, folders, globs, hf:NAME and task:NAME")
        tasks = {number: TaskSpec.parse(spec) for number, spec in enumerate(specs) if spec.startswith(TASK_PREFIX)}
        has_text = len(tasks) < len(specs)
        _check_amounts(specs, tasks, has_text)
        if not has_text:
            return cls(tuple(_streams_without_text(tasks, validation, test)), has_text)
        texts = {n: list(sources_of(spec, text_field)) for n, spec in enumerate(specs) if n not in tasks}
        corpus = Corpus([source for sources in texts.values() for source in sources])
        numbers = tuple(number for number, sources in texts.items() for _ in sources)
        left = 1 - sum(spec.share or 0 for spec in tasks.values())
        streams = [Stream(corpus, numbers, None, left)]
        for number, spec in tasks.items():
            drawn = Corpus([TaskDocuments(spec.task, "train")])
            streams.append(Stream(drawn, (number,), "train", spec.share or 0))
        return cls(tuple(streams), has_text)

    def pieces(self, index: Index, encoders: Encoders) -> Iterator[tuple[int, Piece, Ids]]:
        """Yields what comes after ``index``: the pieces of all documents with their token ids, and the number of the
        stream that each is from. It ends with the text or, without text, with the last document."""
        heaviest = max(stream.weight for stream in self.streams)
        written = [self._written(index, stream) for stream in self.streams]
        encoded = []
        for stream, position, done in zip(self.streams, index.positions, written, strict=True):
            most = None if self.has_text else int(stream.weight) - done
            characters = int(min(BATCH, index.recipe.shard_bytes) * stream.weight / heaviest)  # one shard's at most
            batches = stream.batches(index.recipe, position, most, characters)
            encoded.append(encoders.encode(batches, endless=stream.split is not None))
        while True:
            behind = min(range(len(encoded)), key=lambda number: written[number] / self.streams[number].weight)
            if not self.has_text and written[behind] >= self.streams[behind].weight:
                return
            for piece, ids in encoded[behind]:
                if not self.has_text:
                    written[behind] += piece.ends_document
                elif piece.split == "train":
                    written[behind] += len(ids)
                yield behind, piece, ids
                if piece.ends_document:
                    break
            else:
                return

    def _written(self, index: Index, stream: Stream) -> int:
        """Returns how much of a stream the index has, counted as its weight is."""
        sources = set(stream.sources)
        if self.has_text:
            return sum(index.tokens("train", source) for source in sources)
        assert stream.split
        return sum(index.documents(stream.split, source) for source in sources)

    def end(self, positions: Sequence[Position]) -> tuple[Position, ...]:
        """Returns the positions after everything has been read, given those after the last documents."""
        if not self.has_text:
            return tuple(positions)
        text_end = self.streams[0].corpus.end
        assert text_end
        return text_end, *positions[1:]

    def has_changed(self, index: Index, finished: bool) -> bool:
        """Tells whether the documents that an index has are others than they were or, if it is finished, not all."""
        if len(index.positions) != len(self.streams):
            return True
        if finished and self.has_text and not self.streams[0].corpus.is_all_of(index.positions[0]):
            return True
        pairs = zip(self.streams, index.positions, strict=True)
        return any(stream.corpus.has_changed(position) for stream, position in pairs)


def _streams_without_text(tasks: dict[int, TaskSpec], validation: float, test: float) -> Iterator[Stream]:
    for number, spec in tasks.items():
        documents = spec.documents or 0
        held_out = {"validation": round(documents * validation), "test": round(documents * test)}
        counts = {"train": documents - sum(held_out.values())} | held_out
        for split in SPLITS:
            if counts[split]:
                yield Stream(Corpus([TaskDocuments(spec.task, split)]), (number,), split, counts[split])


def _check_amounts(specs: Sequence[str], tasks: dict[int, TaskSpec], has_text: bool) -> None:
    """Raises an InputError unless every task, each given once, has a share beside text, or else a number."""
    first_of: dict[str, int] = {}
    for number, spec in tasks.items():
        shown = f"source {specs[number][:200]}"
        if first_of.setdefault(str(TaskSpec(spec.task, None, None)), number) != number:
            raise InputError(f"{shown}: the same task twice; allowed is once")
        if has_text and (spec.share is None or spec.documents is not None):
            raise InputError(
                f"{shown}: how much of it? Beside text, allowed is a share of the tokens, such as share=0.1"
            )
        if not has_text and (spec.documents is None or spec.share is not None):
            raise InputError(f"{shown}: how much of it? Without text, allowed is a number, such as documents=100000")
    total = sum(spec.share or 0 for spec in tasks.values())
    if has_text and total >= 1:
        raise InputError(f"share: those of the tasks add up to {total:g}; allowed is less than 1, the rest is text")
