"""From text to token shards. Killed at any moment and started again, it goes on and ends with the same bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

import numpy as np

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from loopt.errors import InputError
from loopt.files import write_atomically
from loopt.text.encoding import Batch, batches, encoded_in_order
from loopt.text.index import INDEX, LARGEST_VOCABULARY, SPLITS, TOKENIZER, UNFINISHED, Index, Recipe, Split
from loopt.text.shards import GrowingShard
from loopt.text.sources import START, Corpus
from loopt.text.tokenizer import END_OF_DOCUMENT, TokenizerFile

LOCK = ".lock"


@dataclass(frozen=True)
class Settings:
    source: tuple[str, ...]
    """Files, folders or globs of .txt (one document each), .jsonl or .parquet, also .gz, .xz and .zst; or
    hf:NAME[:CONFIG[:SPLIT]], a dataset of the Hugging Face hub, streamed."""
    tokenizer: str
    """A file of the tokenizers package, or a name on the Hugging Face hub."""
    text_field: str = "text"
    """Where the text is in a line of JSON or a row."""
    validation: float = 0.01
    """Share of the documents that is held out, chosen by a hash of the document."""
    end_of_document: str = END_OF_DOCUMENT
    """The token that follows every document."""
    id_type: Literal["auto", "uint16", "uint32"] = "auto"
    """How ids are stored; auto takes the smallest that the vocabulary fits in."""
    shard_bytes: int = 2**28
    """Text in a shard. What a killed process loses is at most one shard's work."""

    def __post_init__(self) -> None:
        if not 0 <= self.validation < 1:
            raise InputError(f"validation={self.validation}: allowed is 0 to less than 1")
        if self.shard_bytes < 1:
            raise InputError(f"shard_bytes={self.shard_bytes}: allowed is 1 or more")

    def recipe(self, tokenizer: TokenizerFile) -> Recipe:
        fits_16 = tokenizer.vocab_size <= LARGEST_VOCABULARY["uint16"]
        return Recipe(
            tokenizer_sha256=tokenizer.sha256,
            vocab_size=tokenizer.vocab_size,
            id_type=self.id_type if self.id_type != "auto" else "uint16" if fits_16 else "uint32",
            end_of_document=self.end_of_document,
            end_of_document_id=tokenizer.id_of(self.end_of_document),
            text_field=self.text_field,
            validation=self.validation,
            shard_bytes=self.shard_bytes,
        )


@dataclass(frozen=True)
class Progress:
    """What has been done so far, in this and earlier sessions; ``bytes_read`` of ``bytes_stored`` where known."""

    documents: int
    tokens: int
    bytes_read: int
    bytes_stored: int | None
    source: str


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prepare(
    settings: Settings, directory: Path, workers: int, report: Callable[[Progress], None] = lambda progress: None
) -> Index:
    """Fill ``directory``, or go on where it was left. A directory that is done already is left alone."""
    if workers < 1:
        raise InputError(f"workers={workers}: allowed is 1 or more")
    tokenizer = TokenizerFile.find(settings.tokenizer)
    recipe = settings.recipe(tokenizer)
    corpus = Corpus.find(settings.source, settings.text_field)
    with _told_of_a_full_disk(directory), _held(directory):
        if (directory / INDEX).exists():
            finished = Index.read(directory / INDEX)
            _refuse_others(finished, recipe, corpus, directory)
            (directory / UNFINISHED).unlink(missing_ok=True)  # left by a process killed on its last steps
            return finished
        if (directory / UNFINISHED).exists():
            index = Index.read(directory / UNFINISHED)
            _refuse_others(index, recipe, corpus, directory)
        else:
            index = Index(recipe, (), corpus.identity(START), START, ())
        index = replace(index, sources=settings.source)
        _sweep(directory, index)
        write_atomically(directory / TOKENIZER, tokenizer.text.encode())
        index = _filled(index, directory, corpus, tokenizer, workers, report)
        _refuse_useless(index, settings, directory)
        index.write(directory / INDEX)
        (directory / UNFINISHED).unlink(missing_ok=True)
    return index


