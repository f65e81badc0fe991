"""Tokenizers: any tokenizer.json of the ``tokenizers`` package, by path or by name on the hub, or one trained here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from loopt.errors import InputError, require
from loopt.files import parse_json
from loopt.source import Codec
from loopt.text.compressed import INSTALL

END_OF_DOCUMENT = "<|endoftext|>"
BYTES = 256
MOST_TOKENS = 2**22
"""Training takes memory for all of them from the start."""
_FILE = "tokenizer.json"
_CONFIG = "tokenizer_config.json"


@dataclass(frozen=True)
class TokenizerFile:
    """The text of a ``tokenizer.json``, and where it comes from."""

    name: str
    text: str

    @classmethod
    def find(cls, name: str) -> TokenizerFile:
        """Returns the tokenizer of a file, of a folder with a tokenizer.json, or of that name on the hub."""
        try:
            path = _path_of(name)
            if not path.is_file():
                raise InputError(f"tokenizer {name}: not a file, but a folder, a pipe or a device")
            found = cls(name, path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"tokenizer {name[:200]}: cannot be read: {error}") from None
        found.vocab_size  # noqa: B018 (an invalid file fails now)
        return found

    @classmethod
    def of_run(cls, path: Path) -> TokenizerFile:
        """Returns the tokenizer of a run, at its path; one that was imported without has none."""
        if not path.exists():
            raise InputError(f"{path}: no such file; copy the {_FILE} that the model was trained with to this place")
        return cls.find(str(path))

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def tokenizer(self) -> Any:
        """Returns the ``tokenizers.Tokenizer``, which encodes special tokens written out in the text as plain text."""
        package = _tokenizers()
        with self._explain_errors("not a file of the tokenizers package"):
            tokenizer = package.Tokenizer.from_str(self.text)
            tokenizer.encode_special_tokens = True
            tokenizer.no_truncation()
            tokenizer.no_padding()
        return tokenizer

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Returns the token ids of each text."""
        with self._explain_errors("fails to encode"):
            return [one.ids for one in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, ids: list[int]) -> str:
        """Returns the text of token ids, special tokens written out."""
        with self._explain_errors("fails to decode"):
            text: str = self.tokenizer.decode(ids, skip_special_tokens=False)
        return text

    @contextmanager
    def _explain_errors(self, problem: str) -> Iterator[None]:
        """Turns what the package raises into an InputError; its panics are no ``Exception``."""
        try:
            yield
        except (InputError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            first = str(error).strip().partition("\n")[0]
            raise InputError(f"tokenizer {self.name}: {problem}: {first[:500]}") from None

    @cached_property
    def vocab_size(self) -> int:
        """Returns one more than the largest token id; ids may have gaps."""
        size = 1 + max(self.tokenizer.get_vocab().values(), default=-1)
        require(size >= 1, f"tokenizer {self.name}: vocab_size", size, "1 or more", InputError)
        return size

    def id_of(self, token: str) -> int:
        found: int | None = self.tokenizer.token_to_id(token)
        if found is None:
            special = [t.content for t in self.tokenizer.get_added_tokens_decoder().values() if t.special]
            raise InputError(
                f"tokenizer {self.name}: no token {token!r} to end documents with; "
                f"choose with --end-of-document (its special tokens: {', '.join(special[:8]) or 'none'})"
            )
        return found


class TokenizerCodec(Codec):
    """Turns text into the tokens of a tokenizer file and back; the file is read when it is first needed."""

    def __init__(self, path: Path, end_of_document: str) -> None:
        self._path, self.end_of_document = path, end_of_document

    @cached_property
    def file(self) -> TokenizerFile:
        return TokenizerFile.of_run(self._path)

    @property
    def vocab_size(self) -> int:
        return self.file.vocab_size

    @property
    def end(self) -> int | None:
        return self.file.id_of(self.end_of_document) if self.end_of_document else None

    def encode(self, text: str) -> list[int]:
        return self.file.encode([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return self.file.encode(list(texts))  # on all cores

    def decode(self, tokens: Sequence[int]) -> str:
        return self.file.decode(list(tokens))

    def stream(self) -> Callable[[int], str]:
        from tokenizers.decoders import DecodeStream

        tokenizer, stream = self.file.tokenizer, DecodeStream(skip_special_tokens=False)
        return lambda token: stream.step(tokenizer, token) or ""


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> TokenizerFile:
    """Trains byte-level BPE with an end-of-document token: any text can be encoded, and decodes to itself."""
    least = BYTES + 1
    allowed = f"{least} (the bytes and {END_OF_DOCUMENT}) to {MOST_TOKENS}"
    require(least <= vocab_size <= MOST_TOKENS, "vocab_size", vocab_size, allowed, InputError)
    package = _tokenizers()
    tokenizer = package.Tokenizer(package.models.BPE())
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = package.decoders.ByteLevel()
    trainer = package.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=sorted(package.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return TokenizerFile("trained here", tokenizer.to_str(pretty=True))


def _path_of(name: str) -> Path:
    path = Path(name)
    if path.is_dir():
        if not (path / _FILE).exists():
            raise _no_file(name, (path / _CONFIG).read_bytes() if (path / _CONFIG).is_file() else b"")
        return path / _FILE
    if path.exists():
        return path
    if path.suffix == ".json" or path.is_absolute() or len(path.parts) > 2:
        raise InputError(f"tokenizer {name}: no such file")
    return _downloaded(name)


def _downloaded(name: str) -> Path:
    _tokenizers()
    from huggingface_hub import errors, hf_hub_download  # tokenizers brings it along

    try:
        return Path(hf_hub_download(name, _FILE))
    except Exception as error:  # an invalid name, no network, a gated model
        if isinstance(error, errors.EntryNotFoundError) and not isinstance(error, errors.LocalEntryNotFoundError):
            raise _no_file(name, _config_on_the_hub(name)) from None
        first = str(error).strip().partition("\n")[0]
        raise InputError(f"tokenizer {name}: no such file, and not found on the hub: {first}") from None


def _config_on_the_hub(name: str) -> bytes:
    from huggingface_hub import errors, hf_hub_download

    try:
        return Path(hf_hub_download(name, _CONFIG)).read_bytes()
    except errors.EntryNotFoundError:
        return b""


def _no_file(name: str, config: bytes) -> InputError:
    fields = parse_json(config or b"{}", f"tokenizer {name}: {_CONFIG}", InputError)
    if isinstance(fields, dict) and "auto_map" in fields:
        return InputError(f"tokenizer {name}: it is code (trust_remote_code), which is not run here; give a {_FILE}")
    return InputError(f"tokenizer {name}: no {_FILE} in it, the only tokenizer format that is read")


def _tokenizers() -> Any:
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError:
        raise InputError(f"encoding text needs tokenizers; {INSTALL}") from None
    return tokenizers
