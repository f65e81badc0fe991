"""loopt data prepare, loopt data tokenizer, loopt data show DIR"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from loopt.commands.parsing import choose, parse_options
from loopt.errors import InputError
from loopt.files import explain_os_errors, write_atomically
from loopt.report.screen import printable, screen
from loopt.source import SPLITS, Split
from loopt.text.corpus import Corpus
from loopt.text.index import Index
from loopt.text.prepare import Settings, prepare
from loopt.text.progress import progress_bar
from loopt.text.tokenizer import train_tokenizer

USAGE = """\
usage: loopt data prepare --source SPEC ... --tokenizer FILE_OR_NAME --out DIR
       loopt data tokenizer --source SPEC ... --vocab-size N --out FILE
       loopt data show DIR

Text to tokens that a language model trains on. For example:

  loopt data tokenizer --source examples/persuasion --vocab-size 2048 --out data/tokenizer.json
  loopt data prepare --source examples/persuasion --tokenizer data/tokenizer.json --validation 0.1 --test 0.1 \\
    --out data/persuasion
  loopt data show data/persuasion

Tasks are mixed in by their share of the training tokens:

  loopt data prepare --source texts/ "task:assignment?depth=1&shots=5&share=0.1" --tokenizer data/tokenizer.json \\
    --out data/mixed
"""


@dataclass(frozen=True)
class PrepareOptions:
    """Turn text into shards of tokens. The same command resumes where it was stopped or killed. For example:

    loopt data prepare --source texts/ --tokenizer data/tokenizer.json --out data/mine
    """

    settings: Annotated[Settings, tyro.conf.arg(name="")]
    out: Path
    """Directory of the shards, their index and the tokenizer."""
    workers: int | None = None
    """Processes that encode text, one for each core unless given; any number gives the same tokens."""


@dataclass(frozen=True)
class TokenizerOptions:
    """Train a byte-level BPE tokenizer. For example:

    loopt data tokenizer --source examples/persuasion --vocab-size 2048 --out data/tokenizer.json
    """

    source: tuple[str, ...]
    """Files, folders or globs of .txt, .md, .jsonl or .parquet, or hf:NAME[:CONFIG[:SPLIT]]."""
    vocab_size: int
    """Size of the vocabulary."""
    out: Path
    """The file to write."""
    text_field: str = "text"
    """The field of a line of JSON, or the column of a row, that has the text."""


@dataclass(frozen=True)
class ShowOptions:
    """Print what is in a prepared directory. For example:

    loopt data show data/persuasion
    """

    directory: tyro.conf.Positional[Path]
    """What `loopt data prepare` made."""
    verify: bool = False
    """Read every token and compare with the hashes in the index."""


def main(arguments: list[str]) -> int:
    action = choose(arguments, USAGE, "data command", ["prepare", "tokenizer", "show"])
    match action:
        case ("prepare", options):
            _prepare(parse_options(PrepareOptions, options, "loopt data prepare"))
        case ("tokenizer", options):
            _tokenizer(parse_options(TokenizerOptions, options, "loopt data tokenizer"))
        case ("show", options):
            _show(parse_options(ShowOptions, options, "loopt data show"))
    return 0


def _prepare(options: PrepareOptions) -> None:
    with progress_bar() as report:
        index = prepare(options.settings, options.out, options.workers, report)
    figures = ", ".join(f"{index.tokens(s):,} {s} tokens in {index.documents(s):,} documents" for s in SPLITS)
    print(f"{options.out}: {figures}; fingerprint {index.fingerprint[:16]}")


def _tokenizer(options: TokenizerOptions) -> None:
    _refuse_unwritable(options.out)
    corpus = Corpus.find(options.source, options.text_field)
    documents = 0

    def texts() -> Iterator[str]:
        nonlocal documents
        for document, _ in corpus.documents():
            documents += 1
            yield document.text

    with screen(stderr=True).status("training a tokenizer"):
        trained = train_tokenizer(texts(), options.vocab_size)
    if not documents:
        raise InputError(f"source={' '.join(options.source)}: an empty corpus, no document has any text")
    _refuse_unwritable(options.out)  # again: training may have taken hours
    with explain_os_errors(f"write {options.out}"):
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(options.out, trained.text.encode())
    print(f"{printable(options.out)}: {trained.vocab_size:,} tokens, from {documents:,} documents")


def _refuse_unwritable(out: Path) -> None:
    with explain_os_errors(f"write {out}"), suppress(FileNotFoundError):
        out.lstat()
        raise InputError(f"out={out}: exists already; choose another name, or remove it")
    folder = next(parent for parent in out.absolute().parents if parent.exists())
    if not os.access(folder, os.W_OK):
        raise InputError(f"out={out}: {folder} is not a folder that can be written to")


def _show(options: ShowOptions) -> None:
    from loopt.text.token_data import TokenData  # needs torch, which takes seconds to import
    from loopt.text.unigram import unigram

    data = TokenData.open(options.directory)
    if options.verify:
        data.verify()
    screen().print(_splits(data.index, options.directory))
    screen().print(_sources(data.index))
    recipe = data.index.recipe
    print(f"fingerprint    {data.fingerprint}")
    print(f"vocabulary     {recipe.vocab_size:,} tokens, stored as {recipe.id_type}")
    print(f"documents end  with {recipe.end_of_document} (id {recipe.end_of_document_id})")
    for number, source in enumerate(data.index.sources):
        print(f"source {number:<8}{printable(source)}")
    baseline = unigram(data)
    print(f"unigram model  entropy {baseline.train_entropy:.3f} bits a token on train", end="")
    print("".join(f", perplexity {value:,.1f} on {split}" for split, value in baseline.perplexity.items()))
    sample = next(data.chunks("train"))[:64].tolist()
    print(f"train begins   {data.tokenizer_file().decode(sample)!r}")


def _splits(index: Index, directory: Path) -> Table:
    table = _table("split", "tokens", "documents", "shards", "bytes a token", title=printable(directory))
    for split in SPLITS:
        table.add_row(
            split,
            f"{index.tokens(split):,}",
            f"{index.documents(split):,}",
            str(len(index.of(split))),
            _bytes_a_token(index, split),
        )
    return table


def _sources(index: Index) -> Table:
    table = _table("source", "split", "tokens", "share", "documents", "bytes a token", title="what came from where")
    for number in range(len(index.sources)):
        for split in SPLITS:
            if tokens := index.tokens(split, number):
                share, documents = tokens / index.tokens(split), index.documents(split, number)
                compression = _bytes_a_token(index, split, number)
                table.add_row(str(number), split, f"{tokens:,}", f"{share:.2%}", f"{documents:,}", compression)
    return table


def _table(*columns: str, title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column in ("split", "source") else "right")
    return table


def _bytes_a_token(index: Index, split: Split, source: int | None = None) -> str:
    tokens = index.tokens(split, source)
    return f"{index.text_bytes(split, source) / tokens:.2f}" if tokens else "-"
