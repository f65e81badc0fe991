"""What lets a language model learn variable assignment: forms of the problems, and settings, on a short budget.

    python benchmarks/primitives.py --tokenizer tokenizer.json --out found.json            primitives alone, every trial
    python benchmarks/primitives.py --tokenizer tokenizer.json --out found.json --trials base lead --steps 1500
    python benchmarks/primitives.py --tokenizer tokenizer.json --out found.json --data data/language --plan 24x1 \\
        --steps 2400 --batch 16 --every 300                                                corpora, text and all

A trial is a corpus and a change of `lm-75m`. All train side by side, a few at a time, and on held-out problems it is
counted how often the right number is the likeliest of the problem's candidates: a guess is right one time in five, in
`small` one time in three. Accuracies along training go to --out as they are found, and to the screen.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import re
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from loopt.model import LoopedTransformer
from loopt.plan import LoopPlan
from loopt.runs import AdamWConfig, MuonConfig, TrainConfig, codec
from loopt.source import Split
from loopt.tasks import VariableAssignment
from loopt.text.prepare import Settings, prepare
from loopt.text.source import Text
from loopt.text.task_documents import HELD_OUT, TaskDocuments
from loopt.training import Callback, Outcome, Session, presets, train_stepwise
from loopt.training.clock import SharedClock
from loopt.training.learner import Evaluation
from loopt.training.trainer import Trainer

WORDINGS: dict[str, Callable[[str], str]] = {
    "ours": lambda text: text,
    "natural": lambda text: re.sub(r"=\? ", "=", text),  # a=25, b=3, a=25: the answer repeats what was written
    "spaced": lambda text: re.sub(r"=(\d)", r"= \1", text),  # a number is one token wherever it stands
}


@dataclass(frozen=True)
class Form:
    """Problems of one kind, in one wording."""

    task: VariableAssignment
    wording: str = "ours"

    def documents(self, split: Split) -> Iterator[tuple[str, str]]:
        """Yields documents as loopt writes them, and in this wording."""
        for document in TaskDocuments(self.task, split).documents(0):
            yield document.text, WORDINGS[self.wording](document.text)


MATH, CODE = (VariableAssignment(depth=0, rendering=rendering, shots=5) for rendering in ("math", "code"))
SMALL: dict[str, Any] = {"letters": 8, "largest": 8, "variables": 3}
CORPORA = {
    "base": (Form(MATH), Form(CODE)),
    "code": (Form(CODE),),
    "natural": (Form(MATH, "natural"),),
    "spaced": (Form(MATH, "spaced"),),
    "small": (Form(replace(MATH, **SMALL)), Form(replace(CODE, **SMALL))),
    "lead": (Form(MATH, "natural"), Form(MATH), Form(CODE)),
    "five": (Form(replace(MATH, questions=5)), Form(replace(CODE, questions=5))),
    "dense": (Form(replace(MATH, questions=5), "natural"),),
    "dense lead": (Form(replace(MATH, questions=5), "natural"), Form(MATH), Form(CODE)),
}
PROBED = {
    "math 0": Form(MATH),
    "code 0": Form(CODE),
    "math 1": Form(replace(MATH, depth=1)),
    "code 1": Form(replace(CODE, depth=1)),
    "math 1 of 2": Form(replace(MATH, depth=1, variables=2)),
    "natural": Form(MATH, "natural"),
    "spaced": Form(MATH, "spaced"),
    "small": Form(replace(MATH, **SMALL)),
}
TRIALS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in CORPORA},
    "rope base 500": ("base", {"rope_base": 500.0}),
    "rope base 30": ("base", {"rope_base": 30.0}),
    "qk norm": ("base", {"qk_norm": True}),
    "muon 1e-2": ("base", {"optim": MuonConfig(lr=1e-2, warmup_steps=100)}),
    "muon 1e-3": ("base", {"optim": MuonConfig(lr=1e-3, warmup_steps=100)}),
    "adamw 1e-3": ("base", {"optim": AdamWConfig(lr=1e-3, warmup_steps=100)}),
    "24x1": ("base", {"plan": LoopPlan.parse("24x1")}),
    "2x1": ("base", {"plan": LoopPlan.parse("2x1")}),
}
"""The corpus, and what is changed in the model or as its optimizer."""


def main() -> None:
    options = _options()
    config = replace(
        presets.preset(options.preset),
        steps=options.steps,
        batch_size=options.batch,
        optim=MuonConfig(lr=options.lr, warmup_steps=min(100, options.steps // 4)),
        log_every=options.every,
        eval_every=options.every,
        eval_examples=16,
        test_examples=16,
    )
    config = replace(config, model=replace(config.model, plan=LoopPlan.parse(options.plan)))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    say = _Screen()
    if options.data:
        configs = {data.name: replace(config, source=Text(str(data))) for data in options.data}
        watch = Watch(Probe(options, device), options.out, say)
        _train(configs, options, watch, say)
        return
    tokens = int(1.2 * options.steps * options.batch * config.model.max_len)
    corpora = dict.fromkeys(TRIALS[name][0] for name in options.trials)
    workers = ProcessPoolExecutor(min(len(corpora), 16), mp_context=multiprocessing.get_context("spawn"))
    with workers:
        jobs = [workers.submit(_prepare, name, tokens, options.tokenizer, options.work) for name in corpora]
        watch = Watch(Probe(options, device), options.out, say)
        for job in jobs:
            say(job.result())
    _train({name: _changed(config, *TRIALS[name], options.work) for name in options.trials}, options, watch, say)


def _changed(config: TrainConfig, corpus: str, changes: dict[str, Any], work: Path) -> TrainConfig:
    of_model = {name: value for name, value in changes.items() if name != "optim"}
    return replace(
        config,
        source=Text(str(work / corpus)),
        optim=changes.get("optim", config.optim),
        model=replace(config.model, **of_model),
    )


def _prepare(name: str, tokens: int, tokenizer: str, work: Path) -> str:
    """Writes so many tokens of a corpus, equal shares of its forms, and tokenizes them."""
    torch.set_num_threads(1)
    encode = Tokenizer.from_file(tokenizer).encode
    texts: list[str] = []
    for form in CORPORA[name]:
        documents = (text for _, text in form.documents("train"))
        first = list(islice(documents, 100))
        each = sum(len(encode(text).ids) + 1 for text in first) / 100
        texts += first + list(islice(documents, int(tokens / len(CORPORA[name]) / each)))
    random.Random(0).shuffle(texts)
    source = work / f"{name}.jsonl"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    # Training documents of a task are those between its own held-out sixteenths; of these a fiftieth is held out here.
    held_out = HELD_OUT + (1 - 2 * HELD_OUT) / 50
    prepare(Settings((str(source),), tokenizer, validation=held_out, test=held_out), work / name, workers=1)
    return f"{name}: {len(texts):,} documents"


class Probe:
    """Held-out problems of every form, as the tokens of their prompts, candidates and answers."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self.encode = Tokenizer.from_file(options.tokenizer).encode
        self.sets = {
            name: tuple(tensor.to(device) for tensor in self._set(form, options.problems))
            for name, form in PROBED.items()
        }

    def _set(self, form: Form, problems: int) -> tuple[torch.Tensor, ...]:
        prompts, candidates, answers = [], [], []
        for ours, text in islice(form.documents("test"), problems):
            asked, answer = ours.rsplit(" ", 1)
            prompt = text.removesuffix(answer).removesuffix(" ")
            space = text.removeprefix(prompt).removesuffix(answer)
            prompts.append(self.encode(prompt).ids)
            candidates.append([self._one(space + number) for number in form.task.choices(form.task.encode(asked))])
            answers.append(self._one(space + answer))
        longest = max(map(len, prompts))
        padded = torch.tensor([ids + [0] * (longest - len(ids)) for ids in prompts])  # [P, T]
        last = torch.tensor([len(ids) - 1 for ids in prompts])  # [P]
        return padded, last, torch.tensor(candidates), torch.tensor(answers)

    def _one(self, text: str) -> int:
        (token,) = self.encode(text).ids
        return token

    @torch.no_grad()
    def __call__(self, model: LoopedTransformer) -> dict[str, float]:
        """Returns in how many % of the problems the right number is the likeliest candidate."""
        found = {}
        for name, (prompts, last, candidates, answers) in self.sets.items():
            rows = torch.arange(len(prompts), device=prompts.device)
            with torch.autocast(prompts.device.type, torch.bfloat16, enabled=prompts.is_cuda):
                states = model.iterate(model.embed(prompts))[rows, last]  # [P, T, D] -> [P, D]
                logits = model.readout(states).float()  # [P, V]
            likeliest = candidates.gather(1, logits.gather(1, candidates).argmax(1, keepdim=True))[:, 0]
            found[name] = round(100 * (likeliest == answers).float().mean().item(), 1)
        return found


