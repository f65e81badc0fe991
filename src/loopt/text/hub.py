"""Datasets of the Hugging Face hub, streamed: nothing is stored but the tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loopt.errors import InputError
from loopt.text.compressed import INSTALL
from loopt.text.text_files import Document, text_of


@dataclass(frozen=True)
class HubDataset:
    """The documents of ``hf:NAME[:CONFIG[:SPLIT]]``; CONFIG may be empty, and SPLIT is train unless given."""

    name: str
    dataset: str
    config: str | None
    split: str
    revision: str | None
    """The commit that is read, so that a resumed process reads the same; None for a local folder."""
    text_field: str
    size = None

    @classmethod
    def find(cls, spec: str, text_field: str) -> HubDataset:
        dataset, config, split, *rest = (*spec.removeprefix("hf:").split(":"), "", "")
        if not dataset or any(rest):
            raise InputError(f"source {spec}: allowed are hf:NAME, hf:NAME:CONFIG and hf:NAME:CONFIG:SPLIT")
        with _explain_errors(spec):
            import datasets  # noqa: F401 (if it is missing, this fails before the tokenizer is loaded)
            from huggingface_hub import HfApi

            revision = None if Path(dataset).exists() else HfApi().dataset_info(dataset).sha
        return cls(spec, dataset, config or None, split or "train", revision, text_field)

    @property
    def version(self) -> str | None:
        return f"{self.dataset} {self.config} {self.split} {self.revision}" if self.revision else None

    def documents(self, start: int) -> Iterator[Document]:
        with _explain_errors(self.name):
            import datasets

            rows = datasets.load_dataset(
                self.dataset, self.config, split=self.split, revision=self.revision, streaming=True
            )
            for row, record in enumerate(rows.skip(start) if start else rows, start + 1):
                yield Document(text_of(record, self.text_field, f"source {self.name}, row {row}"), row, 0)


@contextmanager
def _explain_errors(spec: str) -> Iterator[None]:
    """Turns whatever ``datasets`` and the packages below it raise into an InputError of one line."""
    try:
        yield
    except InputError:
        raise
    except ImportError:
        raise InputError(f"source {spec}: reading from the hub needs datasets; {INSTALL}") from None
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        if "scripts are no longer supported" in first or "trust_remote_code" in str(error):
            raise InputError(
                f"source {spec}: this dataset is a script (trust_remote_code), and running it is refused; "
                "take a copy of it in Parquet or JSON lines"
            ) from error
        raise InputError(f"source {spec}: {type(error).__name__}: {first}; the same command resumes later") from error
