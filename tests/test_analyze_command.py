"""loopt analyze: what each analysis prints, writes and draws is what it measured or read, and bad input is one line."""

from __future__ import annotations

import csv
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from statistics import stdev
from typing import Any

import numpy as np
import pytest
import torch

from command_line import run
from loopt.analysis.loop_exponent import effective_size
from loopt.analysis.points import Point, parameters_by_loops, read_point
from loopt.cli import main
from loopt.commands.analyze.pairing import paired
from loopt.evaluation.exchange import Prediction
from loopt.evaluation.lines import write_lines
from loopt.evaluation.measure import render_suite
from loopt.evaluation.predict import predict
from loopt.evaluation.scores import score
from loopt.plan import LoopPlan
from loopt.runs import Run, codec
from loopt.scoring import exact_match, perplexity, text_loss
from loopt.text.source import Text
from loopt.training import train
from tiny_runs import CPU, TINY, layers_of, task_of
from tiny_text_runs import TEXT, text_directory

Captured = pytest.CaptureFixture[str]


def assert_drawn(folder: Path, name: str) -> None:
    assert (folder / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    assert "<svg" in (folder / f"{name}.svg").read_text()


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("analyze") / "deep"
    train(replace(TINY, model=replace(TINY.model, plan=LoopPlan.parse("4x1")), steps=6), folder, CPU)
    return folder


@pytest.fixture(scope="module")
def looped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("analyze") / "looped"
    train(replace(TINY, steps=6), folder, CPU)
    return folder


def result_file(folder: Path, plan: str, metrics: dict[str, float], **others: object) -> str:
    path = folder / f"{plan}.json"
    path.write_text(json.dumps({"plan": plan, "seed": 0, "metrics": metrics} | others))
    return str(path)


class TestDifference:
    def test_what_is_hard_for_both_is_no_noise(self, tmp_path: Path, capsys: Captured) -> None:
        pytest.importorskip("matplotlib")
        files = []
        for name, more in (("4x1", 0.5), ("4x6", 0.0)):
            answers = [Prediction("svamp", str(n), None, n + more + 0.01 * (n % 3) * more, 1, 0) for n in range(9)]
            bits = [one.gold_nats / math.log(2) for one in answers]
            metrics = {"svamp/bits_per_byte": sum(bits) / 9, "svamp": 10 * more, "perplexity": 9.0 + more}
            errors = {"svamp/bits_per_byte": 1.3, "svamp": 3.0}
            files.append(result_file(tmp_path, name, metrics, standard_errors=errors))
            write_lines(tmp_path / name / "svamp.jsonl.gz", answers)
        assert main(["analyze", "difference", *files, "--out", str(tmp_path / "out")]) == 0
        found = json.loads((tmp_path / "out" / "difference.json").read_text())
        assert (found["base"], found["model"]) == ("4x1", "4x6")
        by_metric = found["differences"]
        low, high = by_metric["svamp/bits_per_byte"]["interval"]
        reach = 1.959964 * 0.005 * stdev([n % 3 for n in range(9)]) / 3 / math.log(2)
        assert (low + high) / 2 == pytest.approx(by_metric["svamp/bits_per_byte"]["value"])
        assert by_metric["svamp/bits_per_byte"]["value"] == pytest.approx(-0.505 / math.log(2))
        assert (high - low) / 2 == pytest.approx(reach, rel=1e-4)
        reach = 1.959964 * math.hypot(3, 3)
        assert by_metric["svamp"]["interval"] == pytest.approx([-5 - reach, -5 + reach])
        assert by_metric["perplexity"] == {"value": -0.5, "interval": None, "base": 9.5, "model": 9.0}
        shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
        assert sum("*" in line for line in shown) == 1
        assert_drawn(tmp_path / "out", "difference")

    def test_other_questions_are_refused(self, tmp_path: Path, capsys: Captured) -> None:
        files = []
        for name, first in (("4x1", 0), ("4x6", 1)):
            files.append(result_file(tmp_path, name, {"svamp": 1.0}))
            answers = [Prediction("svamp", str(first + n), None, 1.0, 1, 0) for n in range(3)]
            write_lines(tmp_path / name / "svamp.jsonl.gz", answers)
        assert main(["analyze", "difference", *files, "--out", str(tmp_path / "out")]) == 2
        assert "svamp.jsonl.gz: answers to other questions than" in capsys.readouterr().err


class TestGap:
    def test_a_trio_of_files(self, tmp_path: Path, capsys: Captured) -> None:
        pytest.importorskip("matplotlib")
        names = ("perplexity", "closed_book", "open_book", "all_equal")
        scores = {"4x1": (8.16, 14.6, 22.3, 5.0), "4x6": (7.9, 17.1, 26.0, 6.0), "24x1": (7.4, 20.0, 22.6, 5.0)}
        errors = {"closed_book": 0.5, "open_book": 0.5}
        files = [
            result_file(tmp_path, plan, dict(zip(names, values, strict=True)), standard_errors=errors)
            for plan, values in scores.items()
        ]
        assert main(["analyze", "gap", *files, "--out", str(tmp_path / "out")]) == 0
        gaps = json.loads((tmp_path / "out" / "gap.json").read_text())["gaps"]
        assert gaps["perplexity"]["percent"] == pytest.approx(100 * (7.9 - 8.16) / (7.4 - 8.16))
        assert gaps["perplexity"]["interval"] is None
        low, high = gaps["closed_book"]["interval"]
        assert gaps["closed_book"]["percent"] == pytest.approx(100 * 2.5 / 5.4)
        assert low < gaps["closed_book"]["percent"] < high
        assert (gaps["open_book"]["percent"], gaps["all_equal"]["percent"]) == (None, None)
        shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
        assert "within noise" in shown
        assert "no gap" in shown
        assert_drawn(tmp_path / "out", "gap")

    def test_perplexity_is_compared_sequence_by_sequence(self, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        hard = [2.0 + 0.3 * (n % 5) for n in range(20)]

        def gap_with(name: str, of_plan: dict[str, list[float]]) -> dict[str, Any]:
            files = []
            for plan, losses in of_plan.items():
                mean = sum(losses) / len(losses)
                metrics = {"perplexity": math.exp(mean), "log_perplexity": mean}
                errors = {"perplexity": 0.1, "log_perplexity": 0.01}
                files.append(
                    result_file(tmp_path, plan, metrics, standard_errors=errors, text_losses={"perplexity": losses})
                )
            assert main(["analyze", "gap", *files, "--out", str(tmp_path / name)]) == 0
            found: dict[str, Any] = json.loads((tmp_path / name / "gap.json").read_text())["gaps"]
            return found

        shifts = {"4x1": 0.4, "4x6": 0.1, "24x1": 0.0}
        alike = gap_with("alike", {plan: [one + shift for one in hard] for plan, shift in shifts.items()})
        assert alike["log_perplexity"]["interval"] == pytest.approx([75, 75])  # hard sequences are hard for all
        noisy = gap_with(
            "noisy",
            {
                plan: [one + shift + 0.01 * (n % 3) * (plan == "4x6") for n, one in enumerate(hard)]
                for plan, shift in shifts.items()
            },
        )
        reach = 1.959964 * 0.01 * stdev([n % 3 for n in range(20)]) / math.sqrt(20) / 0.4
        middle = noisy["log_perplexity"]["percent"] / 100
        assert noisy["log_perplexity"]["interval"] == pytest.approx([100 * (middle - reach), 100 * (middle + reach)])
        low, high = noisy["perplexity"]["interval"]
        assert low < noisy["perplexity"]["percent"] < high
        assert high - low == pytest.approx(200 * reach, rel=0.25)  # as a share of a gap in e to the loss

    def test_sequences_of_other_text_are_not_compared(self, tmp_path: Path) -> None:
        def measured_on(fingerprint: str, length: int) -> Point:
            model = replace(TEXT.model, vocab_size=300, max_len=length)
            config = codec.to_json(replace(TEXT, source=Text(fingerprint=fingerprint), model=model))
            losses = {"perplexity": [1.0, 2.0, 4.0], "validation_perplexity": [1.0, 3.0]}
            return read_point(
                Path(result_file(tmp_path, "2x2", {"perplexity": 9.0}, config=config, text_losses=losses))
            )

        own = measured_on("a" * 64, 12)
        files = [tmp_path / "2x2.json"] * 2
        assert set(paired(files, [own, own])) == {
            *("perplexity", "log_perplexity", "validation_perplexity", "validation_log_perplexity")
        }
        assert not paired(files, [own, measured_on("b" * 64, 12)])
        assert not paired(files, [own, measured_on("a" * 64, 24)])

    def test_the_table_has_metrics_in_words_and_breaks_none(
        self, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "64")
        names = ("mawps_multiarith/bits_per_byte", "assignment_code_0", "all_tasks/bits_per_byte")
        files = [
            result_file(tmp_path, plan, dict.fromkeys(names, 1.2345), standard_errors=dict.fromkeys(names, 0.012345))
            for plan in ("4x1", "4x6", "24x1")
        ]
        assert main(["analyze", "gap", *files, "--out", str(tmp_path / "out")]) == 0
        printed = capsys.readouterr().out
        assert "wrote" in printed
        assert "nothing to draw" in printed
        assert list(json.loads((tmp_path / "out" / "gap.json").read_text())["gaps"]) == list(names)
        metrics = " ".join(line.split("│")[1] for line in printed.splitlines() if line.startswith("│")).split()
        told = "MAWPS MultiArith, bits per byte variable assignment as code, depth 0 15 tasks, bits per byte"
        assert metrics == told.split()
        assert {"baselines", "1.234"} <= set(re.findall(r"[\w.]+", printed))

    def test_answers_beside_the_files_are_compared_question_by_question(self, tmp_path: Path, capsys: Captured) -> None:
        pytest.importorskip("matplotlib")
        files = []
        for plan, more in (("4x1", 0.4), ("4x6", 0.1), ("24x1", 0.0)):
            answers = [Prediction("svamp", str(n), None, n + more + 0.01 * (n % 3), 1, 0) for n in range(9)]
            value = sum(one.gold_nats for one in answers) / 9 / math.log(2)
            metrics = {"svamp/bits_per_byte": value}
            files.append(result_file(tmp_path, plan, metrics, standard_errors={"svamp/bits_per_byte": 0.8}))
            write_lines(tmp_path / plan / "svamp.jsonl.gz", answers)
        trio = ["analyze", "gap", *files, "--out", str(tmp_path / "out")]
        assert main(trio) == 0
        (gap,) = json.loads((tmp_path / "out" / "gap.json").read_text())["gaps"].values()
        assert gap["percent"] == pytest.approx(75)
        assert gap["interval"] == pytest.approx([75, 75])
        for plan in ("4x1", "4x6", "24x1"):
            write_lines(tmp_path / plan / "nq_open.jsonl.gz", [Prediction("nq_open", "0", None, 1.0, 1, 0)])
        assert main(trio) == 0  # one answer alone tells no error, and stops nothing
        write_lines(tmp_path / "4x6" / "svamp.jsonl.gz", answers[::-1])
        assert main(trio) == 2
        assert "svamp.jsonl.gz: answers to other questions than" in capsys.readouterr().err

    def test_one_metric_of_finished_runs(self, deep: Path, looped: Path, tmp_path: Path) -> None:
        trio = [str(looped), str(looped), str(deep)]
        assert main(["analyze", "gap", *trio, "--metrics", "loss", "--out", str(tmp_path)]) == 0
        gaps = json.loads((tmp_path / "gap.json").read_text())["gaps"]
        assert list(gaps) == ["loss"]
        assert gaps["loss"]["percent"] == 0

    def test_bad_input_is_one_line(self, tmp_path: Path, capsys: Captured) -> None:
        one = result_file(tmp_path, "4x1", {"perplexity": 1.0})
        for arguments, told in (
            ([one, one, one, "--metrics", "accuracy"], "metrics=accuracy: allowed is perplexity"),
            ([one, one, str(tmp_path / "none.json")], "none.json"),
        ):
            assert main(["analyze", "gap", *arguments]) == 2
            shown = capsys.readouterr().err
            assert told in shown
            assert shown.count("\n") == 1


class TestScaling:
    def test_laws_that_the_files_follow_are_found(self, tmp_path: Path, capsys: Captured) -> None:
        pytest.importorskip("matplotlib")
        files = []
        for plan in ("4x1", "4x2", "4x3", "4x6", "8x1", "12x1", "24x1", "2x1+2x4"):
            parsed = LoopPlan.parse(plan)
            config = replace(TINY.resolved(), model=replace(TINY.resolved().model, plan=parsed))
            loss = 1.5 + 6 * effective_size(parameters_by_loops(config.model), 0.46) ** -0.3
            loops = parsed.depth / parsed.distinct_layers
            accuracy = 20 + (3 if loops > 1 else 2) * torch.tensor(parsed.depth / 4).log().item()
            metrics = {"perplexity": perplexity(loss), "primitives": accuracy, "svamp": 1.0}
            files.append(result_file(tmp_path, plan, metrics, config=codec.to_json(config)))
        assert main(["analyze", "scaling", *files, "--out", str(tmp_path / "out")]) == 0
        found = json.loads((tmp_path / "out" / "scaling.json").read_text())
        assert [law["metric"] for law in found["laws"]] == ["perplexity", "primitives"]
        assert found["laws"][1]["ratio"] == pytest.approx(1.5, rel=1e-6)
        assert found["loop_exponent"]["phi"] == pytest.approx(0.46, abs=1e-3)
        shown = capsys.readouterr().out
        assert "φ = 0.46 [0.46, 0.46]" in shown
        assert "Of φ alone: (2⊗1,4)" in shown
        assert_drawn(tmp_path / "out", "scaling")

    def test_what_does_not_tell_phi_is_said(self, tmp_path: Path, capsys: Captured) -> None:
        depths = {"4x1": 1.0, "4x2": 1.5, "8x1": 2.0}
        files = [result_file(tmp_path, plan, {"accuracy": value}) for plan, value in depths.items()]
        assert main(["analyze", "scaling", *files, "--out", str(tmp_path / "out")]) == 0
        assert "φ, what a loop is worth, is not determined: not every file has a config" in capsys.readouterr().out
        assert main(["analyze", "scaling", files[0], "--out", str(tmp_path / "out")]) == 2
        assert "allowed are plans (k⊗L) of one k" in capsys.readouterr().err


class TestSimilarity:
    def test_cosines_are_those_of_the_weights(self, deep: Path, tmp_path: Path, capsys: Captured) -> None:
        pytest.importorskip("matplotlib")
        assert main(["analyze", "similarity", str(deep), "--out", str(tmp_path), "--apart", "2"]) == 0
        found = json.loads((tmp_path / "similarity.json").read_text())["deep"]
        assert list(found) == ["query", "key", "value", "output", "up", "down"]
        downs = [layer.feed_forward.down.weight.flatten() for layer in layers_of(Run.load(deep).load_model())]
        expected = [[torch.cosine_similarity(a, b, dim=0).item() for b in downs] for a in downs]
        torch.testing.assert_close(torch.tensor(found["down"]), torch.tensor(expected), rtol=1e-5, atol=1e-5)
        (row,) = re.findall(r"│ 2 │(.*)│\n", capsys.readouterr().out)
        shown = float(row.split("│")[-1])
        assert shown == pytest.approx((expected[0][2] + expected[1][3]) / 2, abs=6e-4)
        assert_drawn(tmp_path, "similarity")

    @pytest.mark.slow
    def test_runs_stand_side_by_side(self, deep: Path, tmp_path: Path, capsys: Captured) -> None:
        gated = tmp_path / "gated"
        model = replace(TINY.model, plan=LoopPlan.parse("2x1"), feed_forward="swiglu")
        train(replace(TINY, model=model, steps=6), gated, CPU)
        capsys.readouterr()
        assert main(["analyze", "similarity", str(deep), str(gated), "--out", str(tmp_path)]) == 0
        found = json.loads((tmp_path / "similarity.json").read_text())
        assert [len(run["query"]) for run in found.values()] == [4, 2]
        shown = capsys.readouterr().out
        assert "deep: mean cosine" in shown
        assert "gated: mean cosine" in shown

    def test_what_cannot_be_compared_is_told(self, deep: Path, looped: Path, tmp_path: Path, capsys: Captured) -> None:
        for arguments, message in (
            ([str(looped)], "its model has one layer; there is nothing to compare it with"),
            ([str(deep), "--apart", "4"], "apart=4: allowed is 1 to 3, since"),
            ([str(tmp_path / "nothing")], "no such file; a run's directory holds its config.json"),
        ):
            assert main(["analyze", "similarity", *arguments]) == 2
            assert message in capsys.readouterr().err


class TestLoops:
    def test_a_task_is_measured_as_eval_does(self, looped: Path, tmp_path: Path, capsys: Captured) -> None:
        pytest.importorskip("matplotlib")
        options = ["--examples", "32", "--device", "cpu"]
        assert main(["analyze", "loops", str(looped), *options, "--out", str(tmp_path)]) == 0
        shown = capsys.readouterr().out
        assert "1x2 (trained)" in shown
        rows = list(csv.DictReader((tmp_path / "loops.csv").open()))
        assert [row["loops"] for row in rows] == ["1", "2", "3", "4"]
        loaded = Run.load(looped)
        model, (test,) = loaded.load_model(), task_of(loaded.config).tests.values()
        for row in rows:
            found = exact_match(model, test, "test", 32, int(row["loops"]))
            assert (float(row["accuracy"]), float(row["loss"])) == pytest.approx((found.accuracy, found.loss))
        assert_drawn(tmp_path, "loops")
        assert main(["eval", str(looped), "--loops", "1", "3", *options]) == 0
        printed = capsys.readouterr().out
        assert f"{float(rows[0]['accuracy']):.2%}" in printed
        assert f"{float(rows[2]['loss']):.4f}" in printed

    def test_text_is_measured_by_its_perplexity(self, tmp_path: Path) -> None:
        config = replace(TEXT, source=Text(data=str(text_directory())), steps=4)
        train(config, tmp_path / "run", CPU)
        assert main(["analyze", "loops", str(tmp_path / "run"), "--loops", "1", "3", "--device", "cpu"]) == 0
        rows = list(csv.DictReader((tmp_path / "run" / "loops.csv").open()))
        loaded = Run.load(tmp_path / "run")
        assert isinstance(loaded.config.source, Text)
        text = loaded.config.source.prepared(tmp_path / "run")
        for row in rows:
            loss = text_loss(loaded.load_model(), text.tokens, "test", 2048, int(row["loops"]))
            assert float(row["perplexity"]) == pytest.approx(perplexity(loss))

    def test_loops_that_cannot_run_are_refused(self, looped: Path, capsys: Captured) -> None:
        assert main(["analyze", "loops", str(looped), "--loops", "0"]) == 2
        assert "loops must be 1 or more" in capsys.readouterr().err


@pytest.fixture(scope="module")
def along(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model with checkpoints at 4, 8 and 12 of 12 steps."""
    folder = tmp_path_factory.mktemp("analyze") / "along"
    config = replace(TEXT, source=Text(data=str(text_directory())), eval_every=12)
    train(config, folder, replace(CPU, keep=(4, 8, 12)))
    return folder


class TestIsoplot:
    OPTIONS = ("--suite", "primitives", "--limit", "3", "--examples", "5", "--device", "cpu")

    def test_checkpoints_are_measured_on_text_and_tasks(self, along: Path, tmp_path: Path, capsys: Captured) -> None:
        pytest.importorskip("matplotlib")
        assert main(["analyze", "isoplot", str(along), *self.OPTIONS, "--out", str(tmp_path)]) == 0
        found = json.loads((tmp_path / "isoplot.json").read_text())
        assert [point["fraction"] for point in found["points"]] == pytest.approx([1 / 3, 2 / 3, 1])
        loaded = Run.load(along)
        assert isinstance(loaded.config.source, Text)
        text = loaded.config.source.prepared(along)
        requests = render_suite(["primitives"], None, 3)
        for point, step in zip(found["points"], (4, 8, 12), strict=True):
            model = loaded.load_model(step)
            assert point["log_perplexity"] == pytest.approx(text_loss(model, text.tokens, "test", 5))
            predictions = list(predict(model, loaded.codec, requests, generate=False))
            per_task = [
                score([r for r in requests if r.task == name], [p for p in predictions if p.task == name])
                for name in {request.task: None for request in requests}
            ]
            mean = sum(one.bits_per_byte.value for one in per_task) / len(per_task)
            assert point["scores"] == {"primitives": pytest.approx(mean)}
        x = [point["log_perplexity"] for point in found["points"]]
        y = [point["scores"]["primitives"] for point in found["points"]]
        slope, intercept = np.polyfit(x, y, 1)
        assert found["lines"][0]["fit"]["slope"] == pytest.approx(slope)
        assert found["lines"][0]["fit"]["intercept"] == pytest.approx(intercept)
        assert_drawn(tmp_path, "isoplot")

    def test_result_files_of_models_measured_along_training(self, tmp_path: Path, capsys: Captured) -> None:
        files = []
        for plan, height in (("4x1", 3.0), ("4x6", 2.5)):
            by_checkpoint = {
                str(fraction): {"log_perplexity": 4 - fraction, "open_book/bits_per_byte": height - fraction}
                for fraction in (0.1, 0.3, 0.5, 1.0)
            }
            files.append(result_file(tmp_path, plan, {}, by_checkpoint=by_checkpoint))
        assert main(["analyze", "isoplot", *files, "--out", str(tmp_path / "out")]) == 0
        found = json.loads((tmp_path / "out" / "isoplot.json").read_text())
        assert [point["fraction"] for point in found["points"]] == [0.3, 0.5, 1.0] * 2
        assert [line["fit"]["slope"] for line in found["lines"]] == pytest.approx([1, 1])
        first, second = (line["score_there"] for line in found["lines"])
        assert first - second == pytest.approx(0.5)
        assert main(["analyze", "isoplot", *files, "--metric", "score"]) == 2
        assert "metric=score: no group or task has one in every point" in capsys.readouterr().err

    def test_runs_that_have_too_few_checkpoints_say_which_to_keep(
        self, along: Path, looped: Path, tmp_path: Path, capsys: Captured
    ) -> None:
        bad = result_file(tmp_path, "1x1", {}, by_checkpoint={"0.5": {"perplexity": 3}})
        for arguments, told in (
            ([str(along), "--first", "0.9"], "has 1 checkpoints from 90% of its training on; allowed are 2 or more"),
            ([str(along), "--first", "0.9"], "train with --keep 4 5 6 7 8 9 10 11 12"),
            ([str(along), "--first", "1.5"], "first=1.5: allowed is 0 to 1"),
            ([str(along), "--suite", "arithmetic"], "no task or group 'arithmetic'"),
            ([str(looped)], "trained on phop; allowed is a run of a language model"),
            ([bad], "by_checkpoint.0.5: allowed are numbers by name"),
            ([result_file(tmp_path, "2x1", {})], "no by_checkpoint"),
        ):
            assert main(["analyze", "isoplot", *arguments]) == 2
            shown = capsys.readouterr().err
            assert told in shown
            assert shown.count("\n") == 1


class TestProbe:
    def test_the_table_the_file_and_the_figure_have_every_loop_and_hop(
        self, looped: Path, tmp_path: Path, capsys: Captured
    ) -> None:
        capsys.readouterr()
        assert main(["analyze", "probe", str(looped), "--examples", "16", "--loops", "3", "--out", str(tmp_path)]) == 0
        shown = capsys.readouterr().out
        rows = list(csv.DictReader((tmp_path / "probe.csv").open()))
        assert [(row["quantity"], row["step"]) for row in rows] == [
            (f"hop {hop}", str(step)) for step in range(4) for hop in range(2)
        ]
        assert "hop 1" in shown
        (own_token, *_) = rows
        assert float(own_token["accuracy"]) == 1.0
        assert_drawn(tmp_path, "probe")

    def test_bad_input(self, looped: Path, tmp_path: Path, capsys: Captured) -> None:
        capsys.readouterr()
        for arguments, told in (
            (["--examples", "0"], "examples=0: allowed is 1 to 100000"),
            (["--loops", "65"], "loops=65: allowed is 1 to 64"),
            (["--checkpoint", "worst"], "checkpoint=worst: allowed is best | last | a step"),
        ):
            assert main(["analyze", "probe", str(looped), *arguments]) == 2
            shown = capsys.readouterr().err
            assert told in shown
            assert shown.count("\n") == 1


def test_the_usage_names_every_analysis(capsys: Captured) -> None:
    assert run("analyze") == 0
    shown = capsys.readouterr().out
    for name in ("gap", "difference", "scaling", "isoplot", "similarity", "loops", "probe", "exit", "cache", "drafts"):
        assert f"loopt analyze {name} " in shown
    assert run("analyze", "similarty") == 2
    assert "did you mean similarity? Allowed are gap, difference, scaling, isoplot" in capsys.readouterr().err
