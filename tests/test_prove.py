"""loopt prove: tables, exit codes, weights that can be loaded again, traces in words and pictures."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import command_line
import tiny_runs
from loopt import LoopedTransformer
from loopt.commands.prove import THEOREMS, ChainOfThoughtOptions, GroupOptions, PHopOptions
from loopt.errors import InputError
from loopt.report.proofs import trace_text
from loopt.reproduce.artefacts import ARTEFACTS
from loopt.runs import Run
from loopt.tasks import Addition
from loopt.tasks.groups import group
from loopt.theory import chain_of_thought, chain_of_thought_proof, group_composition_proof, simulation_proof
from loopt.theory.chain_of_thought import build_looped
from loopt.theory.chain_of_thought_cases import addition_case
from loopt.theory.examples import random_transformer
from loopt.theory.group_composition import answers, build_group_composition
from loopt.theory.proof import Check, Trace
from loopt.theory.saved import load, save
from loopt.training import train

pytestmark = pytest.mark.slow

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")  # few lines are wrapped


@pytest.fixture(autouse=True)
def with_fewer_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets ``prove`` try few and small random transformers; tests/theory runs those that it has otherwise."""
    monkeypatch.setattr(chain_of_thought_proof, "RANDOM_SHAPES", ((1, 3, 2, 4),))
    monkeypatch.setattr(chain_of_thought_proof, "SMALL_SHAPES", ((1, 3, 2, 3),))
    monkeypatch.setattr(simulation_proof, "examples", lambda seed: {"R=3 L=12": random_transformer((0, 1, 2, 1), seed)})


def run(*arguments: str) -> int:
    return command_line.run("prove", *arguments)


@pytest.mark.parametrize("theorem", ["group-composition", "simulation", "phop", "cot", "lemmas", "all"])
def test_help_gives_an_example(theorem: str, capsys: Captured) -> None:
    assert run(theorem, "--help") == 0
    shown = capsys.readouterr().out
    assert re.search(rf"For example:\s+loopt prove {theorem}", shown.replace("│", ""))
    assert "--save" in shown
    assert not re.search(r"loopt prove .*loopt prove", shown)  # each example has a line of its own


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (
            "everything",
            "theorem 'everything' is not known; allowed are group-composition, simulation, phop, cot, lemmas, all",
        ),
        ("group-composition --group Q8", "loopt: group 'Q8' is not known; allowed are Z7"),
        ("group-composition --n 0", "loopt: n=0: allowed is 1 to 1000000000\n"),
        ("group-composition --inputs 0", "inputs=0: allowed is 1 to 1000000000"),
        ("phop --p 0", "loopt: p=0: allowed is 1 to 1000000000\n"),
        ("phop --n 0", "loopt: n=0: allowed is 1 to 1000000000\n"),
        ("phop --compare nowhere", "nowhere/config.json: no such file"),
        ("phop --p many", "many"),
        ("phop --n 5000", "loopt: p=16, n=5000: in F_s this takes s=29; allowed is up to s=25"),
        ("phop --alphabet 1", "loopt: alphabet=1: allowed is 2 to 26"),
        ("phop --break mask", "loopt: break=mask: allowed are temperature, letter, match, pointer, nowhere"),
        ("group-composition --group S3 --n 2 --loops -1", "loops=-1: allowed is 0 or more here, so that one is left"),
        ("group-composition --group Z2 --n 1000000", "of memory; this machine has"),
        ("lemmas --s 9", "loopt: s=9: allowed is 1 to 4"),
        ("simulation --run nowhere", "nowhere/config.json: no such file"),
        ("lemmas --break product", "--break"),
        ("cot --bits 0", "bits=0: allowed is 1 to 64"),
        ("cot --bits 12", "numbers of 12 bits would take about 23 hours; allowed is what ends within 60 minutes"),
        ("cot --bits 10", "numbers of 10 bits would take about 87 minutes"),
        ("phop --compare nowhere --loops -1", "loopt: --compare and --loops: allowed beside --compare is --seed"),
        (
            "phop --compare nowhere --break match --json --show --save out --p 3",
            "--compare and --show, --save, --json, --break, --p: allowed",
        ),
        ("group-composition --group S3 --n 0 --save out", "n=0"),
        ("all --p 3", "--p"),
    ],
)
def test_what_cannot_be_done_is_refused(command: str, told: str, tmp_path: Path, capsys: Captured) -> None:
    assert run(*command.split()) == 2
    shown = capsys.readouterr()
    assert not shown.out
    assert "Traceback" not in shown.err
    assert told in shown.err
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "file").touch()
    assert run("all", "--save", "file/weights") == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "loopt: cannot write to save=file/weights: Not a directory\n")


