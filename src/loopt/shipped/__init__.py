"""Models that come with loopt, to look at without training any: 4-hop induction by one looped layer, by the same layer
run once, and by as many layers as there are loops.

They were trained by ``python -m loopt.shipped.make``. Each directory has the config, the result and the weights of the
checkpoint that was best on validation examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from loopt.files import read_json
from loopt.model import LoopedTransformer
from loopt.runs.run import read_config
from loopt.tasks import Task

HERE = Path(__file__).parent
PLANS = ("1x4", "1x1", "4x1")
"""The looped model first, which is the one to look at."""


@dataclass(frozen=True)
class ShippedModel:
    """A model that was trained before, and what it scored."""

    model: LoopedTransformer
    task: Task
    result: dict[str, Any]


def load_shipped(plan: str) -> ShippedModel:
    """Returns one of the models that come with loopt, by its plan."""
    config = read_config(HERE / plan / "config.json")
    assert isinstance(config.source, Task)
    model = LoopedTransformer(config.model).eval()
    model.load_state_dict(load_file(HERE / plan / "weights.safetensors"))
    return ShippedModel(model, config.source, read_json(HERE / plan / "result.json"))