class Watch:
    """Makes callbacks that probe a run at every evaluation, and writes down what they find."""

    def __init__(self, probe: Probe, out: Path, say: Callable[[str], None]) -> None:
        self.probe, self.out, self.say = probe, out, say
        self.found: dict[str, dict[str, Any]] = {}

    def of(self, name: str) -> Callback:
        watch = self

        class Watching(Callback):
            def evaluated(self, trainer: Trainer, evaluation: Evaluation) -> None:
                trained = trainer.learner.model
                model = LoopedTransformer(trained.config).to(trained.token_embedding.weight.device)
                model.load_state_dict(trained.state_dict())  # one that is not compiled takes any length
                line = {"step": trainer.step, **evaluation.values, **watch.probe(model)}
                of_run = watch.found.setdefault(name, {"config": codec.to_json(trainer.config), "along": []})
                of_run["along"].append(line)
                watch.out.write_text(json.dumps(watch.found, indent=1), encoding="utf-8")
                told = ", ".join(f"{key} {value:.4g}" for key, value in line.items())
                watch.say(f"{name}: {told}")

        return Watching()


def _train(configs: dict[str, TrainConfig], options: argparse.Namespace, watch: Watch, say: _Screen) -> None:
    """Trains a few at a time, a step each in turn."""
    waiting, clock = list(configs), SharedClock()
    active: dict[str, Generator[None, None, Outcome]] = {}
    while waiting or active:
        while waiting and len(active) < options.together:
            name = waiting.pop(0)
            run = options.work / "runs" / name.replace(" ", "-")
            active[name] = train_stepwise(configs[name], run, Session(progress=False), clock, [], [watch.of(name)])
        for name, steps in list(active.items()):
            try:
                next(steps)
            except StopIteration as end:
                say(f"{name}: perplexity {end.value.result['perplexity']:.2f}")
                del active[name]


class _Screen:
    """Prints lines with the seconds since the start."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    def __call__(self, line: str) -> None:
        print(f"{time.monotonic() - self.began:6.1f} s  {line}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True, help="a file of the tokenizers package")
    parser.add_argument("--out", type=Path, required=True, help="where the accuracies go, as JSON")
    parser.add_argument("--work", type=Path, default=Path("runs/primitives"), help="corpora and runs")
    parser.add_argument("--trials", nargs="+", choices=TRIALS, default=list(TRIALS), metavar="TRIAL")
    parser.add_argument("--data", type=Path, nargs="+", help="prepared directories to train on, in place of the trials")
    parser.add_argument("--preset", default="lm-75m")
    parser.add_argument("--plan", default="8x1")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--every", type=int, default=150, help="steps between evaluations")
    parser.add_argument("--problems", type=int, default=200, help="held-out problems of each form")
    parser.add_argument("--together", type=int, default=4)
    return parser.parse_args()


if __name__ == "__main__":
    main()
