"""Where lm-evaluation-harness has the same metric, it gives the same scores on the same predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from predictions import garbler

from loopt.evaluation import drop_metric, metrics
from loopt.evaluation.catalogue import TASKS
from loopt.evaluation.exchange import Request
from loopt.evaluation.mini_sets import mini_data_dir
from loopt.evaluation.rendering import render

harness = pytest.importorskip("lm_eval.tasks", reason="lm-eval is not installed")


def pairs(name: str) -> list[tuple[Request, str]]:
    requests = render(TASKS[name], mini_data_dir(), None)
    garble = garbler(requests, 0)
    return [(request, garble(request)) for request in requests for _ in range(8)]


def test_drop() -> None:
    from lm_eval.tasks.drop.utils import get_metrics

    for request, text in pairs("drop"):
        theirs = [get_metrics(drop_metric.split_spans(text), drop_metric.split_spans(gold)) for gold in request.golds]
        ours = drop_metric.drop_scores(text, request.golds)
        assert ours == (max(exact for exact, _ in theirs), max(f1 for _, f1 in theirs)), (text, request.golds)


def test_coqa_with_one_reference_left_out() -> None:
    pytest.importorskip("transformers.data.metrics.squad_metrics", reason="Transformers 5 came without what it uses")
    from lm_eval.tasks.coqa.utils import compute_scores

    for request, text in pairs("coqa"):
        ours = metrics.leave_one_out(metrics.f1, text, request.golds)
        assert ours == pytest.approx(compute_scores(list(request.golds), text)["f1"]), (text, request.golds)


def test_squad_v2() -> None:
    official = pytest.importorskip("transformers.data.metrics.squad_metrics", reason="Transformers 5 came without it")
    for request, text in pairs("squad_v2"):
        golds = [metrics.without_no_answer(gold) for gold in request.golds]
        said = metrics.without_no_answer(text)
        f1 = max(official.compute_f1(gold, said) for gold in golds)
        exact = max(official.compute_exact(gold, said) for gold in golds)
        assert metrics.f1_no_answer(text, request.golds) == pytest.approx(f1), (text, request.golds)
        assert metrics.exact_match_no_answer(text, request.golds) == exact, (text, request.golds)


def test_tydiqa() -> None:
    from lm_eval.tasks.tydiqa.utils import process_results_en

    for request, text in pairs("tydiqa_goldp"):
        theirs = process_results_en({"answers": request.golds}, [text])
        assert metrics.f1(text, request.golds) == pytest.approx(theirs["f1"]), (text, request.golds)
        assert metrics.exact_match(text, request.golds) == theirs["exact_match"], (text, request.golds)


def test_natural_questions() -> None:
    from lm_eval.api.metrics import exact_match_hf_evaluate

    settings = {"ignore_case": True, "ignore_punctuation": True}
    articles = [r"\b(?:The |the |An |A |The |a |an )"]
    compare: Callable[..., dict[str, Any]] = exact_match_hf_evaluate

    def theirs(text: str, golds: Sequence[str]) -> bool:
        scores = (compare([text], [gold], regexes_to_ignore=articles, **settings) for gold in golds)
        return any(score["exact_match"] for score in scores)

    for request, text in pairs("nq_open"):
        assert metrics.exact_match(text, request.golds) == theirs(text, request.golds), (text, request.golds)
