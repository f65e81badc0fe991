"""Tokenizers: any tokenizer.json of the ``tokenizers`` package, by path or by name on the hub, or one trained here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from loopt.errors import InputError
from loopt.text.text_files import INSTALL

END_OF_DOCUMENT = "<|endoftext|>"
BYTES = 256
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
        path = Path(name)
        if path.is_dir():
            if not (path / _FILE).exists():
                raise _no_file(name, (path / _CONFIG).read_text() if (path / _CONFIG).exists() else "")
            path = path / _FILE
        elif not path.exists():
            if path.suffix == ".json" or path.is_absolute() or len(path.parts) > 2:
                raise InputError(f"tokenizer {name}: no such file")
            path = _downloaded(name)
        try:
            found = cls(name, path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"tokenizer {name}: cannot be read: {error}") from None
        found.tokenizer  # noqa: B018 (an invalid file fails now)
        return found

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def tokenizer(self) -> Any:
        """Returns the ``tokenizers.Tokenizer``, which encodes special tokens written out in the text as plain text."""
        try:
            tokenizer = _tokenizers().Tokenizer.from_str(self.text)
        except InputError:
            raise
        except Exception as error:  # the package raises nothing more specific
            raise InputError(f"tokenizer {self.name}: not a file of the tokenizers package: {error}") from None
        tokenizer.encode_special_tokens = True
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    @cached_property
    def vocab_size(self) -> int:
        """Returns one more than the largest token id; ids may have gaps."""
        return 1 + max(self.tokenizer.get_vocab().values(), default=-1)

    def id_of(self, token: str) -> int:
        found: int | None = self.tokenizer.token_to_id(token)
        if found is None:
            special = [t.content for t in self.tokenizer.get_added_tokens_decoder().values() if t.special]
            raise InputError(
                f"tokenizer {self.name}: no token {token!r} to end documents with; "
                f"choose with --end-of-document (its special tokens: {', '.join(special[:8]) or 'none'})"
            )
        return found


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> TokenizerFile:
    """Trains byte-level BPE with an end-of-document token: any text can be encoded, and decodes to itself."""
    if vocab_size < BYTES + 1:
        raise InputError(f"vocab_size={vocab_size}: allowed is {BYTES + 1} or more: the bytes and {END_OF_DOCUMENT}")
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


def _config_on_the_hub(name: str) -> str:
    from huggingface_hub import errors, hf_hub_download

    try:
        return Path(hf_hub_download(name, _CONFIG)).read_text()
    except errors.EntryNotFoundError:
        return ""


def _no_file(name: str, config: str) -> InputError:
    try:
        is_code = "auto_map" in json.loads(config or "{}")
    except ValueError:
        is_code = False
    if is_code:
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
