"""A graph that torch has compiled for one version of our kernels is not taken for another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from loopt import kernels


@pytest.fixture
def tag_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The tag that torch's cache has with these kernels, starting from another one."""

    def tag(source: str, before: str = "") -> str:
        (tmp_path / "attention.py").write_text(source)
        monkeypatch.setattr(kernels, "__file__", str(tmp_path / "__init__.py"))
        with torch.compiler.config.patch(cache_key_tag=before):
            kernels.tell_compiled_graphs_apart()
            return str(torch.compiler.config.cache_key_tag)

    return tag


def test_by_the_text_of_the_kernels(tag_of: Callable[..., str]) -> None:
    assert tag_of("one") == tag_of("one") != tag_of("other")


def test_a_users_tag_stays(tag_of: Callable[..., str]) -> None:
    assert tag_of("one", before="mine") == "mine" + tag_of("one")


def test_saying_so_again_changes_nothing(tag_of: Callable[..., str]) -> None:
    assert tag_of("one", before=tag_of("one")) == tag_of("one")
