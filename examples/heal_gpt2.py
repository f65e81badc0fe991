"""Loop a pretrained decoder and heal it: perplexity before, looped, and after training with growing loops.

    python examples/heal_gpt2.py --model gpt2 --text examples/persuasion --plan 4x1+4x2+4x1 --steps 300

Looping a pretrained model as it is mostly harms it. Here the middle layers run again, with a damped residual that
starts at 0: at first the extra loops add nothing, and training finds out how much they should.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from loopt.hf import loop_model

options = argparse.ArgumentParser()
options.add_argument("--model", default="gpt2", help="name on the hub, or a directory")
options.add_argument("--text", type=Path, required=True, help="folder of .txt files; the last is held out")
options.add_argument("--plan", default="4x1+4x2+4x1", help="with as many layers as the model has")
options.add_argument("--steps", type=int, default=300)
options.add_argument("--length", type=int, default=256)
options.add_argument("--lr", type=float, default=3e-5)
options.add_argument("--out", type=Path, help="save the healed model here")
given = options.parse_args()

tokenizer = AutoTokenizer.from_pretrained(given.model)
model = AutoModelForCausalLM.from_pretrained(given.model)


def windows(files: list[Path]) -> torch.Tensor:
    """Returns the tokens of files as rows of equal length, [rows, length]."""
    ids = [token for file in files for token in tokenizer(file.read_text(encoding="utf-8"), verbose=False)["input_ids"]]
    rows = len(ids) // given.length
    return torch.tensor(ids[: rows * given.length]).view(rows, given.length)


@torch.no_grad()
def perplexity(of: torch.nn.Module, rows: torch.Tensor) -> float:
    losses = [of.eval()(row[None], labels=row[None]).loss for row in rows]
    return math.exp(float(torch.stack(losses).mean()))


files = sorted(given.text.glob("*.txt"))
training, held_out = windows(files[:-1]), windows(files[-1:])
print(f"before:            {perplexity(model, held_out):.2f}")
print(f"looped, undamped:  {perplexity(loop_model(model, given.plan), held_out):.2f}")
looped = loop_model(model, given.plan, damping=0.0)
print(f"looped, damped:    {perplexity(looped, held_out):.2f}")

most = max(block.loops for block in looped.config.running_plan.blocks)
optimizer = torch.optim.AdamW(looped.parameters(), lr=given.lr)
for step in range(given.steps):
    looped.set_loops(1 + (most - 1) * (step + given.steps // most) // given.steps if most > 1 else 1)  # grows to most
    row = training[step % len(training)][None]
    looped.train()(row, labels=row).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
looped.set_loops(most)
print(f"healed:            {perplexity(looped, held_out):.2f}")
if given.out is not None:
    looped.save_pretrained(given.out)
    tokenizer.save_pretrained(given.out)
