"""The data of a page is what the models and the solver say."""

from __future__ import annotations

import base64
import doctest
from pathlib import Path

import numpy as np
import pytest
import torch

from loopt import InputError, LoopedTransformer, LoopPlan, ModelConfig
from loopt.analysis import answers_by_loop, exploration
from loopt.analysis.exploration import TOP, Exploration, Subject, draw_examples, is_sure
from loopt.analysis.latents import look_inside
from loopt.analysis.probes import Score, fit_probes
from loopt.source import Codec
from loopt.tasks import Addition, PHop, Task
from loopt.tasks.registry import known

TASK = PHop(p=(2,), n=12, supervision="every")


class Letters(Codec):
    """Text whose tokens are its letters."""

    vocab_size = 26

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, tokens: list[int]) -> str:  # type: ignore[override]
        return "".join(chr(ord("a") + token) for token in tokens)

    def stream(self):  # type: ignore[no-untyped-def]
        raise NotImplementedError


def build(plan: str, vocab_size: int = 5) -> LoopedTransformer:
    torch.manual_seed(len(plan))
    sizes = {"d_model": 16, "n_heads": 2, "d_ff": 24, "vocab_size": vocab_size, "max_len": 12}
    return LoopedTransformer(ModelConfig(LoopPlan.parse(plan), **sizes)).eval()  # type: ignore[arg-type]


def explored() -> Exploration:
    looped = Subject("looped", "", build("1x3"), loops=5)
    probed = fit_probes(looped.model, TASK, 5, examples=8)
    subjects = [Subject("looped", "", looped.model, probes=probed, loops=5), Subject("deep", "", build("3x1"), loops=5)]
    return Exploration(subjects, TASK, TASK.codec(Path()))


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(exploration).failed == 0


def test_answers_are_those_of_thoughts_and_right_is_what_the_solver_says() -> None:
    models = explored()
    assert [one["steps"] for one in models.describe_models()] == [5, 3]  # without loops there are no more than layers
    for (_, tokens), data in zip(draw_examples(TASK, 4, 2), models.describe(draw_examples(TASK, 4, 2)), strict=True):
        assert data["tokens"] == tokens
        assert data["right"] == TASK.solve(tokens)
        look = data["looks"][0]
        for answer, choices, probabilities in zip(
            answers_by_loop(models.subjects[0].model, tokens, 5, TOP),
            look["choices"],
            look["probabilities"],
            strict=True,
        ):
            assert choices == [token for row in answer.choices for token in row]
            assert probabilities == pytest.approx([p for row in answer.probabilities for p in row], abs=6e-5)
        assert set(look["probe"]) == {"hop 0", "hop 1", "hop 2"}
        assert len(look["probe"]["hop 1"]) == 6
        assert data["looks"][1]["probe"] == {}


def test_attention_survives_packing() -> None:
    models = explored()
    (title, tokens), *_ = draw_examples(TASK, 0, 1)
    packed = models.describe([(title, tokens)])[0]["looks"][0]["attention"]
    seen = look_inside(models.subjects[0].model, tokens, 5, looks=packed["k"])
    index = np.frombuffer(base64.b64decode(packed["index"]), "<u2").reshape(seen.looked_at.shape)
    weight = np.frombuffer(base64.b64decode(packed["weight"]), np.uint8).reshape(seen.look_weights.shape)
    assert (index == seen.looked_at.numpy()).all()
    assert weight / 255 == pytest.approx(seen.look_weights.numpy(), abs=0.002)


def test_attention_is_left_out_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exploration, "ATTENTION_BYTES", 1)
    assert all(look["attention"] is None for look in explored().describe(draw_examples(TASK, 0, 1))[0]["looks"])


def test_of_text_the_right_answer_is_what_comes_next_and_only_words_that_occur_are_kept() -> None:
    models = Exploration([Subject("looped", "", build("1x2", 26), loops=2)], None, Letters())
    (data,) = models.describe([("typed", models.encode("abcab"))])
    words = data["words"]
    assert [words[token] for token in data["tokens"]] == list("abcab")
    assert [words[i] if i >= 0 else None for i in data["right"]] == [*"bcab", None]
    assert len(words) < 26
    assert data["ask"] == 4


@pytest.mark.parametrize(("text", "told"), [("", "0 tokens: allowed are 1 to 12"), ("ab" * 7, "14"), ("xy", "allowed")])
def test_what_is_no_problem_is_refused(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        explored().encode(text)


def test_a_probe_that_only_guesses_well_is_not_believed() -> None:
    def score(accuracy: float, control: float, baseline: float) -> Score:
        return Score("carry", 1, accuracy, control, baseline, rows=100)

    assert is_sure(score(0.95, 0.5, 0.6))
    assert not is_sure(score(0.89, 0.1, 0.1))
    assert not is_sure(score(0.95, 0.1, 0.9))  # the most frequent value is right as often, or nearly
    assert not is_sure(score(0.95, 0.9, 0.1))  # a probe of random labels is too
    assert not is_sure(score(1.0, 0.1, 1.0))
    models = explored()
    probed = models.subjects[0].probes
    assert probed is not None
    assert [one["sure"] for one in models.describe_models()[0]["probes"]] == [is_sure(one) for one in probed.scores]


def test_a_sum_may_be_typed_without_its_digits() -> None:
    task = Addition(operands=(2,), digits=2, test_operands=(2,))
    models = Exploration([], task, task.codec(Path()))
    for typed, read in (
        ("73+96", "73+96=169"),
        ("99+99=", "99+99=198"),
        ("00+00", "00+00=0"),
        ("73+96=170", "73+96=170"),
    ):
        assert "".join(map(models.word, models.encode(typed))) == read
    for wrong in ("", "7+96", "73+"):
        with pytest.raises(InputError):
            models.encode(wrong)


@pytest.mark.parametrize("task", [kind() for kind in known().values()], ids=lambda task: task.name)
def test_a_refusal_gives_an_example_that_is_not_refused(task: Task) -> None:
    models = Exploration([], task, task.codec(Path()))
    example = models.allowed.partition(" such as ")[2]
    assert models.encode(example)
    assert "pad" not in example


def test_it_ends_in_time() -> None:
    with pytest.raises(TimeoutError):
        explored().describe(draw_examples(TASK, 0, 1), seconds=-1)
