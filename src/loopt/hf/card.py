"""The card of an exported model, README.md, filled in from the run."""

from __future__ import annotations

from loopt.hf.modeling_looped import LoopedForCausalLM
from loopt.model_config import ModelConfig
from loopt.runs import Run

CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
tags: [looped-transformer, custom_code]
---

# {name}

A looped transformer: {layers} layers of weights, run in the plan `{plan}`, so that a token passes through {depth} of
them. Trained on {source} with [loopt](https://arxiv.org/abs/2502.17416), {step:,} of {steps:,} updates of
{batch:,} sequences.

| | |
|---|--:|
{rows}

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}", trust_remote_code=True)
model = AutoModelForCausalLM.from_pretrained("{name}", trust_remote_code=True)
inputs = tokenizer(["..."], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**inputs, max_new_tokens=20)))
```

`trust_remote_code=True` runs the Python files of this folder. With loopt installed, `import loopt.hf` in its place runs
those of the package. {loops}
"""


def model_card(run: Run, step: int, model: LoopedForCausalLM, name: str) -> str:
    """Returns the text of README.md."""
    shape, plan = model.config.model_config(), model.config.running_plan
    more = "`model.set_loops(n)` has the loopable block run n times." if plan.loopable is not None else ""
    rows = _shape(shape) | _figures(run)
    return CARD.format(
        name=name,
        layers=plan.distinct_layers,
        plan=plan,
        depth=plan.depth,
        source=run.config.source.name,
        step=step,
        steps=run.config.steps,
        batch=run.config.batch_size,
        rows="\n".join(f"| {key} | {value} |" for key, value in rows.items()),
        loops=more,
    )


def _shape(shape: ModelConfig) -> dict[str, str]:
    sizes = {"parameters": f"{shape.parameters():,}", "width": f"{shape.d_model:,}", "heads": str(shape.n_heads)}
    return sizes | {"vocabulary": f"{shape.vocab_size:,}", "longest sequence": f"{shape.max_len:,}"}


def _figures(run: Run) -> dict[str, str]:
    """Returns the figures on the test split that the run ended with."""
    result = run.read_result() or {}
    numbers = {key: value for key, value in result.items() if isinstance(value, float) and key != "seconds"}
    return {f"test: {key.replace('_', ' ')}": f"{value:.4g}" for key, value in numbers.items()}