@torch.no_grad()
def test_a_theorem_is_shown_and_saved(tmp_path: Path, capsys: Captured) -> None:
    command = ["group-composition", "--group", "S3", "--n", "5", "--inputs", "3", "--save", "out", "--show"]
    assert run(*command) == 0
    shown = capsys.readouterr()
    assert not shown.err
    proof = group_composition_proof.prove("S3", n=5, inputs=3)
    for size in proof.sizes:
        claimed = "-" if size.claimed is None else size.claimed
        assert re.search(rf"│ {re.escape(size.name)} +│ +{claimed} │ +{size.actual} │", shown.out)
    for check in proof.checks:
        asked = rf"│ {re.escape(check.what)} +│ {re.escape(check.scope)} +│ +{check.cases} {check.unit} │ +0 │"
        assert re.search(rf"{asked} +\d+\.\d │ +yes │", shown.out)
    for note in proof.notes:
        assert f"- {note}" in re.sub(r" *\n  ", " ", shown.out)
    assert re.search(r"^loop 3 +e +e +e +e +e +1-5$", shown.out, re.MULTILINE)
    for i in (1, 2):
        assert f"Drawn in out/group-composition-{i}.svg and group-composition-{i}.png\n" in shown.out
        assert (tmp_path / "out" / f"group-composition-{i}.png").read_bytes().startswith(b"\x89PNG")

    saved, in_precision = sorted((tmp_path / "out" / "group-composition").iterdir())
    assert (saved.name, in_precision.name) == ("S3-n5", "S3-n5-F2")
    assert f"Saved out/group-composition/{saved.name}\n" in shown.out
    model, s3 = load(saved), group("S3")
    built = build_group_composition(s3, n=5).model()
    assert model.config == built.config
    assert same_weights(model, built)
    words = torch.randint(s3.order, (20, 5))
    assert answers(model, s3, words).tolist() == [s3.product(*word) for word in words.tolist()]


def same_weights(one: LoopedTransformer, other: LoopedTransformer) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    assert all(tensor.dtype == torch.float64 for tensor in ours.values())
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_picture_goes_here_unless_told_otherwise(tmp_path: Path, capsys: Captured) -> None:
    assert run("cot", "--bits", "2", "--group", "S3", "--show") == 0
    assert "Drawn in cot-2.svg and cot-2.png\n" in capsys.readouterr().out
    drawn = [f"cot-{i}.{kind}" for i in ("1", "2", "3", "4", "attention-1") for kind in ("png", "svg")]
    assert sorted(path.name for path in tmp_path.iterdir()) == drawn


def test_what_is_not_exact_is_told(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_late(length: int, n: int, t: int) -> torch.Tensor:
        return torch.arange(1, length + 1) - t > n

    monkeypatch.setattr(chain_of_thought, "mask", one_late)
    assert run("cot", "--bits", "2", "--group", "S3") == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if re.search(r"│ +(yes|NO) │", line)]
    assert len(lines) == 14
    assert all(("NO" in line) == ("mask from outside" in line) for line in lines)


@pytest.mark.parametrize(
    ("command", "where"),
    [
        ("group-composition --group S3 --n 8 --break product", "feed-forward"),
        ("group-composition --group S3 --n 8 --loops -1", "2 loops, should be 3"),
        ("simulation --break switch", "all but # are hidden"),
        ("simulation --loops -1", "loops, should be"),
        ("phop --p 4 --n 12 --inputs 3 --break temperature", "following a pointer, attention"),
        ("phop --p 4 --n 12 --inputs 3 --loops -1", "3 loops, should be 4"),
        ("cot --run mine --n 2 --m 3 --break mask", "should be"),
        ("cot --run mine --n 2 --m 3 --loops -1", "2 loops, should be 3"),
    ],
)
def test_what_is_broken_on_purpose_is_told_and_not_saved(
    command: str, where: str, tmp_path: Path, capsys: Captured
) -> None:
    save(random_transformer((0, 1), seed=0, vocabulary=3, n_max=5).model(), tmp_path / "mine")
    assert run(*command.split(), "--save", "out", "--json") == 1
    (told,) = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert told["exact"] is False
    assert any(where in check["where"] for check in told["checks"] if not check["exact"])
    assert all(check["where"] for check in told["checks"] if not check["exact"])
    assert not list(tmp_path.glob("out/*/*"))


