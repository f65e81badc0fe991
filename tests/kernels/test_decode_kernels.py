"""The decoding kernels compute what the model's own layers do, to rounding; decoding on a GPU is decoding on a CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from loopt import LoopedTransformer, LoopPlan, ModelConfig
from loopt.attention import Context, Heads, rotations
from loopt.generation import Decoder, Engine, Entropy, Settings, StateChange, generate
from loopt.generation.attention import NewTokens, StepSlot, attend_new
from loopt.generation.cache import CachePolicy, Place
from loopt.generation.sampling import BROKEN, Sampler, Sampling
from loopt.kernels import decode_kernels
from loopt.scoring.precision import bfloat16_copy

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

PRODUCTS = [  # inputs, outputs, rows, type: every choice of tiles, sizes that do not divide, the sizes of lm-1b
    *((96, 50, rows, torch.float32) for rows in (1, 3)),
    *((64, 96, rows, torch.bfloat16) for rows in (1, 2, 33)),
    *((2048, 6144, rows, torch.bfloat16) for rows in (1, 16, 64)),
    *((5120, 2048, rows, torch.bfloat16) for rows in (1, 7, 64)),
]
SMALL = ModelConfig(
    LoopPlan.parse("2x3"), d_model=64, n_heads=4, d_ff=160, vocab_size=77, max_len=200, feed_forward="swiglu"
)


def kernels(module: str = "decode") -> Any:
    return pytest.importorskip(f"loopt.kernels.{module}")


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(sum(shape) + seed)
    return torch.randn(*shape, device="cuda", generator=generator).to(dtype)


def relative(found: Tensor, wanted: Tensor) -> float:
    return ((found.double() - wanted.double()).norm() / wanted.double().norm()).item()


@pytest.mark.parametrize(("inputs", "outputs", "rows", "dtype"), PRODUCTS)
def test_products_are_those_in_float64(inputs: int, outputs: int, rows: int, dtype: torch.dtype) -> None:
    x = normal(rows, inputs, dtype=dtype)
    weight, gate = (normal(outputs, inputs, dtype=dtype, seed=s) * inputs**-0.5 for s in (1, 2))
    norm, residual = torch.nn.RMSNorm(inputs, eps=1e-6), normal(rows, outputs, dtype=dtype, seed=3)
    norm.weight.data = normal(inputs, dtype=dtype, seed=4)
    linear = kernels().linear
    exact, right, gated = x.double(), weight.double(), gate.double()
    normed = F.rms_norm(exact, (inputs,), norm.weight.double(), 1e-6)
    cases = {
        "plain": (linear(x, weight), exact @ right.T),
        "normed": (linear(x, weight, norm=norm), normed @ right.T),
        "added": (linear(x, weight, residual=residual, alpha=0.3), residual.double() + 0.3 * (exact @ right.T)),
        "swiglu": (
            linear(x, weight, norm=norm, kind="swiglu", gate=gate),
            F.silu(normed @ gated.T) * (normed @ right.T),
        ),
        "gelu": (linear(x, weight, norm=norm, kind="gelu"), F.gelu(normed @ right.T)),
        "relu": (linear(x, weight, kind="relu"), F.relu(exact @ right.T)),
        "exact": (
            linear(x, weight, norm=norm, out=torch.empty(rows, outputs, device="cuda", dtype=torch.float32)),
            normed @ right.T,
        ),
    }
    bound = 1e-2 if dtype == torch.bfloat16 else 1e-5
    for name, (found, wanted) in cases.items():
        assert found.shape == wanted.shape
        assert relative(found, wanted) < bound, name


@pytest.mark.parametrize("window", [None, 48])
@pytest.mark.parametrize(("rows", "room"), [(1, 33), (1, 1280), (5, 300), (64, 129)])
@pytest.mark.parametrize(
    ("heads", "keys", "head_dim", "rope"), [(4, 4, 64, True), (4, 2, 16, True), (6, 1, 128, False)]
)
def test_attention_is_that_in_float64(
    rows: int, room: int, heads: int, keys: int, head_dim: int, window: int | None, rope: bool
) -> None:
    places = room if window is None else min(window, room)
    positions = torch.tensor([(room - 1, 0, room // 2, 1, places - 1)[row % 5] for row in range(rows)], device="cuda")
    qkv = normal(rows, heads + 2 * keys, head_dim)
    kept = [normal(rows, keys, places, head_dim, seed=s) for s in (1, 2)]
    tables = [table.cuda()[positions[:, None]] for table in rotations(room, head_dim, 10_000.0)]
    found, wanted = list[Tensor](), list[Tensor]()
    ours = kernels("decode_attention").attend
    for attend, results, dtype in ((ours, found, torch.bfloat16), (attend_new, wanted, torch.float64)):
        place = Place(kept[0].to(dtype, copy=True), kept[1].to(dtype, copy=True), window)
        new = NewTokens.at(positions[:, None], None, room)
        given = (tables[0].to(torch.float32), tables[1].to(torch.float32)) if rope else None
        context = Context(((rows, 1),), given, attend, StepSlot(place, new))
        results += [attend(qkv.to(dtype), context, Heads(heads, keys, head_dim**-0.5)), place.keys, place.values]
    for one, right in zip(found, wanted, strict=True):
        assert relative(one, right) < 1e-2
    again = Place(kept[0].clone(), kept[1].clone(), window)
    context = Context(((rows, 1),), given, ours, StepSlot(again, new))
    assert torch.equal(ours(qkv, context, Heads(heads, keys, head_dim**-0.5)), found[0])  # to the bit


@pytest.mark.parametrize(("rows", "tokens", "room"), [(1, 3, 1280), (5, 4, 100), (16, 2, 40)])
@pytest.mark.parametrize(("heads", "keys"), [(4, 4), (6, 2)])
def test_several_new_tokens_see_each_other(rows: int, tokens: int, room: int, heads: int, keys: int) -> None:
    starts = torch.tensor([(room - tokens, 0, room // 2)[row % 3] for row in range(rows)], device="cuda")
    positions = starts[:, None] + torch.arange(tokens, device="cuda")
    qkv, kept = normal(rows * tokens, heads + 2 * keys, 64), [normal(rows, keys, room, 64, seed=s) for s in (1, 2)]
    cos, sin = (table.cuda()[positions] for table in rotations(room, 64, 10_000.0))
    found, wanted = list[Tensor](), list[Tensor]()
    ours = kernels("decode_attention").attend
    for attend, results, dtype in ((ours, found, torch.bfloat16), (attend_new, wanted, torch.float64)):
        place = Place(kept[0].to(dtype, copy=True), kept[1].to(dtype, copy=True), None)
        context = Context(((rows, tokens),), (cos, sin), attend, StepSlot(place, NewTokens.at(positions, None, room)))
        results += [attend(qkv.to(dtype), context, Heads(heads, keys, 0.125)), place.keys, place.values]
    for one, right in zip(found, wanted, strict=True):
        assert relative(one, right) < 1e-2


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.5])
@pytest.mark.parametrize(("rows", "words"), [(1, 50_304), (64, 50_277), (3, 11), (1, 1)])
def test_tokens_are_chosen_as_on_a_cpu(rows: int, words: int, temperature: float) -> None:
    logits = 3 * normal(rows, words + 27, dtype=torch.float32)[:, :words]
    chosen = []
    for device in ("cuda", "cpu"):
        sampler = Sampler(Sampling(temperature=temperature), rows, words + 27, words, torch.device(device))
        sampler.begin(list(range(rows)), [[0]] * rows)
        chosen.append([sampler.choose(logits.to(device)) for _ in range(4)])
    for (tokens, found), (right, wanted) in zip(*chosen, strict=True):
        agree = tokens.cpu() == right  # rounding decides where a random number falls between two tokens
        assert agree.float().mean() > 0.95
        torch.testing.assert_close(found.cpu()[agree], wanted[agree], rtol=1e-4, atol=1e-4)
    logits[-1, words // 2] = float("nan")
    assert sampler.choose(logits.cpu())[0][-1] == BROKEN
    on_gpu = Sampler(Sampling(temperature=temperature), rows, words + 27, words, torch.device("cuda"))
    on_gpu.begin([0] * rows, [[0]] * rows)
    assert on_gpu.choose(logits)[0][-1] == BROKEN
    assert on_gpu.choose(torch.zeros(rows, words, device="cuda"))[0].max() < words


def build(**changes: Any) -> LoopedTransformer:
    torch.manual_seed(0)
    return LoopedTransformer(replace(SMALL, **changes)).cuda()


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"n_kv_heads": 2},
    "gelu, learned positions": {"feed_forward": "gelu", "positions": "learned"},
    "norms": {"qk_norm": True, "loop_norm": "own", "norm_placement": "sandwich"},
    "injection, embedding, scaling": {"injection": "matrix", "loop_embedding": True, "residual_scaling": True},
    "wide heads": {"head_dim": 24},
}


@pytest.mark.parametrize("policy", ["all", "last", "first+window"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_decoding_is_that_on_a_cpu(options: dict[str, Any], policy: Any) -> None:
    """Eager at first, then as a captured graph, with rows of different lengths."""
    model = build(**options)
    on_cpu = LoopedTransformer(model.config)
    on_cpu.load_state_dict(model.state_dict())
    ids = torch.randint(77, (3, 60), generator=torch.Generator().manual_seed(1))
    decoders = [Decoder(one, 3, 60, loops=4, policy=CachePolicy(policy, 8)) for one in (model, on_cpu.double())]
    lengths = [3, 40, 17]
    for decoder in decoders:
        decoder.prefill([ids[row, :length].tolist() for row, length in enumerate(lengths)])
    for step in range(12):
        assert relative(decoders[0].logits.cpu(), decoders[1].logits) < 1e-4, step
        tokens = torch.stack([ids[row, length + step] for row, length in enumerate(lengths)])
        decoders[0].step(tokens.cuda())
        decoders[1].step(tokens)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_which_kernels_are_taken(options: dict[str, Any]) -> None:
    kernels()
    found = decode_kernels(build(**options), rows=4)
    whole = not options.get("qk_norm")
    assert (found.attend is not None) == ("head_dim" not in options)
    assert (found.run_layer is not None) == (whole and "head_dim" not in options)
    assert decode_kernels(build(), rows=33).run_layer is None


@pytest.mark.parametrize("rule", [Entropy(0.7), StateChange(0.4)], ids=lambda rule: type(rule).__name__)
def test_exits_are_those_on_a_cpu(rule: Any) -> None:
    model = build(plan=LoopPlan.parse("1x(1,5,1)"), max_len=40)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)  # so that loops differ
    on_cpu = LoopedTransformer(model.config)
    on_cpu.load_state_dict(model.state_dict())
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]
    ours = Decoder(model, 3, 30, exit_rule=rule)
    theirs = Decoder(on_cpu.double(), 3, 30, exit_rule=rule)
    used = set[int]()
    for decoder in (ours, theirs):
        decoder.prefill(prompts)
    for step in range(15):
        tokens = torch.tensor([step, 2 * step, 3 * step])
        ours.step(tokens.cuda())
        theirs.step(tokens)
        assert ours.loops_used.tolist() == theirs.loops_used.tolist()
        assert relative(ours.logits.cpu(), theirs.logits) < 1e-4
        used |= set(ours.loops_used.tolist())
    assert len(used) > 1


def test_generated_texts_are_those_on_a_cpu() -> None:
    """Greedy, sampled, and drafted; read while the next turn is under way."""
    model = build()
    on_cpu = LoopedTransformer(model.config)
    on_cpu.load_state_dict(model.state_dict())
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]
    for settings in (
        Settings(max_new_tokens=20),
        Settings(max_new_tokens=20, temperature=1.0, top_p=0.9, samples=2),
        Settings(max_new_tokens=20, temperature=1.0, repetition_penalty=1.2),
        Settings(max_new_tokens=20, draft_loops=1, draft_tokens=3),
    ):
        ours, theirs = generate(model, prompts, settings), generate(on_cpu, prompts, settings)
        assert [one.tokens for one in ours] == [one.tokens for one in theirs]
        for one, other in zip(ours, theirs, strict=True):
            assert one.log_probabilities == pytest.approx(other.log_probabilities, abs=1e-3)
            assert (one.drafted, one.accepted) == (other.drafted, other.accepted)


def test_a_captured_engine_serves_other_prompts() -> None:
    model = bfloat16_copy(build())
    engine = Engine(model, rows=4, length=120, settings=Settings(max_new_tokens=30))
    first = engine.generate([[1, 2], [3], [4, 5, 6], [7]])
    engine.generate([[9] * 80])
    again = engine.generate([[1, 2], [3], [4, 5, 6], [7]])
    assert [one.tokens for one in again] == [one.tokens for one in first]
