"""Text as a source of training examples: a prepared directory of tokens, or files of text that are prepared first."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

from loopt.errors import InputError
from loopt.source import PLACE, SPLITS, Source
from loopt.text.corpus import Corpus
from loopt.text.index import INDEX, TOKENIZER, UNFINISHED, Index
from loopt.text.prepare import Settings, prepare
from loopt.text.progress import PreparingLine
from loopt.text.token_data import TokenData
from loopt.text.tokenizer import train_tokenizer

VOCABULARY, HELD_OUT = 2048, 0.1
"""For files of text: a small vocabulary, and a share for validation and for test that few documents can give too."""


@dataclass(frozen=True)
class Text(Source):
    """Text to train a language model on."""

    name: ClassVar[str] = "text"

    data: str = field(default="", metadata=PLACE)
    """A directory that `loopt data prepare` made, or files of text, which are then prepared beside the run."""
    fingerprint: str = ""
    """Of the tokens; filled in when a run starts, which is then refused any other text."""

    @cached_property
    def tokens(self) -> TokenData:
        """Returns the tokens of the prepared directory, opened once."""
        return TokenData.open(self.data)

    @property
    def vocab_size(self) -> int:
        return self.tokens.vocab_size

    def check_length(self, length: int) -> None:
        for split in SPLITS:
            self.tokens.sequences(split, length)

    def run_files(self) -> dict[str, str]:
        return {TOKENIZER: self.tokens.tokenizer_file().text}

    def prepared(self, run: Path) -> Self:
        if not self.data:
            raise InputError(
                "data: which text? Allowed is a directory that `loopt data prepare` made, or files of text"
            )
        directory = self._token_directory(run)
        tokens = TokenData.open(directory)
        if self.fingerprint and tokens.fingerprint != self.fingerprint:
            raise InputError(
                f"data {directory}: its fingerprint is {tokens.fingerprint}, the run was started on "
                f"{self.fingerprint}; train on other text in another run"
            )
        ready = replace(self, data=str(directory), fingerprint=tokens.fingerprint)
        vars(ready)["tokens"] = tokens  # so that they are not opened again
        return ready

    def _token_directory(self, run: Path) -> Path:
        """Returns the directory of the tokens; those of files of text are made beside the run."""
        given, beside = Path(self.data), run.parent / f"{run.name}-data"
        if self.fingerprint or (given / INDEX).exists() or (given / UNFINISHED).exists():
            return given
        corpus = Corpus.find([self.data], "text")
        if (beside / INDEX).exists():
            self._refuse_other_text(corpus, beside)
            return beside
        print(f"preparing {self.data} in {beside}", file=sys.stderr)
        tokenizer = train_tokenizer((document.text for document, _ in corpus.documents()), VOCABULARY)
        with tempfile.TemporaryDirectory() as folder, PreparingLine() as line:
            file = Path(folder) / TOKENIZER
            file.write_text(tokenizer.text, encoding="utf-8")
            settings = Settings((self.data,), str(file), validation=HELD_OUT, test=HELD_OUT)
            prepare(settings, beside, workers=1, report=line)
        return beside

    def _refuse_other_text(self, corpus: Corpus, directory: Path) -> None:
        index = Index.read(directory / INDEX)
        if index.position != corpus.end or index.sources_sha256 != corpus.identity(corpus.end):
            raise InputError(
                f"data={self.data}: {directory} was made from {' '.join(index.sources)}, which is not this text or has "
                f"changed since; choose another --run, or resume with --data {directory}"
            )
