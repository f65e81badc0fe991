"""loopt: looped transformers, models that think longer by running the same layers again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loopt._version import __version__
from loopt.errors import InputError
from loopt.plan import LoopPlan

if TYPE_CHECKING:
    from loopt.generation import generate, stream
    from loopt.model import LoopedTransformer, ModelConfig
    from loopt.runs import Run, load

    load_run = Run.load

__all__ = [
    "InputError",
    "LoopPlan",
    "LoopedTransformer",
    "ModelConfig",
    "__version__",
    "generate",
    "load",
    "load_run",
    "stream",
]


def __getattr__(name: str) -> Any:
    """Loads what needs torch, which takes seconds to import, when it is first asked for."""
    if name in ("LoopedTransformer", "ModelConfig"):
        from loopt import model

        return getattr(model, name)
    if name in ("generate", "stream"):
        from loopt import generation

        return getattr(generation, name)
    if name in ("load", "load_run"):
        from loopt import runs

        return runs.load if name == "load" else runs.Run.load
    raise AttributeError(f"module 'loopt' has no attribute {name!r}")