def test_ones_own_transformer(tmp_path: Path, capsys: Captured) -> None:
    save(random_transformer((0, 1, 0), seed=0, vocabulary=3, n_max=7).model(), tmp_path / "mine")
    assert run("simulation", "--run", "mine", "--json") == 0
    assert next(check["what"] for check in json.loads(capsys.readouterr().out)["checks"]) == "own: weights and switches"
    assert run("cot", "--run", "mine", "--n", "3", "--m", "4", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert {check["scope"] for check in told["checks"]} == {
        "every input, 27",
        "every input with that gap",
        "every input without ties",
    }
    assert run("cot", "--run", "mine", "--n", "3", "--m", "5") == 2
    assert "n+m=8: allowed is up to 7, the positions of θ" in capsys.readouterr().err


def test_a_report_has_the_outcome_of_each_theorem(tmp_path: Path) -> None:
    assert command_line.run("report", "--all", "--prove", "--results", "none", "--out", "all.md") == 0
    table = [line.split("|") for line in (tmp_path / "all.md").read_text().splitlines() if "loopt prove" in line]
    exact = {command.strip(" `"): state.strip() for _, _, command, state, _ in table}
    assert exact.keys() == {one.command for one in ARTEFACTS if one.theorem}
    assert set(exact.values()) == {"built, and all checks are exact at small sizes"}


def test_no_inputs_prove_nothing() -> None:
    assert not Check("nothing", "no input", cases=0, unit="inputs", wrong=0, seconds=0.0).exact


@dataclass(frozen=True)
class SmallGroup(GroupOptions):
    group: str = "Z3"
    n: int = 6


@dataclass(frozen=True)
class SmallPHop(PHopOptions):
    p: int = 2
    n: int = 12
    inputs: int = 5


@dataclass(frozen=True)
class SmallChain(ChainOfThoughtOptions):
    bits: int = 2
    group: str = "Z2"


def test_all(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, smaller in (("group-composition", SmallGroup), ("phop", SmallPHop), ("cot", SmallChain)):
        monkeypatch.setitem(THEOREMS, name, smaller)  # or it would take a minute
    threads = torch.get_num_threads()
    assert run("all", "--save", "weights") == 0
    assert torch.get_num_threads() == threads
    shown = capsys.readouterr().out
    summary = shown[shown.index("All theorems") :]
    rows = re.findall(r"│ (\S+) +│ +\d+ │ +[\d,]+ │ +(\d+) │ +(\S+) │ +[\d.]+ │", summary)
    assert rows == [(name, "0", "yes") for name in THEOREMS]
    saved = sorted(path.parent for path in tmp_path.glob("weights/*/*/config.json"))
    assert {path.parent.name for path in saved} == {"group-composition", "simulation", "phop", "cot"}
    assert len(saved) == shown.count("Saved weights/")
    for path in saved:
        assert load(path).config.norm_placement == "none"


def test_a_trained_model_beside_the_built_one(tmp_path: Path, capsys: Captured) -> None:
    train(tiny_runs.TINY, tmp_path / "run", tiny_runs.CPU)
    assert run("phop", "--compare", "run") == 0
    shown = capsys.readouterr().out
    rows = re.findall(r"│ (\w+), loop (\d) +│ +(\d+)% │", shown)
    assert [(name, loop) for name, loop, _ in rows] == [("built", "1"), ("built", "2"), ("run", "1"), ("run", "2")]
    assert rows[1][2] == "100"
    assert all(share != "100" for name, _, share in rows if name == "run")  # 24 steps teach it little


def test_a_run_of_another_task_is_refused(tmp_path: Path, capsys: Captured) -> None:
    Run.start(tmp_path / "sums", tiny_runs.tiny(source=Addition(), batch_size=8)).close()
    assert run("phop", "--compare", "sums") == 2
    assert capsys.readouterr().err == "loopt: compare=sums: a run on addition; allowed is one on phop\n"


def test_what_was_damaged_is_not_loaded(tmp_path: Path) -> None:
    case = addition_case(bits=2)
    looped = build_looped(case.theta, case.n, case.m).model()
    save(looped, tmp_path)
    assert same_weights(load(tmp_path), looped)
    assert load_file(tmp_path / "weights.safetensors").keys() == looped.state_dict().keys()
    config = (tmp_path / "config.json").read_text()
    for text, told in (
        (config.replace('"d_model": ', '"d_modal": '), "does not hold a model .*d_modal"),
        (config.replace('"3x2"', '"3y2"'), "config.json: plan '3y2'"),
        (config.replace('"3x2"', '"4x2"'), "does not hold a model .*loop.layers.3"),
        (config.replace('"3x2"', "5"), "does not hold a model"),
        (config.replace('"d_ff": ', '"d_ff": 1000000000000'), "config.json: model.d_ff="),
        ("{}", "does not hold a model .*plan"),
        ("[]", "does not hold a model"),
        ("", "config.json: line 1, column 1: no JSON"),
        ("[" * 5000, "config.json: nested too deep"),
        ('{"plan": NaN}', "config.json: NaN"),
        (f'{{"d_model": {"1" * 400}}}', "config.json: a number of 400 digits"),
    ):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(InputError, match=told) as error:
            load(tmp_path)
        assert text == config.replace('"3x2"', '"3y2"') or "\n" not in str(error.value)  # a plan is pointed at
    with pytest.raises(InputError, match="No such file"):
        load(tmp_path / "nowhere")


def test_weights_of_another_model_are_not_replaced(tmp_path: Path, capsys: Captured) -> None:
    for name, seed in (("one", 1), ("other", 2)):
        save(random_transformer((0, 1), seed, heads=1, d=4, d_ff=4, vocabulary=3, n_max=4).model(), tmp_path / name)
    for again in range(2):  # the same weights may be saved again
        assert run("simulation", "--run", "one", "--save", "out") == 0, again
    weights = (tmp_path / "out" / "simulation" / "own" / "weights.safetensors").read_bytes()
    capsys.readouterr()
    assert run("simulation", "--run", "other", "--save", "out") == 2
    told = "loopt: out/simulation/own holds other weights; delete it, or save to another directory\n"
    assert capsys.readouterr().err == told
    assert (tmp_path / "out" / "simulation" / "own" / "weights.safetensors").read_bytes() == weights


def test_none_of_several_models_is_saved_where_one_would_replace_another(tmp_path: Path, capsys: Captured) -> None:
    save(random_transformer((0,), seed=1).model(), tmp_path / "out" / "group-composition" / "Z3-n4-F2")
    assert run("group-composition", "--group", "Z3", "--n", "4", "--save", "out") == 2
    assert "group-composition/Z3-n4-F2 holds other weights" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out" / "group-composition").iterdir()] == ["Z3-n4-F2"]


def test_models_of_two_alphabets_are_saved_side_by_side(tmp_path: Path) -> None:
    for alphabet in ("4", "3"):
        assert run("phop", "--p", "2", "--n", "5", "--inputs", "2", "--alphabet", alphabet, "--save", "out") == 0
    names = {path.name for path in (tmp_path / "out" / "phop").iterdir()}
    assert {"p2-n5", "p2-n5-alphabet3", "p2-n5-looped", "p2-n5-alphabet3-looped"} < names


@pytest.mark.parametrize("command", ["simulation --run mine", "cot --run mine --n 2 --m 2"])
def test_weights_that_are_not_finite_are_refused(command: str, tmp_path: Path, capsys: Captured) -> None:
    model = random_transformer((0, 1), seed=1, heads=1, d=4, d_ff=4, vocabulary=3, n_max=4).model()
    with torch.no_grad():
        model.state_dict()["loop.layers.1.feed_forward.up.weight"][0, 0] = torch.nan
    save(model, tmp_path / "mine")
    assert run(*command.split()) == 2
    told = "loopt: run=mine: loop.layers.1.feed_forward.up.weight holds what is not a finite number\n"
    assert capsys.readouterr() == ("", told)


def test_an_own_chain_of_thought_is_shown(tmp_path: Path, capsys: Captured) -> None:
    save(random_transformer((0,), seed=1, heads=1, d=4, d_ff=4, vocabulary=3, n_max=4).model(), tmp_path / "mine")
    assert run("cot", "--run", "mine", "--n", "2", "--m", "2", "--show") == 0
    shown = capsys.readouterr().out
    assert "Chain of thought, your transformer: every step" in shown
    assert "Drawn in cot-2.svg and cot-2.png\n" in shown
    (loop,) = re.findall(r"^loop 2 +(.*)$", shown, re.MULTILINE)
    (step,) = re.findall(r"^step 2 +(.*)$", shown, re.MULTILINE)
    assert loop.split() == step.split()
    assert len(loop.split()) == 4


def test_a_saved_model_names_its_run(capsys: Captured) -> None:
    assert run("group-composition", "--group", "Z3", "--n", "4", "--save", "out") == 0
    capsys.readouterr()
    assert command_line.run("eval", "out/group-composition/Z3-n4") == 2
    told = "out/group-composition/Z3-n4 is a model that loopt prove saved; as a run it is"
    assert capsys.readouterr().err == f"loopt: {told} out/group-composition/Z3-n4/run\n"


@pytest.mark.parametrize("width", [20, 31, 80])
def test_a_trace_fits_the_terminal(width: int) -> None:
    columns = tuple(str(i) for i in range(1, 31))
    rows = tuple((f"loop {t}", tuple(f"{t}.{i}" for i in range(1, 31))) for t in (1, 2))
    lines = trace_text(Trace("Numbers", columns, rows), width).splitlines()
    assert lines[0] == "Numbers"
    assert max(map(len, lines)) <= width
    for name, cells in rows:
        shown = [line.removeprefix(name).split() for line in lines if line.startswith(name)]
        assert [cell for piece in shown for cell in piece] == list(cells)
