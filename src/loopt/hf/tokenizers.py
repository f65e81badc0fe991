"""The tokenizer that goes with an exported model: a language model's own file, or the words of a task."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from loopt.runs import Run
from loopt.tasks.base import Task
from loopt.text.source import Text
from loopt.text.tokenizer import TokenizerFile

FILE = "tokenizer.json"


def tokenizer_of(run: Run, max_len: int) -> PreTrainedTokenizerFast | None:
    """Returns the tokenizer of a run's model, padding on the left, as generation needs it; None where a source of the
    user's own has neither text nor words."""
    source = run.config.source
    settings: dict[str, Any] = {"model_max_length": max_len, "padding_side": "left"}
    if isinstance(source, Text):
        if source.end_of_document:
            end = source.end_of_document
            settings |= {"bos_token": end, "eos_token": end, "pad_token": end}
        TokenizerFile.of_run(run.directory / FILE)
        return PreTrainedTokenizerFast(tokenizer_file=str(run.directory / FILE), **settings)
    if isinstance(source, Task):
        return PreTrainedTokenizerFast(tokenizer_object=_word_tokenizer(source), **settings)
    return None


def _word_tokenizer(task: Task) -> Any:
    """Returns a tokenizer that reads what ``task.encode`` reads: its words, with or without spaces between them."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    words = list(task.vocabulary)
    any_word = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(any_word), "removed", invert=True)
    if all(len(word) == 1 for word in words):
        tokenizer.decoder = decoders.Fuse()
    return tokenizer


def end_of_document(folder: Path) -> str:
    """Returns the token that ends a document in a saved model's tokenizer, or nothing."""
    if not (folder / "tokenizer_config.json").is_file():
        return ""
    return str(PreTrainedTokenizerFast.from_pretrained(folder).eos_token or "")
