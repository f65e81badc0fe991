"""A decoder that was looped is the one unrolled by hand, and generates, saves, loads and trains like any other."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

import transformers as tf
from torch import Tensor
from transformers import PreTrainedModel

from command_line import run as run_command
from loopt import InputError
from loopt.hf import CosineRegularizer, LoopedConfig, LoopedDecoder, LoopedForCausalLM, loop_model
from loopt.hf.decoder_layers import find_layers

SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "vocab_size": 19,
    "max_position_embeddings": 64,
}
GROUPED = SIZES | {"num_key_value_heads": 1}
WINDOWED = GROUPED | {"head_dim": 8, "sliding_window": 4}
EXPERTS: dict[str, Any] = {
    "moe_intermediate_size": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
}
FAMILIES: dict[str, tf.PreTrainedConfig] = {
    "gpt2": tf.GPT2Config(
        n_layer=4, n_embd=16, n_head=2, vocab_size=19, n_positions=64, bos_token_id=0, eos_token_id=0
    ),
    "llama": tf.LlamaConfig(**GROUPED),
    "qwen2": tf.Qwen2Config(**GROUPED),
    "qwen3": tf.Qwen3Config(**GROUPED, head_dim=8),
    "mistral": tf.MistralConfig(**GROUPED, sliding_window=4),
    "gemma": tf.GemmaConfig(**GROUPED, head_dim=8),
    "gemma2": tf.Gemma2Config(**WINDOWED),
    "gemma3": tf.Gemma3TextConfig(**WINDOWED),
    "deepseek_v3": tf.DeepseekV3Config(**SIZES, num_key_value_heads=2, **EXPERTS, first_k_dense_replace=0),
    "deepseek_v32": tf.DeepseekV32Config(
        **SIZES,
        num_key_value_heads=2,
        **EXPERTS,
        mlp_layer_types=["sparse"] * 4,
        index_n_heads=2,
        index_head_dim=8,
        index_topk=64,  # with fewer, it does not generate the same with a cache and without, unlooped either
    ),
    "bloom": tf.BloomConfig(n_layer=4, hidden_size=16, n_head=2, vocab_size=19),
    "mpt": tf.MptConfig(n_layers=4, d_model=16, n_heads=2, vocab_size=19, max_seq_len=64),
    "codegen": tf.CodeGenConfig(
        n_layer=4, n_embd=16, n_head=4, rotary_dim=4, vocab_size=19, n_positions=64, bos_token_id=0, eos_token_id=0
    ),
    "xglm": tf.XGLMConfig(num_layers=4, d_model=16, attention_heads=2, ffn_dim=24, vocab_size=19),
}
SETTINGS: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}


def decoder(family: str = "llama") -> PreTrainedModel:
    torch.manual_seed(3)
    model: PreTrainedModel = tf.AutoModelForCausalLM.from_config(copy.deepcopy(FAMILIES[family])).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def layers_of(model: PreTrainedModel) -> Any:
    return getattr(*find_layers(model))


def ids(rows: int = 2, length: int = 7) -> Tensor:
    return torch.randint(1, 19, (rows, length), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_it_is_the_model_unrolled_by_hand(family: str, tmp_path: Path) -> None:
    model = decoder(family)
    before = copy.deepcopy(model.state_dict())
    looped = loop_model(model, "2x2")
    unrolled = copy.deepcopy(model)
    for number in (2, 3):
        layers_of(unrolled)[number].load_state_dict(layers_of(model)[number - 2].state_dict())
    torch.testing.assert_close(looped(ids()).logits, unrolled(ids()).logits, rtol=0, atol=1e-6)
    assert not torch.allclose(looped(ids()).logits, model(ids()).logits)
    written = unrolled.generate(ids(), **SETTINGS).tolist()
    assert looped.generate(ids(), **SETTINGS).tolist() == written
    assert looped.generate(ids(), use_cache=False, **SETTINGS).tolist() == written
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in before.items())
    looped.save_pretrained(tmp_path)
    loaded = tf.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(loaded, LoopedDecoder)
    assert loaded.num_parameters() == looped.num_parameters() < model.num_parameters()
    assert torch.equal(loaded.eval()(ids()).logits, looped(ids()).logits)


@torch.no_grad()
def test_the_middle_loops_and_loops_can_be_set() -> None:
    model = decoder()
    looped = loop_model(model, "1x1+2x3+1x1")
    for loops in (3, 1, 2):
        looped.set_loops(loops)
        order = [0, *[1, 2] * loops, 3]
        unrolled = tf.LlamaForCausalLM(tf.LlamaConfig(**(GROUPED | {"num_hidden_layers": len(order)}))).eval()
        unrolled.load_state_dict(model.state_dict(), strict=False)
        for layer, number in zip(unrolled.model.layers, order, strict=True):
            layer.load_state_dict(layers_of(model)[number].state_dict())
        torch.testing.assert_close(looped(ids()).logits, unrolled(ids()).logits, rtol=0, atol=1e-6)
        written = unrolled.generate(ids(), **SETTINGS).tolist()
        assert looped.generate(ids(), **SETTINGS).tolist() == written
    looped.set_loops(1)
    torch.testing.assert_close(looped(ids()).logits, model(ids()).logits, rtol=0, atol=1e-6)


@torch.no_grad()
def test_layers_are_chosen_or_averaged() -> None:
    model = decoder("gpt2")
    name = "mlp.c_fc.weight"
    of_model = [layer.get_parameter(name) for layer in layers_of(model)]
    chosen = loop_model(model, "2x5", layers=[3, 1])
    averaged = loop_model(model, "2x2", layers="average")
    assert torch.equal(chosen.looped_layers[0].get_parameter(name), of_model[3])
    assert torch.equal(chosen.looped_layers[1].get_parameter(name), of_model[1])
    torch.testing.assert_close(averaged.looped_layers[1].get_parameter(name), (of_model[1] + of_model[3]) / 2)


def test_damping_of_0_changes_nothing_at_first_and_is_learned(tmp_path: Path) -> None:
    model = decoder("gpt2")
    looped = loop_model(model, "4x3", damping=0.0)
    torch.testing.assert_close(looped(ids()).logits, model(ids()).logits, rtol=0, atol=1e-6)
    looped(ids(), labels=ids()).loss.backward()
    (factors,) = [parameter for name, parameter in looped.named_parameters() if name.startswith("damping")]
    assert factors.shape == (2,)
    assert factors.grad is not None
    assert (factors.grad != 0).all()
    halved = loop_model(model, "4x2", damping=0.5)
    halved.save_pretrained(tmp_path)
    loaded = LoopedDecoder.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(ids()).logits, halved(ids()).logits)
    assert not torch.allclose(halved(ids()).logits, loop_model(model, "4x2")(ids()).logits)


def test_what_cannot_be_is_refused_with_what_was_looked_for() -> None:
    for plan, options, message in (
        ("3x2", {}, "plan=3x2: allowed for a model of 4 layers"),
        ("2x2", {"layers": [0, 4]}, "allowed with plan 2x2 are 2 of 0 to 3"),
        ("2x2", {"layers": "last"}, "first | average"),
        ("2y2", {}, "expected 'x'"),
    ):
        with pytest.raises(InputError, match=message.replace("|", r"\|")):
            loop_model(decoder(), plan, **options)
    other = tf.MambaForCausalLM(tf.MambaConfig(hidden_size=8, num_hidden_layers=2, vocab_size=9, state_size=4))
    with pytest.raises(InputError, match=r"MambaForCausalLM: cannot be looped; looked for an nn\.ModuleList"):
        loop_model(other, "1x2")
    counts_otherwise = tf.GPTNeoForCausalLM(
        tf.GPTNeoConfig(hidden_size=8, num_layers=2, num_heads=2, attention_types=[[["global"], 2]], vocab_size=9)
    )
    with pytest.raises(InputError, match=r"GPTNeoForCausalLM: .* layer_idx, .*; not all layers of h are like that"):
        loop_model(counts_otherwise, "1x2")
    two_counts = tf.ProphetNetForCausalLM(
        tf.ProphetNetConfig(hidden_size=8, num_decoder_layers=2, num_decoder_attention_heads=2, decoder_ffn_dim=8)
    )
    with pytest.raises(InputError, match=r"ProphetNetForCausalLM: cannot be looped; .*num_hidden_layers"):
        loop_model(two_counts, "2x2")
    convolutions = tf.Lfm2ForCausalLM(
        tf.Lfm2Config(**SIZES, num_key_value_heads=1, layer_types=["conv", "full_attention"] * 2, block_multiple_of=8)
    )
    states = tf.FalconH1ForCausalLM(
        tf.FalconH1Config(**GROUPED, mamba_d_ssm=16, mamba_n_heads=2, mamba_d_head=8, mamba_n_groups=1, mamba_d_state=4)
    )
    for mixed in (convolutions, states):
        with pytest.raises(InputError, match=r"no state-space module, .* not all layers of layers are like that"):
            loop_model(mixed, "2x2")
    with pytest.raises(InputError, match="different kinds of attention"):
        loop_model(decoder("gemma2"), "1x4", layers="average")
    without_rope = tf.SmolLM3ForCausalLM(tf.SmolLM3Config(**GROUPED, pad_token_id=0, no_rope_layers=[1, 1, 1, 0]))
    with pytest.raises(InputError, match=r"layer 3 cannot be layer 0 .* they differ in self_attn.use_rope, 0 and 1"):
        loop_model(without_rope, "2x2", layers=[3, 1])
    dense_first = tf.DeepseekV3ForCausalLM(tf.DeepseekV3Config(**SIZES, **EXPERTS, first_k_dense_replace=2))
    with pytest.raises(InputError, match=r"layer 3 cannot be .* they differ in mlp, DeepseekV3MoE and DeepseekV3MLP"):
        loop_model(dense_first, "2x2", layers=[3, 1])
    sizes_by_place = tf.Gemma4UnifiedForCausalLM(tf.Gemma4UnifiedTextConfig(**SIZES, num_key_value_heads=2, head_dim=8))
    with pytest.raises(InputError, match=r"(per_layer_config goes by a layer's place|they differ in .*store_full)"):
        loop_model(sizes_by_place, "2x2")
    by_layer = tf.Gemma4ForCausalLM(tf.Gemma4TextConfig(**SIZES, head_dim=8, hidden_size_per_layer_input=4))
    with pytest.raises(
        InputError,
        match=r"cannot be (looped; model\.embed_tokens_per_layer|layer 1 of .*store_full)",
    ):
        loop_model(by_layer, "2x5", layers=[0, 1])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: tf.LlamaModel(tf.LlamaConfig(**GROUPED)), "LlamaModel: cannot be looped; allowed is LlamaForCausalLM"),
        (
            lambda: tf.T5ForConditionalGeneration(tf.T5Config(d_model=8, d_ff=8, num_layers=1)),
            "a decoder with a readout",
        ),
        (lambda: tf.BertForMaskedLM(tf.BertConfig(**SIZES)), "allowed is BertLMHeadModel"),
        (lambda: loop_model(decoder(), "2x2"), "LoopedDecoder: is looped already; set_loops changes how often"),
        (lambda: LoopedForCausalLM(LoopedConfig(plan="1x2", d_model=8, n_heads=2)), "is looped already"),
        (lambda: "gpt2", "model='gpt2': allowed is a model of Transformers"),
    ],
)
def test_what_is_no_decoder_with_a_readout_is_told_what_is(model: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        loop_model(model(), "2x2")


def test_a_model_that_reads_more_than_text_is_told_to_give_its_decoder() -> None:
    vision = tf.SiglipVisionConfig(**SIZES, image_size=8, patch_size=4)
    model = tf.Gemma3ForConditionalGeneration(
        tf.Gemma3Config(text_config=tf.Gemma3TextConfig(**GROUPED, head_dim=8), vision_config=vision)
    )
    with pytest.raises(InputError, match="it reads more than text; allowed is its decoder alone, Gemma3ForCausalLM"):
        loop_model(model, "2x2")


def test_what_a_looped_model_is_made_with_is_checked() -> None:
    for options, message in (
        ({"plan": None}, "plan=None: allowed is a LoopPlan"),
        ({"plan": "2x2", "damping": "x"}, "damping=x: allowed is a number or None"),
        ({"plan": "2x2", "damping": math.nan}, "damping=nan: allowed is a number or None"),
        ({"plan": "2x2", "layers": [0.5, 1]}, "allowed with plan 2x2 are 2 of 0 to 3"),
    ):
        with pytest.raises(InputError, match=message):
            loop_model(decoder(), **options)
    with pytest.raises(InputError, match="loops='3'; loops must be 1 or more"):
        loop_model(decoder(), "2x2").set_loops("3")  # type: ignore[arg-type]


@torch.no_grad()
def test_it_keeps_its_attention_takes_embeddings_and_grows_its_vocabulary() -> None:
    model = decoder("llama")
    model.set_attn_implementation("eager")
    looped = loop_model(model, "2x2")
    assert looped.decoder.config._attn_implementation == "eager"
    given: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    by_ids = looped.generate(ids(), **given)
    by_embeddings = looped.generate(inputs_embeds=looped.get_input_embeddings()(ids()), **given)
    assert by_embeddings.tolist() == by_ids[:, ids().shape[1] :].tolist()
    before, words = looped(ids()).logits, model.config.vocab_size
    looped.resize_token_embeddings(words + 3)
    torch.testing.assert_close(looped(ids()).logits[..., :words], before)
    assert looped(ids() * 0 + words + 2).logits.shape[-1] == words + 3


@pytest.mark.parametrize("family", ["gpt2", "gemma3", "bloom"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("beams", [1, 2])
@torch.no_grad()
def test_rows_padded_on_the_left_generate_what_each_does_alone(family: str, cache: str, beams: int) -> None:
    looped = loop_model(decoder(family), "1x1+2x3+1x1")
    settings = SETTINGS | {"cache_implementation": cache, "num_beams": beams}
    rows = [ids(1, length)[0] for length in (3, 7)]
    padded = torch.stack([torch.cat([torch.zeros(7 - len(row), dtype=torch.long), row]) for row in rows])
    mask = torch.stack([(torch.arange(7) >= 7 - len(row)).long() for row in rows])
    together = looped.generate(padded, attention_mask=mask, **settings)
    for row, written in zip(rows, together, strict=True):
        alone = looped.generate(row[None], use_cache=False, **(SETTINGS | {"num_beams": beams}))[0]
        assert written[7:].tolist() == alone[len(row) :].tolist()


def test_a_cache_with_too_few_places_is_an_index_error() -> None:
    looped = loop_model(decoder(), "1x1+2x2+1x1")
    cache = tf.StaticCache(config=looped.config.text_config, max_cache_len=64)
    looped(ids(), past_key_values=cache)
    looped.set_loops(3)
    with pytest.raises(IndexError):
        looped(ids(), past_key_values=cache)
    with pytest.raises(InputError, match="loops must be 1 or more"):
        looped.set_loops(0)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_checkpointing_changes_no_gradient(family: str) -> None:
    gradients = []
    for again in (False, True):
        looped = loop_model(decoder(family), "1x1+2x3+1x1", damping=0.5)
        if again:
            looped.gradient_checkpointing_enable()
        looped.train()
        for module in looped.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        looped(ids(), labels=ids(), use_cache=False).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in looped.named_parameters()})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        assert gradient is not None
        assert gradient.abs().max() > 0
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_lora_trains_the_looped_block(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    looped = loop_model(decoder(), "1x1+2x3+1x1")
    start = looped(ids()).logits.detach()
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(looped, config)
    optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        adapted(ids(), labels=ids()).loss.backward()
        optimizer.step()
    trained = adapted.eval()(ids()).logits.detach()
    assert not torch.allclose(trained, start)
    adapted.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(loop_model(decoder(), "1x1+2x3+1x1"), tmp_path)
    torch.testing.assert_close(again.eval()(ids()).logits, trained)
    torch.testing.assert_close(adapted.merge_and_unload()(ids()).logits, trained, rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_regularizer_is_minus_the_mean_cosine_of_layers_apart(family: str) -> None:
    model = decoder(family)
    regularizer = CosineRegularizer(model, block=2, weight=10.0)
    layers = [[p.flatten() for p in layer.parameters() if p.dim() == 2] for layer in layers_of(model)]
    cosines = [a @ b / a.norm() / b.norm() for i in (0, 1) for a, b in zip(layers[i], layers[i + 2], strict=True)]
    torch.testing.assert_close(regularizer(), -10 * sum(cosines) / len(cosines))
    descent = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(30):
        descent.zero_grad()
        regularizer().backward()
        descent.step()
    assert regularizer.cosine() > 0.5 > sum(cosines) / len(cosines)
    with pytest.raises(InputError, match="block"):
        CosineRegularizer(model, block=3)


def test_the_regularizer_takes_what_is_looped_and_what_cannot_be() -> None:
    looped = loop_model(decoder("llama"), "2x3", layers=[0, 3])
    layers = [[p.flatten() for p in layer.parameters() if p.dim() == 2] for layer in looped.looped_layers]
    cosines = [a @ b / a.norm() / b.norm() for a, b in zip(*layers, strict=True)]
    torch.testing.assert_close(CosineRegularizer(looped, block=1, weight=2.0)(), -2 * sum(cosines) / len(cosines))
    states = tf.MambaForCausalLM(tf.MambaConfig(hidden_size=8, num_hidden_layers=2, vocab_size=9, state_size=4))
    assert -1 <= CosineRegularizer(states, block=1).cosine() <= 1
    absent = tf.LlamaForCausalLM(tf.LlamaConfig(**GROUPED))
    absent.model.layers = absent.model.layers[:3]
    with pytest.raises(InputError, match=r"layers are not found; looked for an nn.ModuleList of num_hidden_layers=4"):
        CosineRegularizer(absent, block=1)


def test_analyze_similarity_takes_any_decoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    decoder("gpt2").save_pretrained(tmp_path / "gpt2")
    out = tmp_path / "out"
    assert run_command("analyze", "similarity", "--hf", str(tmp_path / "gpt2"), "--out", str(out)) == 0
    (groups,) = json.loads((out / "similarity.json").read_text()).values()
    a, b = (layers_of(decoder("gpt2"))[i].mlp.c_fc.weight.flatten() for i in (0, 3))
    assert groups["mlp.c_fc"][0][3] == pytest.approx((a @ b / a.norm() / b.norm()).item(), abs=1e-5)
    assert run_command("analyze", "similarity", "--hf", str(tmp_path / "gpt2")) == 2
    assert run_command("analyze", "similarity", "--hf", str(tmp_path / "absent"), "--out", str(out)) == 2
    assert "cannot be loaded" in capsys.readouterr().err
