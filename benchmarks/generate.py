"""What generation costs, beside Transformers' ``generate`` of a Llama of equal depth and width.

    python benchmarks/generate.py                       on a GPU, lm-1b: about six minutes on an H200
    python benchmarks/generate.py --preset lm-75m --batches 1 16 64
    python benchmarks/generate.py --device cpu          lm-10m on two cores

ours      Our engine: prompt at once, then a token a turn, on a GPU as one captured graph with sampling inside.
plain     Transformers' generate as it comes.
compiled  Transformers' generate with its static cache, which it compiles (on a GPU).
floor     What the bytes of weights and cache take at the bandwidth of a copy, measured in the same run.

Times are of whole calls, prompt included, after calls that warm everything up. All take turns; a ratio is the median
of the turns' ratios. ms a token is that of the tokens after the first, for all rows together. Peers have no loops, so
there is one for all plans. Nothing is asserted about time.
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

import torch

from loopt import LoopedTransformer, LoopPlan, ModelConfig
from loopt.generation import CachePolicy, Engine, Settings, cache_bytes
from loopt.scoring.precision import bfloat16_copy
from loopt.training.presets import PRESETS

Call = Callable[[], float]
PEERS = ("plain", "compiled")
WIDTHS = "{:10} {:>6} {:10} {:>10} {:>11} {:>11} {:>8} {:>10} {:>11}"


def main() -> None:
    options = read_options()
    device = torch.device(options.device)
    preset = options.preset or ("lm-1b" if device.type == "cuda" else "lm-10m")
    config = replace(PRESETS[preset]().model, max_len=options.prompt + options.new)
    bandwidth = copy_bandwidth(device)
    print(machine(device, bandwidth))
    print(f"{preset}: prompt {options.prompt}, {options.new} new tokens, {options.turns} turns")
    print(
        WIDTHS.format("plan", "batch", "what", "seconds", "tokens/s", "ms a token", "of floor", "x plain", "x compiled")
    )
    for batch in options.batches:
        measure(config, batch, device, bandwidth, options)
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
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--temperature", type=float, default=0.0, help="of ours; sampling is inside the graph")
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
    """Has all contenders take turns, so that whatever else the machine does hits all, and prints a line for each."""
    contenders = {kind: [peer(config, batch, kind, device, options)] for kind in options.peers}
    for plan in options.plans:
        contenders[plan] = ours(replace(config, plan=LoopPlan.parse(plan)), batch, device, options)
    for name, calls in contenders.items():
        for _ in range(1 if name == "plain" else 2):  # to compile and capture what is needed
            for call in calls:
                call()
    times: dict[str, list[list[float]]] = {name: [] for name in contenders}
    for _ in range(options.turns):
        for name, calls in contenders.items():
            times[name].append([call() for call in calls])
    for name, turns in times.items():
        whole = statistics.median(turn[0] for turn in turns)
        figures = [f"{whole:.3f}", f"{batch * options.new / whole:,.0f}"]
        if name in PEERS:
            print(WIDTHS.format("", batch, name, *figures, *[""] * 4), flush=True)
            continue
        token = statistics.median((turn[0] - turn[1]) / (options.new - 1) for turn in turns)
        floor = floor_seconds(replace(config, plan=LoopPlan.parse(name)), batch, bandwidth, options)
        figures += [f"{1e3 * token:.3f}", f"{floor / token:.0%}"]
        for kind in PEERS:
            pairs = zip(times.get(kind, []), turns, strict=False)
            ratios = [theirs[0] / mine[0] for theirs, mine in pairs]
            figures.append(f"{statistics.median(ratios):.2f}" if ratios else "")
        print(WIDTHS.format(name, batch, "ours", *figures), flush=True)


def floor_seconds(config: ModelConfig, batch: int, bandwidth: float, options: argparse.Namespace) -> float:
    """Returns how long the bytes of a token take: the weights of every layer that runs, the readout, and the cache at
    its mean length. A looped block is read again in every loop, unless it stays in the chip's own cache."""
    bytes_of_number = 2 if options.device == "cuda" else 4
    weights = replace(config, plan=config.plan.iso_flop).parameters() - config.vocab_size * config.d_model
    kept = cache_bytes(config, config.plan, batch, options.prompt + options.new // 2, CachePolicy(), bytes_of_number)
    return (weights * bytes_of_number + kept) / bandwidth


def prompts_of(config: ModelConfig, batch: int, options: argparse.Namespace) -> torch.Tensor:
    return torch.randint(config.vocab_size, (batch, options.prompt), generator=torch.Generator().manual_seed(0))


def ours(config: ModelConfig, batch: int, device: torch.device, options: argparse.Namespace) -> list[Call]:
    """Returns a whole call, and one that stops at the first token."""
    torch.manual_seed(0)
    with device:
        model = LoopedTransformer(config)
    model = bfloat16_copy(model) if device.type == "cuda" else model
    prompts = prompts_of(config, batch, options).tolist()

    def call(new: int) -> Call:
        settings = Settings(max_new_tokens=new, temperature=options.temperature, batch_size=batch)
        engine = Engine(model, batch, options.prompt + new, settings)
        return timed(lambda: engine.generate(prompts), device)

    return [call(options.new), call(1)]


def peer(config: ModelConfig, batch: int, kind: str, device: torch.device, options: argparse.Namespace) -> Call:
    """Returns a whole call of Transformers' generate; one that stops at the first token would be compiled anew."""
    import transformers

    transformers.logging.set_verbosity_error()
    with device:
        llama = step_cpu().llama(replace(config, plan=config.plan.iso_flop))
    llama = llama.eval().to(torch.bfloat16 if device.type == "cuda" else torch.float32)
    llama.generation_config.eos_token_id = None
    llama.generation_config.pad_token_id = 0
    prompts = prompts_of(config, batch, options).to(device)
    new = {"max_new_tokens": options.new, "min_new_tokens": options.new, "do_sample": False}
    new |= {"cache_implementation": "static"} if kind == "compiled" else {}

    @torch.no_grad()
    def generate() -> None:
        said = llama.generate(prompts, attention_mask=torch.ones_like(prompts), **new)
        assert said.shape[1] == options.prompt + options.new

    return timed(generate, device)


def timed(call: Callable[[], object], device: torch.device) -> Call:
    def run() -> float:
        synchronize(device)
        began = time.perf_counter()
        call()
        synchronize(device)
        return time.perf_counter() - began

    return run


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
