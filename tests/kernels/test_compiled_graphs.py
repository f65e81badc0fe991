"""A graph that torch has compiled for one version of our kernels is not taken for another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from loopt import LoopedTransformer, LoopPlan, ModelConfig, kernels

pytestmark = pytest.mark.slow

Version = Callable[[str], str]


@pytest.fixture
def version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Version]:
    """Returns a function that makes our kernels' source this text, and returns the tag of torch's cache."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    monkeypatch.setattr(kernels, "__file__", str(folder / "__init__.py"))

    def become(text: str) -> str:
        (folder / "attention.py").write_text(text)
        kernels.tag_compile_cache()
        return str(torch.compiler.config.cache_key_tag)

    with torch.compiler.config.patch(cache_key_tag="mine"):  # type: ignore[attr-defined]
        yield become


def test_a_users_tag_stays_and_ours_is_there_once(version: Version) -> None:
    once = version("one")
    assert once.startswith("mineloopt-")
    assert version("one") == once
    assert version("other") != once


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what torch itself uses
def test_torch_takes_what_it_compiled_for_the_same_version_alone(
    version: Version, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))

    def taken_from_the_cache(text: str) -> bool:
        with torch.compiler.config.patch(cache_key_tag=""):  # type: ignore[attr-defined]
            version(text)
            torch._dynamo.reset()
            counters.clear()
            torch.compile(lambda x: x @ x)(torch.ones(3, 3))  # which takes no C++ compiler
            return bool(counters["inductor"]["fxgraph_cache_hit"])

    assert [taken_from_the_cache(text) for text in ("one", "one", "other", "one")] == [False, True, False, True]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_model_with_kernels_of_ours_asks_for_it() -> None:
    model = LoopedTransformer(ModelConfig(LoopPlan.parse("1x1"), 16, 1, 8, vocab_size=3, max_len=4)).cuda()
    with torch.compiler.config.patch(cache_key_tag=""):  # type: ignore[attr-defined]
        kernels.compile_model(model)
        assert torch.compiler.config.cache_key_tag.startswith("loopt-")
