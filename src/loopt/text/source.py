"""Text as a source of training examples: a prepared directory of tokens, or text files that are prepared first."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

from loopt.errors import InputError
from loopt.source import PLACE, SPLITS, Codec, Source
from loopt.text.corpus import Corpus
from loopt.text.index import INDEX, TOKENIZER, UNFINISHED, Index
from loopt.text.mixture import Mixture
from loopt.text.prepare import Settings, prepare
from loopt.text.progress import progress_bar
from loopt.text.splits import shares_that_hold_out
from loopt.text.token_data import TokenData
from loopt.text.tokenizer import END_OF_DOCUMENT, TokenizerCodec, train_tokenizer

VOCABULARY, HELD_OUT = 2048, 0.1
"""For text files: a small vocabulary, and shares for validation and test that are large enough for few documents."""


@dataclass(frozen=True)
class Text(Source):
    """Text to train a language model on."""

    name: ClassVar[str] = "text"

    data: str = field(default="", metadata=PLACE)
    """A directory that `loopt data prepare` made, or text files, which are then prepared beside the run."""
    fingerprint: str = ""
    """The fingerprint of the tokens, filled in when a run starts; the run then refuses any other text."""
    end_of_document: str = ""
    """The token that ends a document, filled in when a run starts."""

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

    def codec(self, run: Path) -> Codec:
        return TokenizerCodec(run / TOKENIZER, self.end_of_document)

    def run_files(self) -> dict[str, str]:
        return {TOKENIZER: self.tokens.tokenizer_file().text}

    def prepared(self, run: Path, codec: Codec | None = None) -> Self:
        if not self.data:
            raise InputError("data: which text? Allowed is a directory that `loopt data prepare` made, or text files")
        directory = self._token_directory(run, codec)
        tokens = TokenData.open(directory)
        if self.fingerprint and tokens.fingerprint != self.fingerprint:
            raise InputError(
                f"data {directory}: its fingerprint is {tokens.fingerprint}, the run was started on "
                f"{self.fingerprint}; train on other text in another run"
            )
        end = tokens.index.recipe.end_of_document
        ready = replace(self, data=str(directory), fingerprint=tokens.fingerprint, end_of_document=end)
        vars(ready)["tokens"] = tokens  # which cached_property would open again
        return ready

    def _token_directory(self, run: Path, codec: Codec | None) -> Path:
        """Returns the directory of the tokens; those of text files are prepared beside the run, with the tokenizer of
        ``codec`` or one trained on them."""
        given, beside = Path(self.data), run.parent / f"{run.name}-data"
        if self.fingerprint or (given / INDEX).exists() or (given / UNFINISHED).exists():
            return given
        try:
            corpus = Corpus.find([self.data], "text")
        except InputError as error:  # which speaks of sources, as `loopt data prepare` does
            raise InputError(f"data={self.data}: {str(error).removeprefix(f'source {self.data}: ')}") from None
        if (beside / INDEX).exists():
            index = Index.read(beside / INDEX)
            if Mixture.find((self.data,), "text", HELD_OUT, HELD_OUT).has_changed(index, finished=True):
                raise InputError(
                    f"data={self.data}: {beside} was made from {' '.join(index.sources)}, which is not this text or "
                    f"has changed since; choose another --run, or resume with --data {beside}"
                )
            return beside
        shares = shares_that_hold_out((document.text for document, _ in corpus.documents()), HELD_OUT)
        if shares is None:
            raise InputError(
                f"data={self.data}: fewer than 3 documents with text; one is held out for validation and one for test. "
                "Cut it into more files (split --line-bytes 50k --additional-suffix .txt FILE part- does)"
            )
        print(f"preparing {self.data} in {beside}", file=sys.stderr)
        if isinstance(codec, TokenizerCodec):
            tokenizer, end = codec.file, codec.end_of_document
        else:
            tokenizer = train_tokenizer((document.text for document, _ in corpus.documents()), VOCABULARY)
            end = END_OF_DOCUMENT
        with tempfile.TemporaryDirectory() as folder, progress_bar() as report:
            file = Path(folder) / TOKENIZER
            file.write_text(tokenizer.text, encoding="utf-8")
            settings = Settings((self.data,), str(file), end_of_document=end, validation=shares[0], test=shares[1])
            prepare(settings, beside, workers=1, report=report)
        return beside
