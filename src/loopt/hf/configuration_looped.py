"""The config of a looped model in Transformers. An exported model carries this file."""

# Without `from __future__ import annotations`: Transformers checks the types of these fields when they are set.

import dataclasses
from typing import Any

from transformers import PreTrainedConfig

from loopt.model_config import ModelConfig
from loopt.plan import LoopPlan


class LoopedConfig(PreTrainedConfig):
    """The shape of a looped model, in the names of ``loopt.ModelConfig`` or in those of Transformers.

    ``num_hidden_layers`` is the depth, how many layers a token passes through, since caches have a place for each. It
    follows from the plan.
    """

    model_type = "loopt"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 (a dataclass takes no ClassVar of its base anew)
    attribute_map = {  # noqa: RUF012
        "hidden_size": "d_model",
        "num_attention_heads": "n_heads",
        "num_key_value_heads": "n_kv_heads",
        "intermediate_size": "d_ff",
        "max_position_embeddings": "max_len",
        "tie_word_embeddings": "tied_readout",
    }

    plan: str = "4x6"
    d_model: int = 512
    n_heads: int = 8
    d_ff: int = 2048
    vocab_size: int = 32_000
    max_len: int = 2048
    head_dim: int | None = None
    attention_scale: float | None = None
    positions: str = "rope"
    rope_base: float = 10_000.0
    norm: str = "rms"
    norm_placement: str = "pre"
    feed_forward: str = "gelu"
    biases: str = "none"
    tied_readout: bool = False
    n_kv_heads: int | None = None
    qk_norm: bool = False
    loop_norm: str = "none"
    injection: str = "none"
    loop_embedding: bool = False
    residual_scaling: bool = False
    exit_gate: bool = False

    loops: int | None = None
    """How often the loopable block runs; None: as often as the plan, with which the weights were trained, says."""
    num_hidden_layers: int = 24
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        for theirs, ours in self.attribute_map.items():  # before the checks below, not after them as Transformers does
            if theirs in kwargs:
                setattr(self, ours, kwargs.pop(theirs))
        if self.head_dim is None and self.n_heads and self.d_model % self.n_heads == 0:
            self.head_dim = self.d_model // self.n_heads
        if self.n_kv_heads is None:
            self.n_kv_heads = self.n_heads
        self.model_config()  # a value that is not allowed is named before anything is built
        self.num_hidden_layers = self.running_plan.depth
        super().__post_init__(**kwargs)

    @property
    def running_plan(self) -> LoopPlan:
        """Returns the plan with the loops that run."""
        plan = LoopPlan.parse(self.plan)
        return plan if self.loops is None else plan.with_loops(self.loops)

    def model_config(self) -> ModelConfig:
        """Returns the shape that the weights have."""
        shape = {field.name: getattr(self, field.name) for field in dataclasses.fields(ModelConfig)}
        if shape["n_kv_heads"] == self.n_heads:
            shape["n_kv_heads"] = None
        if shape["head_dim"] is not None and shape["head_dim"] * self.n_heads == self.d_model:
            shape["head_dim"] = None
        return ModelConfig(**shape)

    @classmethod
    def from_model_config(cls, config: ModelConfig, **more: Any) -> "LoopedConfig":
        """Returns the config of a model of that shape, with ``more`` fields of Transformers."""
        shape = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
        return cls(**(shape | {"plan": str(config.plan)} | more))
