"""Caches that are kept beside the GPU, and kernels of attention: they say what plain attention says without a cache."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

import transformers as tf
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedModel
from transformers.utils import is_flash_attn_2_available

from loopt.hf import LoopedConfig, LoopedForCausalLM, loop_model

ON_A_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICES = ["cpu", pytest.param("cuda", marks=ON_A_GPU)]
KINDS = ["ours", "llama"]
SETTINGS: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}


def looped(kind: str, device: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A looped model with two heads of keys for four of queries, of ours or made of a Llama."""
    torch.manual_seed(5)
    if kind == "ours":
        sizes: dict[str, Any] = {"d_model": 64, "n_heads": 4, "n_kv_heads": 2, "d_ff": 64}
        model = LoopedForCausalLM(LoopedConfig(plan="1x(1,3,1)", vocab_size=19, max_len=64, **sizes))
    else:
        config = tf.LlamaConfig(
            hidden_size=64,
            intermediate_size=64,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=19,
            max_position_embeddings=64,
        )
        model = loop_model(tf.LlamaForCausalLM(config), "1x1+2x3+1x1")
    with torch.no_grad():
        for parameter in model.parameters():  # so that tokens and layers matter
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.eval().to(device, dtype)


def some_ids(device: str, rows: int = 2, length: int = 24) -> Tensor:
    """Without token 0, which pads."""
    return torch.randint(1, 19, (rows, length), generator=torch.Generator().manual_seed(1)).to(device)


def assert_as_exact(found: Tensor, plain: Tensor, exact: Tensor) -> None:
    """Checks that logits in bfloat16 are as near to exact ones as plain attention's are."""
    error, allowed = (found.float() - exact).abs().max(), (plain.float() - exact).abs().max()
    assert 0 < allowed < 0.2 * exact.std()
    assert error < 2 * allowed


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("cache", ["dynamic", "static", "offloaded", "offloaded_static"])
@torch.no_grad()
def test_every_cache_on_a_gpu_generates_what_none_does(cache: str, beams: int, kind: str) -> None:
    model, ids = looped(kind, "cuda"), some_ids("cuda")
    mask = torch.ones_like(ids)
    mask[0, :5] = 0  # padded on the left
    settings = SETTINGS | {"attention_mask": mask, "num_beams": beams}
    # torch 2.11 dies where `generate` compiles with this cache, also of an ordinary Llama.
    settings["disable_compile"] = cache == "offloaded_static"
    without = model.generate(ids, use_cache=False, **settings)
    assert model.generate(ids, cache_implementation=cache, **settings).tolist() == without.tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", DEVICES)
def test_continuous_batches_generate_what_each_row_does_alone(device: str, kind: str) -> None:
    """Transformers' own way of serving: requests come and go, and share a paged cache."""
    model, rows = looped(kind, device), [some_ids(device, 1, length) for length in (24, 5, 11)]
    alone = [model.generate(row, **SETTINGS)[0, row.shape[1] :].tolist() for row in rows]
    settings = tf.GenerationConfig(max_new_tokens=8, do_sample=False, pad_token_id=0, eos_token_id=-1)
    small = tf.ContinuousBatchingConfig(num_blocks=4, max_batch_tokens=32)
    found = model.generate_batch(
        [row[0].tolist() for row in rows], generation_config=settings, continuous_batching_config=small
    )
    assert [list(one.generated_tokens) for one in found.values()] == alone


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", DEVICES)
@torch.no_grad()
def test_the_flash_kernel_says_what_plain_attention_says(device: str, kind: str) -> None:
    exact_model, model, ids = looped(kind, device), looped(kind, device, torch.bfloat16), some_ids(device)
    exact = exact_model(ids).logits
    with sdpa_kernel(SDPBackend.MATH):
        plain = model(ids).logits
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # and no other: where it cannot run, this raises
        whole = model(ids).logits
        step = model(ids[:, :-2])
        logits = [step.logits]
        for place in (-2, -1):
            step = model(ids[:, place:][:, :1], past_key_values=step.past_key_values)
            logits.append(step.logits)
    assert_as_exact(whole, plain, exact)
    assert_as_exact(torch.cat(logits, 1), plain, exact)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", DEVICES)
def test_gradients_through_the_flash_kernel_are_those_of_plain_attention(device: str, kind: str) -> None:
    model, ids = looped(kind, device), some_ids(device)
    model = model.to(torch.bfloat16 if device == "cuda" else torch.float32)  # on a GPU it takes no other
    found = []
    for kernel in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        one = copy.deepcopy(model)
        with sdpa_kernel(kernel):
            one(ids, labels=ids).loss.backward()
        found.append({name: parameter.grad.float() for name, parameter in one.named_parameters()})
    for name, gradient in found[0].items():
        assert (found[1][name] - gradient).norm() < 0.05 * gradient.norm(), name


@pytest.mark.gpu
@pytest.mark.skipif(not is_flash_attn_2_available(), reason="needs a CUDA device and the package flash_attn")
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_flash_attention_2_with_padded_rows_says_what_plain_attention_says(kind: str) -> None:
    exact_model, model, ids = looped(kind, "cuda"), looped(kind, "cuda", torch.bfloat16), some_ids("cuda")
    mask = torch.ones_like(ids)
    mask[0, :5] = 0  # padded on the left
    model.set_attn_implementation("flash_attention_2")
    given = {"attention_mask": mask, "output_logits": True, "return_dict_in_generate": True}
    written = model.generate(ids, **given, **SETTINGS)
    ids, mask = written.sequences, torch.nn.functional.pad(mask, (0, 8), value=1)
    whole = model(ids, attention_mask=mask).logits
    model.set_attn_implementation("eager")
    plain = model(ids, attention_mask=mask).logits
    exact = exact_model(ids, attention_mask=mask).logits
    there = mask.bool()
    assert_as_exact(whole[there], plain[there], exact[there])
    assert_as_exact(torch.stack(written.logits, 1), plain[:, -9:-1], exact[:, -9:-1])
