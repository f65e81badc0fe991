"""A plain PyTorch loop: a looped transformer is an nn.Module, and a task draws its batches."""

import sys

import torch
import torch.nn.functional as F

from loopt import LoopedTransformer, ModelConfig
from loopt.tasks import IGNORE, Batch, PHop

STEPS, BATCH = int(sys.argv[1]) if len(sys.argv) > 1 else 500, 64


def accuracy(model: LoopedTransformer, batch: Batch, loops: int) -> float:
    """The share of the examples whose answers are all right."""
    with torch.no_grad():
        right = model(batch.tokens, loops=loops).argmax(-1) == batch.answers  # [batch, length]
    return (right | (batch.answers == IGNORE)).all(1).float().mean().item()


torch.manual_seed(0)
task = PHop(p=2, n=16, supervision="every")
config = ModelConfig(
    plan="1x4", d_model=64, n_heads=4, d_ff=256, vocab_size=task.vocab_size, max_len=task.length, rope_base=30.0
)
model = LoopedTransformer(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=STEPS)

for step in range(STEPS):
    batch = task.sample(range(step * BATCH, (step + 1) * BATCH), seed=0, split="train")  # every example is new
    logits = model(batch.tokens)  # [batch, length, vocabulary]
    loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    if (step + 1) % 100 == 0:
        print(f"step {step + 1}: loss {loss.item():.3f}")

test = task.sample(range(1000), seed=0, split="test")
for loops in (1, 2, 3, 4, 8):
    print(f"{loops} loops: accuracy {accuracy(model, test, loops):.1%}")
