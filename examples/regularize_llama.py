"""Train a Llama so that its layers can be looped: layers 4 apart are drawn towards each other while it learns.

    pip install accelerate && python examples/regularize_llama.py NAME examples/persuasion --block 4 --out regularized

Prints, before and after, how alike the layers are, and the perplexity of the model and of its looped copy, in which
each layer is the mean of those it stands for. A weight of 0 shows what training does to them without the regularizer.
"""

import argparse
import math
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

from loopt.hf import CosineRegularizer, loop_model

options = argparse.ArgumentParser()
options.add_argument("model", help="name on the hub, or a directory")
options.add_argument("text", type=Path, help="folder of .txt files; the last one is held out")
options.add_argument("--block", type=int, default=4, help="layers that are this far apart become alike")
options.add_argument("--weight", type=float, default=10.0)
options.add_argument("--steps", type=int, default=300)
options.add_argument("--length", type=int, default=256)
options.add_argument("--lr", type=float, default=3e-5)
options.add_argument("--out", type=Path, required=True, help="the trained model is saved here")
given = options.parse_args()
tokenizer, model = (kind.from_pretrained(given.model) for kind in (AutoTokenizer, AutoModelForCausalLM))


def rows(files: list[Path]) -> list[dict[str, list[int]]]:
    ids = [token for file in files for token in tokenizer(file.read_text(encoding="utf-8"), verbose=False).input_ids]
    cut = [ids[i : i + given.length] for i in range(0, len(ids) - given.length + 1, given.length)]
    return [{"input_ids": row, "labels": row} for row in cut]


@torch.no_grad()
def perplexity(decoder: torch.nn.Module) -> float:
    ids = torch.tensor([row["input_ids"] for row in held_out], device=decoder.device)  # [rows, length]
    return math.exp(sum(decoder.eval()(row[None], labels=row[None]).loss.item() for row in ids) / len(ids))


def report(when: str) -> None:
    looped = loop_model(model, f"{given.block}x{model.config.num_hidden_layers // given.block}", layers="average")
    cosine, plain, again = regularizer.cosine().item(), perplexity(model), perplexity(looped)
    print(f"{when}: cosine {cosine:.3f}, perplexity {plain:.2f}, looped {again:.2f}")


files = sorted(given.text.glob("*.txt"))
training, held_out = rows(files[:-1]), rows(files[-1:])
if not (training and held_out):
    options.error(f"text={given.text}: allowed is a folder of 2 or more .txt files with {given.length} tokens to a row")
regularizer = CosineRegularizer(model, block=given.block, weight=given.weight)
report("before")
settings = TrainingArguments(str(given.out), max_steps=given.steps, learning_rate=given.lr, report_to=[])
trainer = Trainer(model, settings, train_dataset=training, processing_class=tokenizer, callbacks=[regularizer])
trainer.train()
report("after")
trainer.save_model()
