"""Whatever is broken in what a theorem builds, ``loopt prove`` says NO and exits with 1."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import command_line
from loopt.tasks.groups import group
from loopt.theory import chain_of_thought_proof, group_composition_proof, phop_proof, simulation_proof
from loopt.theory.chain_of_thought import Constants, build_looped
from loopt.theory.chain_of_thought_cases import Case
from loopt.theory.controls import Damage, weight_groups
from loopt.theory.examples import all_words, random_transformer, rounded
from loopt.theory.formal import FormalTransformer
from loopt.theory.group_composition import build_group_composition, build_in_precision
from loopt.theory.phop import build_phop
from loopt.theory.phop_counting import build_counting, precision_of
from loopt.theory.saved import save
from loopt.theory.simulation import Bounds, simulate

pytestmark = pytest.mark.slow

OWN = random_transformer((0, 1), seed=1, heads=1, d=4, d_ff=4, vocabulary=3, n_max=4)
IN_F8 = rounded(OWN, 8)
EXCEPTIONS = {
    # Queries and keys both change their sign.
    "group-composition": {("reals", -1.0, "positions")},
}
COMMANDS: dict[str, tuple[str, dict[str, Damage]]] = {
    "group-composition": ("group-composition --group S3 --n 5 --inputs 2", group_composition_proof.BREAKS),
    "simulation": ("simulation --run mine", simulation_proof.BREAKS),
    "phop": ("phop --p 3 --n 6 --alphabet 3 --inputs 2", phop_proof.BREAKS),
    "cot": ("cot --run mine --n 2 --m 2", chain_of_thought_proof.BREAKS),
}


def built(theorem: str) -> tuple[FormalTransformer, FormalTransformer]:
    """What the command builds over the reals and in F_s."""
    if theorem == "group-composition":
        return build_group_composition(group("S3"), 5), build_in_precision(group("S3"), 5, 2)
    if theorem == "simulation":
        return simulate(OWN, Bounds.from_weights(OWN)), simulate(IN_F8, Bounds.largest(8))
    if theorem == "phop":
        return build_phop(3, 6, 3), build_counting(3, 6, precision_of(3, 6), 3)
    case = Case(OWN, all_words(3, 2), 2)
    return build_looped(OWN, 2, 2, case.constants), build_looped(IN_F8, 2, 2, Constants.of(8))


@pytest.fixture(autouse=True)
def with_my_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(OWN.model(), tmp_path / "mine")


def told(command: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    """Runs what has to fail and returns its checks."""
    assert command_line.run("prove", *command.split(), "--json") == 1, command
    checks: list[dict[str, object]] = json.loads(capsys.readouterr().out)["checks"]
    assert all(check["where"] for check in checks if not check["exact"]), command
    return checks


@pytest.mark.parametrize("theorem", COMMANDS)
def test_every_break_and_missing_loop_exits_with_1(theorem: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, breaks = COMMANDS[theorem]
    for name in breaks:
        assert any(not check["exact"] for check in told(f"{command} --break {name}", capsys))
    for loops in (-1, 1):
        assert any(not check["exact"] for check in told(f"{command} --loops {loops}", capsys))


def multiplied(name: str, factor: float) -> Callable[[FormalTransformer], FormalTransformer]:
    def damage(formal: FormalTransformer) -> FormalTransformer:
        groups = weight_groups(formal)
        return groups[name](factor) if name in groups else formal

    return damage


@pytest.mark.parametrize("theorem", COMMANDS)
def test_each_weight_group_zeroed_or_negated_exits_with_1(
    theorem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command, breaks = COMMANDS[theorem]
    over_the_reals, in_precision = (set(weight_groups(one)) for one in built(theorem))
    survive = set()
    for index, name in enumerate(sorted(over_the_reals | in_precision)):
        # both factors take long for the larger two; tests/theory/ has them
        for factor in (0.0, -1.0) if theorem in ("group-composition", "simulation") else (-float(index % 2),):
            monkeypatch.setitem(breaks, "this", multiplied(name, factor))
            checks = told(f"{command} --break this", capsys)
            for where, groups in (("reals", over_the_reals), ("F_s", in_precision)):
                if name in groups and not any(not check["exact"] for check in of(checks, where)):
                    survive.add((where, factor, name))
    assert survive <= EXCEPTIONS.get(theorem, set())


def of(checks: list[dict[str, object]], where: str) -> list[dict[str, object]]:
    """The checks of a proof that are over the reals, or in F_s."""
    fixed = [check for check in checks if re.search("F_(s|[0-9])", f"{check['what']} {check['scope']}")]
    return fixed if where == "F_s" else [check for check in checks if check not in fixed]
