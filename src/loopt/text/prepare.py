"""Tokenizing text into shards. Killed at any moment and started again, it resumes and ends with the same bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

import numpy as np

from loopt.errors import InputError, require
from loopt.files import explain_os_errors, put_in_place, temporary_of, try_lock, write_atomically
from loopt.source import SPLITS
from loopt.text.corpus import START
from loopt.text.encoding import Encoders, Piece
from loopt.text.index import INDEX, LARGEST_VOCABULARY, TOKENIZER, UNFINISHED, Index, Recipe, shard_name
from loopt.text.mixture import Mixture
from loopt.text.shards import ShardWriters, sha256_of
from loopt.text.task_spec import TASK_PREFIX, TaskSpec
from loopt.text.tokenizer import END_OF_DOCUMENT, TokenizerFile

LOCK = ".lock"
MOST_SHARD_BYTES = 2**40
MOST_WORKERS = 1024
REPORTED_TOKENS = 2**18


@dataclass(frozen=True)
class Settings:
    """Which text to prepare, and how."""

    source: tuple[str, ...]
    """Files, folders or globs of .txt or .md (one document each), .jsonl or .parquet, also with .gz, .xz or .zst;
    hf:NAME[:CONFIG[:SPLIT]], a dataset of the Hugging Face hub, streamed;
    or, in quotes, a task to mix in by its share of the training tokens,
    "task:assignment?depth=1&shots=5&share=0.1" (without text, by a number of documents: documents=100000)."""
    tokenizer: str
    """A file of the tokenizers package, or a name on the Hugging Face hub."""
    text_field: str = "text"
    """The field of a JSON line or a row that has the text."""
    validation: float = 0.01
    """Share of the documents for validation, which chooses checkpoints; a hash of the document decides."""
    test: float = 0.01
    """Share of the documents for test, likewise; neither training nor the choice of a checkpoint sees them."""
    end_of_document: str = END_OF_DOCUMENT
    """The token that follows every document."""
    id_type: Literal["auto", "uint16", "uint32"] = "auto"
    """How token ids are stored; auto takes the smallest type that the vocabulary fits in."""
    shard_bytes: int = 2**28
    """Bytes of text in a shard; a killed process loses at most the work on one shard."""

    def __post_init__(self) -> None:
        several = isinstance(self.source, tuple) and all(isinstance(one, str) for one in self.source)
        require(several, "source", repr(self.source), 'a tuple of texts, such as ("texts/",)')
        for split in ("validation", "test"):
            require(0 <= getattr(self, split) < 1, split, getattr(self, split), "0 to less than 1")
        left = 1 - self.validation
        require(self.test < left, "test", self.test, f"less than {left:g}, beside validation")
        fits = 1 <= self.shard_bytes <= MOST_SHARD_BYTES
        require(fits, "shard_bytes", self.shard_bytes, f"1 to {MOST_SHARD_BYTES}")

    def recipe(self, tokenizer: TokenizerFile) -> Recipe:
        """Returns the recipe of these settings with this tokenizer."""
        fits_16 = tokenizer.vocab_size <= LARGEST_VOCABULARY["uint16"]
        return Recipe(
            tokenizer_sha256=tokenizer.sha256,
            vocab_size=tokenizer.vocab_size,
            id_type=self.id_type if self.id_type != "auto" else "uint16" if fits_16 else "uint32",
            end_of_document=self.end_of_document,
            end_of_document_id=tokenizer.id_of(self.end_of_document),
            text_field=self.text_field,
            validation=self.validation,
            test=self.test,
            shard_bytes=self.shard_bytes,
            tasks=tuple(str(TaskSpec.parse(spec)) for spec in self.source if spec.startswith(TASK_PREFIX)),
        )


@dataclass(frozen=True)
class Progress:
    """The progress so far, earlier sessions included: ``bytes_read`` of ``bytes_stored``, where that is known."""

    documents: int
    tokens: int
    bytes_read: int
    bytes_stored: int | None
    source: str


def available_cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prepare(
    settings: Settings,
    directory: Path | str,
    workers: int | None = None,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Index:
    """Fills ``directory``, or resumes filling it, and returns its index. One that is finished is left alone. Text is
    encoded by so many ``workers``, one for each core unless given."""
    directory, workers = Path(directory), available_cores() if workers is None else workers
    require(1 <= workers <= MOST_WORKERS, "workers", workers, f"1 to {MOST_WORKERS}")
    tokenizer = TokenizerFile.find(settings.tokenizer)
    recipe = settings.recipe(tokenizer)
    mixture = Mixture.find(settings.source, settings.text_field, settings.validation, settings.test)
    resumes = "; once that is fixed, the same command resumes"
    with explain_os_errors(f"write {directory}", afterwards=resumes), _locked(directory):
        if (directory / INDEX).exists():
            finished = Index.read(directory / INDEX)
            _refuse_other_settings(finished, recipe, mixture, settings, directory)
            return finished
        if (directory / UNFINISHED).exists():
            index = Index.read(directory / UNFINISHED)
            _refuse_other_settings(index, recipe, mixture, settings, directory)
        else:
            index = Index(recipe, (), tuple(START for _ in mixture.streams), ())
        index = replace(index, sources=settings.source)
        _remove_temporaries(directory, index)
        index.write(directory / UNFINISHED)  # first, so that whatever else is there is known to be made here
        _write_tokenizer(tokenizer, directory / TOKENIZER)
        index = _write_shards(index, directory, mixture, workers, report)
        _refuse_useless(index, settings, directory)
        index.write(directory / UNFINISHED)
        put_in_place(directory / UNFINISHED, directory / INDEX)
    return index


def _write_tokenizer(tokenizer: TokenizerFile, path: Path) -> None:
    if not path.exists():
        write_atomically(path, tokenizer.text.encode())
    elif sha256_of(path) != tokenizer.sha256:
        raise InputError(f"{path}: not the tokenizer that {path.parent} was begun with; move it away")


def _write_shards(
    index: Index, directory: Path, mixture: Mixture, workers: int, report: Callable[[Progress], None]
) -> Index:
    """Encodes what has not been read yet, one shard of every split at a time, and returns the complete index."""
    counter = _ProgressCounter(index, mixture, report)
    positions = list(index.positions)
    shards = ShardWriters(directory, index)
    with Encoders(directory / TOKENIZER, index.recipe, workers) as encoders:
        for number, piece, ids in mixture.pieces(index, encoders):
            shards.add(mixture.streams[number].sources[piece.position.source], piece, ids)
            counter.add(number, piece, len(ids))
            if piece.ends_document:
                positions[number] = piece.position
                if shards.text_bytes >= index.recipe.shard_bytes:
                    index = replace(index, shards=index.shards + shards.finish(), positions=tuple(positions))
                    index.write(directory / UNFINISHED)
                    counter.report()
                    shards = ShardWriters(directory, index)
    index = replace(index, shards=index.shards + shards.finish(), positions=mixture.end(positions))
    counter.report()
    return index


class _ProgressCounter:
    """Counts documents, tokens and bytes, and reports them to the progress bar."""

    def __init__(self, index: Index, mixture: Mixture, report: Callable[[Progress], None]) -> None:
        self._report = report
        self._sources = mixture.streams[0].corpus.sources
        sizes = [source.size for source in self._sources]
        self._stored = sum(size or 0 for size in sizes) if None not in sizes else None
        self._before = np.cumsum([0, *(size or 0 for size in sizes)]).tolist()
        self._documents = sum(map(index.documents, SPLITS))
        self._tokens = self._reported = sum(map(index.tokens, SPLITS))
        self._source = self._bytes_read = 0

    def add(self, stream: int, piece: Piece, tokens: int) -> None:
        self._documents += piece.ends_document
        self._tokens += tokens
        if stream == 0:
            self._source, self._bytes_read = piece.position.source, piece.bytes_read
        if self._tokens - self._reported >= REPORTED_TOKENS:
            self.report()

    def report(self) -> None:
        self._reported = self._tokens
        bytes_read, name = self._before[self._source] + self._bytes_read, self._sources[self._source].name
        self._report(Progress(self._documents, self._tokens, bytes_read, self._stored, name))


def _refuse_other_settings(index: Index, recipe: Recipe, mixture: Mixture, settings: Settings, directory: Path) -> None:
    """Raises an InputError unless the directory was begun with these settings and this text."""
    otherwise = "choose another --out, or remove it"
    for field in fields(Recipe):
        before, now = getattr(index.recipe, field.name), getattr(recipe, field.name)
        if before != now:
            raise InputError(f"{directory} was begun with {field.name}={before}, now {now}: {otherwise}")
    finished = (directory / INDEX).exists()
    if _are_tasks(index.sources) != _are_tasks(settings.source) or mixture.has_changed(index, finished):
        raise InputError(
            f"{directory} was begun with source={' '.join(index.sources)}, and what was read of it has changed since, "
            f"or is not what source names now: {otherwise}"
        )
    for shard in index.shards:
        file = directory / shard.file
        if not file.exists() or file.stat().st_size != shard.tokens * np.dtype(recipe.id_type).itemsize:
            raise InputError(f"{file}: missing or cut short since it was written: remove {directory} and begin again")


def _are_tasks(sources: tuple[str, ...]) -> list[bool]:
    """Tells of each source whether it is a task: text may be moved, but an index goes by the numbers of its sources."""
    return [source.startswith(TASK_PREFIX) for source in sources]


def _refuse_useless(index: Index, settings: Settings, directory: Path) -> None:
    """Removes tokens that nobody could train on, so that the settings can be changed, and raises an InputError."""
    texts = [number for number, is_task in enumerate(_are_tasks(settings.source)) if not is_task]
    counted = texts or range(len(settings.source))  # beside text, nothing of a task is held out
    documents = {split: sum(index.documents(split, number) for number in counted) for split in SPLITS}
    total = sum(documents.values())
    empty = [split for split in ("validation", "test") if getattr(settings, split) and not documents[split]]
    if not total:
        problem = f"source={' '.join(settings.source)}: an empty corpus, no document has any text"
    elif not documents["train"]:
        shares = f"validation={settings.validation}, test={settings.test}"
        problem = f"{shares}: all {total} documents are held out, none is left to train on"
    elif empty:
        problem = (
            f"{empty[0]}={getattr(settings, empty[0])}: none of the {total} documents is held out; "
            "take a larger share, more documents (a .txt or .md file is one), or 0"
        )
    else:
        return
    _remove_temporaries(directory, index)
    made = {shard.file: shard.sha256 for shard in index.shards}
    if Path(settings.tokenizer).resolve() not in (directory.resolve(), (directory / TOKENIZER).resolve()):
        made[TOKENIZER] = index.recipe.tokenizer_sha256
    for name, sha256 in made.items():
        if sha256_of(directory / name) == sha256:
            (directory / name).unlink()
    (directory / UNFINISHED).unlink()
    raise InputError(problem)


def _remove_temporaries(directory: Path, index: Index) -> None:
    """Removes what a killed process was writing."""
    shards = [shard_name(split, len(index.of(split))) for split in SPLITS]
    for name in (UNFINISHED, TOKENIZER, *shards):
        temporary_of(directory / name).unlink(missing_ok=True)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Locks the directory for this process alone."""
    if directory.exists() and not any((directory / name).exists() for name in (INDEX, UNFINISHED)):
        begun = (LOCK, temporary_of(directory / UNFINISHED).name)
        others = [path for path in directory.iterdir() if path.name not in begun]
        if others:
            raise InputError(f"out={directory}: holds {others[0].name}; choose an empty or a new directory")
    directory.mkdir(parents=True, exist_ok=True)
    lock = try_lock(directory / LOCK)
    if lock is None:
        raise InputError(f"out={directory}: is being prepared by another process")
    with lock:
        yield