def _filled(
    index: Index,
    directory: Path,
    corpus: Corpus,
    tokenizer: TokenizerFile,
    workers: int,
    report: Callable[[Progress], None],
) -> Index:
    """Encode what has not been read yet, a pair of shards after the other."""
    count = _Counter(index, corpus)
    index.write(directory / UNFINISHED)
    to_encode = batches(corpus.documents(index.place), index.recipe)
    shards = _new_shards(index, directory)
    for batch, ids in encoded_in_order(to_encode, tokenizer, index.recipe, workers):
        for split, shard in shards.items():
            shard.add(ids[split], batch.documents[split], batch.text_bytes[split])
        report(count.with_batch(batch, sum(map(len, ids.values()))))
        if batch.ends_shard:
            written = tuple(shard.finish() for shard in shards.values() if shard.tokens)
            read = corpus.identity(batch.place)
            index = replace(index, shards=index.shards + written, place=batch.place, sources_sha256=read)
            index.write(directory / UNFINISHED)
            shards = _new_shards(index, directory)
    return replace(index, place=corpus.end, sources_sha256=corpus.identity(corpus.end))


def _new_shards(index: Index, directory: Path) -> dict[Split, GrowingShard]:
    return {split: GrowingShard(directory, split, len(index.of(split))) for split in SPLITS}


class _Counter:
    """Adds up batches for those who wait."""

    def __init__(self, index: Index, corpus: Corpus) -> None:
        sizes = [source.size for source in corpus.sources]
        self._stored = sum(size or 0 for size in sizes) if None not in sizes else None
        self._before = np.cumsum([0, *(size or 0 for size in sizes)]).tolist()
        self._sources = corpus.sources
        self._documents = sum(shard.documents for shard in index.shards)
        self._tokens = sum(shard.tokens for shard in index.shards)

    def with_batch(self, batch: Batch, tokens: int) -> Progress:
        self._documents += sum(batch.documents.values())
        self._tokens += tokens
        source = batch.place.source
        bytes_read = self._before[source] + batch.bytes_read
        return Progress(self._documents, self._tokens, bytes_read, self._stored, self._sources[source].name)


def _refuse_others(index: Index, recipe: Recipe, corpus: Corpus, directory: Path) -> None:
    """What a directory was begun with, it is finished with."""
    otherwise = "choose another --out, or remove it"
    for field in fields(Recipe):
        before, now = getattr(index.recipe, field.name), getattr(recipe, field.name)
        if before != now:
            raise InputError(f"{directory} was begun with {field.name}={before}, now {now}: {otherwise}")
    complete = (directory / INDEX).exists()
    there = corpus.end == index.place if complete else corpus.end >= index.place
    if not there or corpus.identity(index.place) != index.sources_sha256:
        raise InputError(
            f"{directory} was begun with source={' '.join(index.sources)}, and what was read of it has changed since, "
            f"or is not what source names now: {otherwise}"
        )
    for shard in index.shards:
        file = directory / shard.file
        if not file.exists() or file.stat().st_size != shard.tokens * np.dtype(recipe.id_type).itemsize:
            raise InputError(f"{file}: missing or cut short since it was written: remove {directory} and begin again")


def _refuse_useless(index: Index, settings: Settings, directory: Path) -> None:
    """Tokens that nobody could train on are removed, so that the settings can be changed."""
    train, validation = index.documents("train"), index.documents("validation")
    if not train + validation:
        problem = f"source={' '.join(settings.source)}: an empty corpus, no document has any text"
    elif not train:
        problem = f"validation={settings.validation}: all {validation} documents are held out, none is left"
    elif settings.validation and not validation:
        problem = (
            f"validation={settings.validation}: none of the {train} documents is held out; "
            "take a larger share, more documents (a .txt file is one), or 0"
        )
    else:
        return
    _sweep(directory, replace(index, shards=()))
    for name in (UNFINISHED, TOKENIZER):
        (directory / name).unlink(missing_ok=True)
    raise InputError(problem)


def _sweep(directory: Path, index: Index) -> None:
    """Remove what a killed process left behind."""
    known = {shard.file for shard in index.shards}
    for path in [*directory.glob(".*.tmp"), *(p for s in SPLITS for p in directory.glob(f"{s}-*.bin"))]:
        if path.name not in known:
            path.unlink()


@contextmanager
def _held(directory: Path) -> Iterator[None]:
    """The directory, for this process alone."""
    if directory.exists() and not any((directory / name).exists() for name in (INDEX, UNFINISHED)):
        others = [path for path in directory.iterdir() if path.name not in (LOCK, TOKENIZER) and path.suffix != ".tmp"]
        if others:
            raise InputError(f"out={directory}: holds {others[0].name}; choose an empty or a new directory")
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK).open("ab") as held:
        if fcntl:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(f"out={directory}: is being prepared by another process") from None
        yield


@contextmanager
def _told_of_a_full_disk(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where, reason = error.filename or directory, error.strerror or error
        raise InputError(f"{where}: {reason}; once that is mended, the same command goes on") from error
