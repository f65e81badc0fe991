"""What generation costs, beside Transformers' ``generate`` of a Llama of equal depth and width.

    python benchmarks/generate.py                       on a GPU, lm-1b: about six minutes on an H200
    python benchmarks/generate.py --preset lm-75m --batches 1 16 64
    python benchmarks/generate.py --device cpu          lm-10m on two cores

ours      Our engine: prompt at once, then a token a turn, on a GPU as one captured graph with sampling inside.
plain     Transformers' generate as it comes.
compiled  Transformers' generate with its static cache, which it compiles (on a GPU).
floor     What the bytes of weights and cache take at the bandwidth of a copy, measured in the same run.

Times are of whole calls, prompt included, after calls that warm everything up; ours and plain take turns. ms a token is
that of the tokens after the first, for all rows together. Nothing is asserted about time.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from loopt import LoopedTransformer, LoopPlan, ModelConfig
from loopt.generation import CachePolicy, Engine, Settings, cache_bytes
from loopt.scoring.precision import bfloat16_copy
from loopt.training.presets import PRESETS

Call = Callable[[], float]
WIDTHS = "{:10} {:>6} {:10} {:>10} {:>11} {:>11} {:>8} {:>10} {:>11}"


def main() -> None:
    options = read_options()
    device = torch.device(options.device)
    preset = options.preset or ("lm-1b" if device.type == "cuda" else "lm-10m")
    config = replace(PRESETS[preset]().model, max_len=options.prompt + options.new)
    if options.width:
        config = replace(config, d_model=options.width, n_heads=4, d_ff=2 * options.width, vocab_size=500)
    bandwidth = copy_bandwidth(device)
    print(machine(device, bandwidth))
    print(f"{preset}: prompt {options.prompt}, {options.new} new tokens, {options.turns} turns")
    print(
        WIDTHS.format("plan", "batch", "what", "seconds", "tokens/s", "ms a token", "of floor", "x plain", "x compiled")
    )
    for batch in options.batches:
        for plan in options.plans:
            measure(replace(config, plan=LoopPlan.parse(plan)), batch, device, bandwidth, options)
            gc.collect()
            torch.compiler.reset()
            if device.type == "cuda":
                torch.cuda.empty_cache()


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--preset", choices=[name for name in PRESETS if name.startswith("lm-")])
    parser.add_argument("--plans", nargs="+", default=["4x6", "24x1"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16, 64])
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new", type=int, default=256)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--peers", nargs="*", choices=["plain", "compiled"], default=["plain", "compiled"])
    parser.add_argument("--temperature", type=float, default=0.0, help="of ours; sampling is inside the graph")
    parser.add_argument("--width", type=int, help="a tiny model of this width, to try the program")
    return parser.parse_args()


def machine(device: torch.device, bandwidth: float) -> str:
    import transformers

    name = torch.cuda.get_device_name() if device.type == "cuda" else f"{platform.machine()}, {torch.get_num_threads()}"
    return (
        f"{name}, copies at {bandwidth / 1e9:,.0f} GB/s; torch {torch.__version__}, "
        f"transformers {transformers.__version__}, Python {platform.python_version()}"
    )


def copy_bandwidth(device: torch.device) -> float:
    """Returns bytes read and written by a large copy, per second."""
    source = torch.empty(2**30 if device.type == "cuda" else 2**27, dtype=torch.uint8, device=device).fill_(1)
    target = torch.empty_like(source)
    times = []
    for _ in range(6):
        synchronize(device)
        began = time.perf_counter()
        target.copy_(source)
        synchronize(device)
        times.append(time.perf_counter() - began)
    return 2 * source.numel() / min(times)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure(
    config: ModelConfig, batch: int, device: torch.device, bandwidth: float, options: argparse.Namespace
) -> None:
    prompts = torch.randint(config.vocab_size, (batch, options.prompt), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = LoopedTransformer(config).to(device)
    model = bfloat16_copy(model) if device.type == "cuda" else model
    floor = floor_seconds(config, batch, options.prompt, options.new, bandwidth, 2 if device.type == "cuda" else 4)
    calls: dict[str, tuple[Call, Call]] = {"ours": ours(model, prompts.tolist(), options, device)}
    peer = None
    if options.peers:
        peer = llama_like(model, config).to(device)
        for kind in options.peers:
            calls[kind] = theirs(peer, prompts.to(device), kind, options, device)
    found: dict[str, tuple[float, float]] = {}
    for name, (whole, first) in calls.items():
        if name != "ours" and device.type == "cuda":
            torch.cuda.empty_cache()
        for _ in range(2):
            whole()
        whole_times = [whole() for _ in range(options.turns)]
        first_times = [first() for _ in range(options.turns)]
        found[name] = statistics.median(whole_times), statistics.median(first_times)
    for name, (seconds, until_first) in found.items():
        token = (seconds - until_first) / (options.new - 1)
        ratios = [f"{found[peer][0] / seconds:.2f}" if peer in found else "" for peer in ("plain", "compiled")]
        print(
            WIDTHS.format(
                str(config.plan), batch, name, f"{seconds:.3f}", f"{batch * options.new / seconds:,.0f}",
                f"{1e3 * token:.3f}", f"{floor / token:.0%}", *(ratios if name == "ours" else ("", "")),
            ),
            flush=True,
        )  # fmt: skip
    del calls, peer


def floor_seconds(
    config: ModelConfig, batch: int, prompt: int, new: int, bandwidth: float, bytes_of_number: int
) -> float:
    """Returns how long the bytes of a token take: the weights of every layer that runs, the readout, and the cache at
    its mean length. A looped block is read again in every loop, unless it stays in the chip's own cache."""
    depth_config = replace(config, plan=config.plan.iso_flop)
    weights = (depth_config.parameters() - config.vocab_size * config.d_model) * bytes_of_number
    kept = cache_bytes(config, config.plan, batch, prompt + new // 2, CachePolicy(), bytes_of_number)
    return (weights + kept) / bandwidth


def ours(
    model: LoopedTransformer, prompts: list[list[int]], options: argparse.Namespace, device: torch.device
) -> tuple[Call, Call]:
    def engine_for(new: int) -> Engine:
        settings = Settings(max_new_tokens=new, temperature=options.temperature, batch_size=len(prompts))
        return Engine(model, len(prompts), options.prompt + new, settings)

    engines = engine_for(options.new), engine_for(1)
    return tuple(timed(lambda engine=engine: engine.generate(prompts), device) for engine in engines)  # type: ignore[misc, return-value]


def theirs(
    peer: Any, prompts: torch.Tensor, kind: str, options: argparse.Namespace, device: torch.device
) -> tuple[Call, Call]:
    def generate(new: int) -> None:
        extra = {"cache_implementation": "static"} if kind == "compiled" else {}
        mask = torch.ones_like(prompts)
        with torch.no_grad():
            said = peer.generate(
                prompts, attention_mask=mask, max_new_tokens=new, min_new_tokens=new, do_sample=False, **extra
            )
        assert said.shape[1] == options.prompt + new

    return timed(lambda: generate(options.new), device), timed(lambda: generate(1), device)


def timed(call: Callable[[], object], device: torch.device) -> Call:
    def run() -> float:
        synchronize(device)
        began = time.perf_counter()
        call()
        synchronize(device)
        return time.perf_counter() - began

    return run


def llama_like(model: LoopedTransformer, config: ModelConfig) -> Any:
    """Returns Transformers' Llama of the same depth and width; with the same weights where no layer is looped."""
    import transformers

    transformers.logging.set_verbosity_error()
    steps = step_cpu()
    peer = steps.llama(config).to(model.token_embedding.weight.dtype)
    if config.plan.depth == config.plan.distinct_layers:
        peer.load_state_dict({name: value.cpu() for name, value in steps.llama_weights(model).items()})
    peer.generation_config.eos_token_id = None
    peer.generation_config.pad_token_id = 0
    return peer.eval()


def step_cpu() -> ModuleType:
    """Returns the program beside this one, which knows how Llama's weights are made of ours."""
    path = Path(__file__).with_name("step_cpu.py")
    spec = importlib.util.spec_from_file_location("step_cpu", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["step_cpu"] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
