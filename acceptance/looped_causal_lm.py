"""Transformers' own tests of causal language models, for ours. acceptance/transformers_tests.py puts this file among
theirs and runs it; by itself it imports nothing that is there."""

from __future__ import annotations

import unittest
from typing import Any

import torch
from transformers.models.auto import modeling_auto

import loopt.hf

from .causal_lm_tester import CausalLMModelTest, CausalLMModelTester

# Their training tests look up in these lists, which only in-tree models are in, whether a class takes labels.
modeling_auto.MODEL_MAPPING_NAMES["loopt"] = "LoopedModel"
modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["loopt"] = "LoopedForCausalLM"


class LoopedModelTester(CausalLMModelTester):  # type: ignore[misc]
    base_model_class = loopt.hf.LoopedModel
    config_class = loopt.hf.LoopedConfig
    causal_lm_class = loopt.hf.LoopedForCausalLM

    def __init__(self, parent: unittest.TestCase, **options: Any) -> None:
        super().__init__(parent, **options)
        self.plan, self.num_hidden_layers = "1x2", 2


class LoopedModelTest(CausalLMModelTest, unittest.TestCase):  # type: ignore[misc]
    model_tester_class = LoopedModelTester

    def test_sdpa_padding_matches_padding_free_with_position_ids(self) -> None:
        """Theirs compares bfloat16 logits to 0.008, which is less than a rounding of ours: our starting weights give
        logits of size 1. Here float32, to 1e-5."""
        config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
        model = loopt.hf.LoopedForCausalLM(config).eval()
        ids, mask = inputs["input_ids"], inputs["attention_mask"].flip(1)  # padded on the left
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        packed = torch.cat([torch.arange(int(length)) for length in mask.sum(1)])[None]
        there = mask.bool()
        with torch.no_grad():
            padded = model(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits[there]
            free = model(ids[there][None], position_ids=packed, use_cache=False).logits[0]
        torch.testing.assert_close(padded, free, rtol=1e-5, atol=1e-5)
