"""Ouro (ByteDance): all layers looped, norms before and after each sublayer, the final norm after every loop, and a
gate that tells when to stop."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from loopt.errors import InputError, require
from loopt.model_config import ModelConfig

NAMES = {
    "model.embed_tokens.weight": "token_embedding.weight",
    "model.norm.weight": "final_norm.weight",
    "model.early_exit_gate.weight": "exit_gate.weight",
    "model.early_exit_gate.bias": "exit_gate.bias",
    "lm_head.weight": "readout_projection.weight",
}
NAMES_IN_LAYER = {
    "self_attn.o_proj.weight": "attention.output.weight",
    "mlp.up_proj.weight": "feed_forward.up.weight",
    "mlp.gate_proj.weight": "feed_forward.gate.weight",
    "mlp.down_proj.weight": "feed_forward.down.weight",
    "input_layernorm.weight": "attention_norm.weight",
    "input_layernorm_2.weight": "attention_out_norm.weight",
    "post_attention_layernorm.weight": "feed_forward_norm.weight",
    "post_attention_layernorm_2.weight": "feed_forward_out_norm.weight",
}


def ouro_config(described: dict[str, Any]) -> ModelConfig:
    """Returns the shape of ours that an Ouro model has, given its config.json."""
    rope = described.get("rope_parameters") or {}
    _check(described, rope)
    return ModelConfig(
        plan=f"{described['num_hidden_layers']}x{described.get('total_ut_steps', 4)}",  # type: ignore[arg-type]
        d_model=described["hidden_size"],
        n_heads=described["num_attention_heads"],
        d_ff=described["intermediate_size"],
        vocab_size=described["vocab_size"],
        max_len=described["max_position_embeddings"],
        head_dim=described.get("head_dim"),
        n_kv_heads=described.get("num_key_value_heads"),
        rope_base=float(rope.get("rope_theta", described.get("rope_theta", 10_000.0))),
        norm_placement="sandwich",
        feed_forward="swiglu",
        loop_norm="final",
        exit_gate=True,
        tied_readout=bool(described.get("tie_word_embeddings", False)),
    )


def _check(described: dict[str, Any], rope: dict[str, Any]) -> None:
    """Raises an InputError for what an Ouro model may be, and ours cannot."""
    require(
        described.get("hidden_act", "silu") == "silu", "hidden_act", described.get("hidden_act"), "silu", InputError
    )
    epsilon = described.get("rms_norm_eps", 1e-6)
    require(epsilon == 1e-6, "rms_norm_eps", epsilon, "1e-06", InputError)
    kinds = set(described.get("layer_types") or ["full_attention"])
    require(kinds == {"full_attention"}, "layer_types", sorted(kinds), "full_attention alone", InputError)
    scaling = described.get("rope_scaling") or {}
    kind = rope.get("rope_type", scaling.get("rope_type", scaling.get("type", "default")))
    require(kind == "default", "rope_type", kind, "default", InputError)
    loops = described.get("total_ut_steps", 4)
    require(isinstance(loops, int) and loops > 1, "total_ut_steps", loops, "2 or more", InputError)


def ouro_weights(tensors: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Returns the weights under our names. Queries, keys and values are one matrix of ours."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        in_layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name)
        if in_layer is None:
            found[NAMES.get(name, name)] = tensor
        elif in_layer[2] in NAMES_IN_LAYER:
            found[f"loop.layers.{in_layer[1]}.{NAMES_IN_LAYER[in_layer[2]]}"] = tensor
        elif not re.fullmatch(r"self_attn\.[qkv]_proj\.weight", in_layer[2]):
            found[name] = tensor
    for layer in range(config.plan.distinct_layers):
        parts = [f"model.layers.{layer}.self_attn.{one}_proj.weight" for one in "qkv"]
        if all(part in tensors for part in parts):
            found[f"loop.layers.{layer}.attention.qkv.weight"] = torch.cat([tensors[part] for part in parts])
    if config.tied_readout:
        found.pop("readout_projection.weight", None)
    return found
