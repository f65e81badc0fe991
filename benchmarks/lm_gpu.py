"""What a step of language modelling costs at the paper's shape: 24 layers deep, sequences of 1280 tokens.

    python benchmarks/lm_gpu.py                  all sections, about four minutes on an H200
    python benchmarks/lm_gpu.py ours             only ours, at every shape and plan
    python benchmarks/lm_gpu.py --preset lm-75m  at another shape

ours          The trainer's own step: block compiled once, weights computed with in bfloat16, chunked loss, update.
plain         The same model in a plain loop: torch.compile of the whole model, autocast, full logits, AdamW fused.
transformers  Transformers' Llama of the same shape with 24 layers, its layers compiled, in bfloat16, AdamW fused.
regularizer   Ours with the cosine regularizer beside ours without.
recompute     Ours with activations recomputed, at batch 64.

TFLOP/s are those of the model by effective depth (``ModelConfig.flops``, times 3), whatever is computed again. "start"
is the time from asking for the first step to its end, compilation included. Nothing is asserted about time.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from loopt.kernels import start_compile_workers
from loopt.plan import LoopPlan
from loopt.runs import TrainConfig
from loopt.runs.config import RegularizerConfig
from loopt.runs.optimizers import OPTIMIZERS
from loopt.text.source import Text
from loopt.training import Session
from loopt.training.kernel_warmup import warming_up_kernels
from loopt.training.learner import WARM_UP
from loopt.training.parallel import Ranks
from loopt.training.presets import PRESETS
from loopt.training.text_learner import TextLearner
from loopt.training.trainer import build_model

Step = Callable[[], None]
SECTIONS = ("ours", "plain", "transformers", "regularizer", "recompute")
WIDTHS = "{:34} {:>9} {:>9} {:>9} {:>8}"


class RandomTokens:
    """In place of prepared text: what the tokens are makes no difference to the time."""

    fingerprint = "random"

    def __init__(self, words: int) -> None:
        self.words = words

    def sequences(self, split: str, length: int) -> int:
        return 10_000

    def read(self, split: str, sequences: object, length: int) -> Tensor:
        return torch.randint(self.words, (len(sequences), length + 1))  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; all unless given")
    parser.add_argument("--preset", default="lm-1b", help="lm-1b, lm-350m, lm-75m or lm-10m")
    parser.add_argument("--plans", nargs="*", default=["4x6", "24x1"])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5, help="steps in a timed turn, of three (default 5)")
    parser.add_argument("--optimizer", default="adafactor", choices=("adamw", "adafactor", "muon"))
    parser.add_argument("--device", default="cuda", help="cpu, to see whether it runs")
    options = parser.parse_args()
    print(_where(options.device), f"{options.preset}, batch {options.batch}", sep=", ")
    print(WIDTHS.format("", "ms", "TFLOP/s", "GB", "start, s"))
    for section in options.sections or SECTIONS:
        for plan in options.plans if section in ("ours", "plain", "regularizer") else options.plans[:1]:
            config = config_of(options, plan)
            try:
                measure(section, config, options)
            except Exception as error:  # the other sections are still worth their time
                print(f"{section} {plan}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            gc.collect()
            torch.compiler.reset()
            if options.device == "cuda":
                torch.cuda.empty_cache()


def _where(device: str) -> str:
    return f"{torch.cuda.get_device_name() if device == 'cuda' else device}, torch {torch.__version__}"


def config_of(options: argparse.Namespace, plan: str) -> TrainConfig:
    base = PRESETS[options.preset]()
    model = replace(base.model, plan=LoopPlan.parse(plan), vocab_size=base.model.vocab_size or 2048)
    optim = OPTIMIZERS[options.optimizer](lr=1e-4, warmup_steps=0)
    return replace(base, model=model, optim=optim, batch_size=options.batch)


def measure(section: str, config: TrainConfig, options: argparse.Namespace) -> None:
    device, plan = torch.device(options.device), str(config.model.plan)
    match section:
        case "ours":
            report(f"ours {plan} {config.optim.name}", config, lambda: ours(config, device), options)
        case "plain":
            report(f"plain {plan}", config, lambda: plain(config, device), options)
        case "transformers":
            deep = replace(config, model=replace(config.model, plan=LoopPlan.parse(f"{config.model.plan.depth}x1")))
            report(f"transformers' Llama {deep.model.plan}", deep, lambda: llama(deep, device), options)
        case "regularizer":
            layers = config.model.plan.distinct_layers
            drawn = replace(config, regularizer=RegularizerConfig(block=layers // 2, weight=1.0))
            report(f"ours {plan}, regularizer", drawn, lambda: ours(drawn, device), options)
        case "recompute":
            large = replace(config, batch_size=8 * config.batch_size)
            name = f"ours {plan}, batch {large.batch_size}, recomputed"
            report(name, large, lambda: ours(large, device, recompute=True), options)
        case _:
            raise SystemExit(f"lm_gpu.py: section {section!r} is not known; allowed are {', '.join(SECTIONS)}")


def report(
    name: str, config: TrainConfig, build: Callable[[], Callable[[], None]], options: argparse.Namespace
) -> None:
    wait = torch.cuda.synchronize if options.device == "cuda" else (lambda: None)
    step = build()
    wait()
    began = time.perf_counter()
    step()
    wait()
    start = time.perf_counter() - began
    if options.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(WARM_UP):  # after these ours is captured in a graph, which then has its memory for good
        step()
    taken = []
    for _ in range(3):  # turns, in which nobody waits between steps: the trainer does so only when it logs
        wait()
        began = time.perf_counter()
        for _ in range(options.steps):
            step()
        wait()
        taken.append((time.perf_counter() - began) / options.steps)
    seconds = statistics.median(taken)
    rate = 3 * config.model.flops(config.model.max_len) * config.batch_size / seconds / 1e12
    memory = f"{torch.cuda.max_memory_allocated() / 1e9:.1f}" if options.device == "cuda" else "-"
    print(WIDTHS.format(name, f"{seconds * 1e3:.1f}", f"{rate:.1f}", memory, f"{start:.1f}"), flush=True)


def ours(config: TrainConfig, device: torch.device, recompute: bool = False) -> Step:
    if device.type == "cuda":
        start_compile_workers()
    with warming_up_kernels(config, device):
        model = build_model(config, device)
    model.loop.recompute = recompute
    text = Text()
    vars(text)["tokens"] = RandomTokens(config.model.vocab_size)
    return TextLearner(replace(config, source=text), model, 0, Session(), Ranks()).train_step


def plain(config: TrainConfig, device: torch.device) -> Step:
    model = build_model(config, device)
    compiled = torch.compile(model) if device.type == "cuda" else model
    return _loop(compiled, model.parameters(), config, device)


def llama(config: TrainConfig, device: torch.device) -> Step:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(
        hidden_size=config.model.d_model,
        intermediate_size=config.model.d_ff,
        num_attention_heads=config.model.n_heads,
        num_hidden_layers=config.model.plan.depth,
        vocab_size=config.model.vocab_size,
        max_position_embeddings=config.model.max_len,
        tie_word_embeddings=False,
        use_cache=False,
    )
    with torch.device(device):
        peer = LlamaForCausalLM(shape).bfloat16()
    if device.type == "cuda":
        for layer in peer.model.layers:
            layer.compile()
    return _loop(lambda ids: peer(ids).logits, peer.parameters(), config, device)


def _loop(model: Callable[[Tensor], Tensor], parameters, config: TrainConfig, device: torch.device):  # type: ignore[no-untyped-def]
    parameters = list(parameters)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    data = RandomTokens(config.model.vocab_size)

    def step() -> None:
        tokens = data.read("train", range(config.batch_size), config.model.max_len).to(device)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    return step


if __name__ == "__main__":
    main()
