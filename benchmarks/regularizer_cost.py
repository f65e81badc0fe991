"""What the regularizer adds to a training step.

    python benchmarks/regularizer_cost.py                             d_model 512, 24 layers, on the CPU
    python benchmarks/regularizer_cost.py --device cuda --batch 8     the same on a GPU, compiled, 1280 tokens a row

A step (forward, chunked loss, backward, clip, Adafactor) without the regularizer, and the regularizer alone, each timed
in turns; the share is the median of the turns' ratios. Nothing is asserted about time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from loopt import LoopedTransformer, LoopPlan, ModelConfig
from loopt.kernels import compile_model
from loopt.runs import AdafactorConfig
from loopt.training.chunked_loss import chunked_loss
from loopt.training.optim import build_optimizers
from loopt.training.regularizer import RegularizerConfig, add_regularizer_gradient


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--d-model", type=int, default=512)
    parser.add_argument("--d-ff", type=int, default=1280)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--block", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=50304)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=1280)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    torch.set_num_threads(1)
    torch.manual_seed(0)

    shape = ModelConfig(
        LoopPlan.parse(f"{options.layers}x1"),
        options.d_model,
        n_heads=options.d_model // 64,
        d_ff=options.d_ff,
        vocab_size=options.vocabulary,
        max_len=options.length,
        feed_forward="swiglu",
    )
    model = LoopedTransformer(shape).to(options.device)
    if on_gpu:
        compile_model(model)
    optimizers = build_optimizers(AdafactorConfig(), model)
    config = RegularizerConfig(options.block, weight=10.0)
    tokens = torch.randint(options.vocabulary, (options.batch, options.length), device=options.device)
    weights = torch.full((tokens.numel(),), 1 / tokens.numel(), device=options.device)

    def step() -> None:
        model.zero_grad()
        with torch.autocast(options.device, torch.bfloat16, enabled=on_gpu):
            x = model.final_norm(model.iterate(model.embed(tokens))).flatten(0, 1)
            readout = model.readout_projection.weight
            loss = chunked_loss(x, readout, tokens.flatten(), weights, compiled=on_gpu)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()

    def regularize() -> None:
        add_regularizer_gradient(model, config, compiled=on_gpu)

    def seconds(work: Callable[[], None]) -> float:
        if on_gpu:
            torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - began

    times = [(seconds(step), seconds(regularize)) for _ in range(2 + options.turns)][2:]  # the first two warm up
    whole, added = (statistics.median(taken) for taken in zip(*times, strict=True))
    share = statistics.median(extra / base for base, extra in times)
    print(f"{shape.parameters():,} parameters, {tokens.numel()} tokens on {options.device}")
    print(f"step {1000 * whole:.1f} ms, regularizer {1000 * added:.2f} ms: {100 * share:.2f}% of a step")


if __name__ == "__main__":
    main()
