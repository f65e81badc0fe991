"""Text as a source: files of text are prepared beside the run, opened once, and a run keeps its tokenizer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import loopt
from loopt.errors import InputError
from loopt.text.token_data import TokenData
from loopt.text.tokenizer import TokenizerFile
from loopt.training import presets, train
from tiny_runs import CPU
from tiny_text_runs import documents, tiny_text


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number, text in enumerate(documents(seed=0)):
        (folder / f"{number:02}.txt").write_text(text, encoding="utf-8")
    return folder


def test_a_preset_on_a_folder_of_text_trains_in_python(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path | str] = []
    usual = TokenData.open

    def counted(directory: Path | str) -> TokenData:
        opened.append(directory)
        return usual(directory)

    monkeypatch.setattr(TokenData, "open", counted)
    config = presets.lm_cpu(str(texts))
    config = replace(config, model=tiny_text().model, optim=replace(config.optim, warmup_steps=1))
    config = replace(config, steps=4, batch_size=4, eval_every=2, test_examples=10)
    outcome = train(config, tmp_path / "run", CPU)
    assert outcome.finished
    assert opened == [tmp_path / "run-data"]

    run = loopt.load_run(str(tmp_path / "run"))
    kept = TokenizerFile.find(str(run.directory / "tokenizer.json"))
    assert kept.text == usual(tmp_path / "run-data").tokenizer_file().text
    ids = kept.tokenizer.encode("the cat sees").ids
    assert kept.tokenizer.decode(ids) == "the cat sees"
    for model in (loopt.load(str(tmp_path / "run")), loopt.load(tmp_path / "run", checkpoint="last")):
        assert model(torch.tensor([ids])).shape == (1, len(ids), run.config.model.vocab_size)


def test_text_that_does_not_say_which_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^data: which text\? Allowed is a directory"):
        train(presets.lm_cpu(), tmp_path / "run", CPU)
    assert not (tmp_path / "run").exists()
