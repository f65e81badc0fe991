"""Evaluate a looped model with lm-evaluation-harness, once for each number of loops.

    pip install lm-eval accelerate
    python examples/evaluate_with_harness.py exported/lm-cpu --tasks lambada_openai --loops 1 3 6

Takes a folder that `loopt export` wrote, or `save_pretrained` of a model that `loop_model` made. Tasks are the
harness's own, which it downloads, or those of the .yaml files in a folder of your own.
"""

import argparse

import torch
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import AutoModelForCausalLM, AutoTokenizer

import loopt.hf  # noqa: F401 (has the Auto classes know looped models, without running the folder's code)

options = argparse.ArgumentParser()
options.add_argument("model", help="name on the hub, or a directory")
options.add_argument("--tasks", nargs="+", required=True)
options.add_argument("--task-folder", help="folder of .yaml files with tasks of your own")
options.add_argument("--loops", type=int, nargs="+", required=True, help="how often the loopable block runs")
options.add_argument("--limit", type=int, help="look at so many examples of each task")
given = options.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
model = AutoModelForCausalLM.from_pretrained(given.model).to(device)
if not hasattr(model, "set_loops"):
    options.error(f"model={given.model}: allowed is a looped model, of `loopt export` or of loop_model")
tokenizer = AutoTokenizer.from_pretrained(given.model)
tasks = TaskManager(include_path=given.task_folder, include_defaults=given.task_folder is None)
for loops in given.loops:
    model.set_loops(loops)
    looped = HFLM(pretrained=model, tokenizer=tokenizer, device=device)
    found = simple_evaluate(looped, tasks=given.tasks, task_manager=tasks, limit=given.limit)
    for task, scores in found["results"].items():
        numbers = {name.removesuffix(",none"): score for name, score in scores.items() if isinstance(score, float)}
        print(f"{loops} loops, {task}:", ", ".join(f"{name} {score:.4g}" for name, score in numbers.items()))
