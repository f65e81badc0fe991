"""Loop a pretrained decoder and heal it: perplexity before, looped, and after training with growing loops.

    python examples/heal_gpt2.py gpt2 examples/persuasion --plan 4x1+4x2+4x1 --out healed

Looping a pretrained model as it is mostly harms it. Here the middle layers run again with a damped residual that
starts at 0: at first the extra loops add nothing, and training finds out how much they should.
"""

import argparse
import math
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from loopt.hf import loop_model

options = argparse.ArgumentParser()
options.add_argument("model", help="name on the hub, or a directory")
options.add_argument("text", type=Path, help="folder of .txt files; the last one is held out")
options.add_argument("--plan", default="4x1+4x2+4x1", help="with as many layers as the model has")
options.add_argument("--steps", type=int, default=300)
options.add_argument("--length", type=int, default=256)
options.add_argument("--lr", type=float, default=3e-5)
options.add_argument("--out", type=Path, required=True, help="the healed model is saved here")
given = options.parse_args()
tokenizer = AutoTokenizer.from_pretrained(given.model)
model = AutoModelForCausalLM.from_pretrained(given.model)


def rows(files: list[Path]) -> torch.Tensor:  # [rows, length]
    ids = [token for file in files for token in tokenizer(file.read_text(encoding="utf-8"), verbose=False).input_ids]
    return torch.tensor(ids[: len(ids) // given.length * given.length]).view(-1, given.length)


@torch.no_grad()
def perplexity(decoder: torch.nn.Module) -> float:
    return math.exp(sum(decoder.eval()(row[None], labels=row[None]).loss for row in held_out) / len(held_out))


files = sorted(given.text.glob("*.txt"))
training, held_out = rows(files[:-1]), rows(files[-1:])
if not (len(training) and len(held_out)):
    options.error(f"text={given.text}: allowed is a folder of 2 or more .txt files with {given.length} tokens to a row")
print(f"before:           {perplexity(model):.2f}")
print(f"looped, undamped: {perplexity(loop_model(model, given.plan)):.2f}")
looped = loop_model(model, given.plan, damping=0.0)
print(f"looped, damped:   {perplexity(looped):.2f}")
loops = max(block.loops for block in looped.config.running_plan.blocks)
optimizer = torch.optim.AdamW(looped.parameters(), lr=given.lr)
for step in range(given.steps):
    looped.set_loops(1 + step * loops // given.steps)  # 1 at first, the plan's at the end
    row = training[step % len(training)][None]
    looped.train()(row, labels=row).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"healed:           {perplexity(looped):.2f}")
looped.save_pretrained(given.out)
tokenizer.save_pretrained(given.out)
