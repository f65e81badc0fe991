"""A task of the suite as a task of lm-evaluation-harness: same prompts, same shots, same scores, names with ``loopt_``.

The YAML files beside this one name it, and the harness finds them with ``--include_path`` and this folder. Local files
are given as metadata, ``{"data_dir": "…"}``; without it, questions come from the hub. Shots are part of a question's
prompt, so that ``--num_fewshot`` is left alone; where a prompt is too long for a model, the harness cuts it on the
left, whereas ``loopt eval`` drops whole shots.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import mean
from lm_eval.api.task import ConfigurableTask

from loopt.evaluation.catalogue import TASKS
from loopt.evaluation.metrics import METRICS
from loopt.evaluation.rendering import render
from loopt.evaluation.scores import bits_per_byte

PREFIX = "loopt_"
BITS_PER_BYTE = "bits_per_byte"


class SuiteTask(ConfigurableTask):  # type: ignore[misc]
    """One task, chosen by the name in its YAML file."""

    VERSION = 1

    def __init__(self, config: dict[str, Any]) -> None:
        self.suite_task = TASKS[config["task"].removeprefix(PREFIX)]
        self.compare = {in_harness(name): compare for name, compare in METRICS[self.suite_task.metric].items()}
        metadata = {"version": self.VERSION, **(config.get("metadata") or {})}
        super().__init__(
            config={
                "task": config["task"],
                "custom_dataset": self.load,
                "test_split": "test",
                "output_type": "generate_until",
                "doc_to_text": "prompt",
                "doc_to_target": "gold",
                "num_fewshot": 0,
                "metadata": metadata,
            }
        )

    def load(self, data_dir: str | None = None, limit: int | None = None, **_: Any) -> dict[str, datasets.Dataset]:
        """Returns the rendered questions; both settings come from the metadata."""
        requests = render(self.suite_task, Path(data_dir) if data_dir else None, limit)
        rows = [
            {
                "id": request.id,
                "prompt": "".join(request.shots) + request.question,
                "gold": request.golds[0],
                "golds": list(request.golds),
                "until": list(request.stop),
                "max_gen_toks": request.max_new_tokens,
            }
            for request in requests
        ]
        return {"test": datasets.Dataset.from_list(rows)}

    def construct_requests(self, doc: dict[str, Any], ctx: str, **kwargs: Any) -> list[Instance]:
        """Returns two requests: generate an answer, and the likelihood of the first gold one."""
        for of_chats in ("apply_chat_template", "chat_template"):
            kwargs.pop(of_chats, None)
        generation = {"until": doc["until"], "max_gen_toks": doc["max_gen_toks"], "do_sample": False}
        return [
            Instance(request_type="generate_until", doc=doc, arguments=(ctx, generation), idx=0, **kwargs),
            Instance(request_type="loglikelihood", doc=doc, arguments=(ctx, f" {doc['gold']}"), idx=1, **kwargs),
        ]

    def process_results(self, doc: dict[str, Any], results: list[Any]) -> dict[str, Any]:
        """Returns the metrics, from 0 to 1, and the nats and bytes of the first gold answer."""
        text, (log_probability, _) = results
        scores = {name: compare(text.strip(), tuple(doc["golds"])) for name, compare in self.compare.items()}
        counted = {name: score for name, score in scores.items() if score is not None}
        return counted | {BITS_PER_BYTE: (-log_probability, len(f" {doc['gold']}".encode()))}

    def aggregation(self) -> dict[str, Any]:
        return dict.fromkeys(self.compare, mean) | {BITS_PER_BYTE: _bits_per_byte}

    def higher_is_better(self) -> dict[str, bool]:
        return dict.fromkeys(self.compare, True) | {BITS_PER_BYTE: False}


def in_harness(metric: str) -> str:
    """Returns the name of a metric as the harness writes names.

    >>> in_harness("leave-one-out F1")
    'leave_one_out_f1'
    """
    return metric.lower().replace("-", "_").replace(" ", "_")


def _bits_per_byte(measured: list[tuple[float, int]]) -> float:
    nats, sizes = zip(*measured, strict=True)
    return bits_per_byte(nats, sizes).value
