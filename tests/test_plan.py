"""Plans: their text, their steps, and what they refuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopt.errors import PlanError
from loopt.plan import MAX_DEPTH, Block, LoopPlan, Step

blocks = st.lists(st.builds(Block, st.integers(1, 8), st.integers(1, 6)), min_size=1, max_size=5).map(tuple)


@st.composite
def plans(draw: st.DrawFn) -> LoopPlan:
    made = draw(blocks)
    return LoopPlan(made, draw(st.none() | st.integers(0, len(made) - 1)))


@given(plans())
def test_text_and_plan_are_the_same_thing(plan: LoopPlan) -> None:
    assert LoopPlan.parse(str(plan)) == plan
    assert str(LoopPlan.parse(str(plan))) == str(plan)


@given(plans())
def test_the_papers_typography_reads_back(plan: LoopPlan) -> None:
    assert LoopPlan.parse(plan.typography).blocks == plan.blocks


@given(plans())
def test_steps_run_each_block_its_loops_in_order(plan: LoopPlan) -> None:
    assert len(plan.steps) == plan.depth
    assert {step.layer for step in plan.steps} == set(range(plan.distinct_layers))
    assert [(s.block, s.loop) for s in plan.steps] == sorted((s.block, s.loop) for s in plan.steps)
    for index, block in enumerate(plan.blocks):
        ran = [step.layer for step in plan.steps if step.block == index]
        assert ran == ran[: block.layers] * block.loops
        assert ran[: block.layers] == list(range(ran[0], ran[0] + block.layers))


@given(plans(), st.integers(1, 9))
def test_with_loops_changes_the_loopable_block_only_and_remembers_it(plan: LoopPlan, loops: int) -> None:
    if plan.loopable is None:
        with pytest.raises(PlanError, match="does not tell"):
            plan.with_loops(loops)
        return
    changed = plan.with_loops(loops)
    assert changed.blocks[plan.loopable].loops == loops
    assert changed.distinct_layers == plan.distinct_layers
    assert changed.with_loops(plan.blocks[plan.loopable].loops) == plan


@given(plans())
def test_baselines_match_what_they_are_named_for(plan: LoopPlan) -> None:
    assert plan.iso_param.distinct_layers == plan.iso_param.depth == plan.distinct_layers
    assert plan.iso_flop.distinct_layers == plan.iso_flop.depth == plan.depth


@pytest.mark.parametrize(
    ("text", "canonical", "distinct", "depth", "loopable"),
    [
        ("1x6", "1x6", 1, 6, 0),
        ("24x1", "24x1", 24, 24, 0),
        ("(4⊗6)", "4x6", 4, 24, 0),
        (" ( 4 ⊗ 6 ) ", "4x6", 4, 24, 0),
        ("(4⊗1,4,1)", "4x(1,4,1)", 12, 24, 1),
        ("4x(1,4,1)", "4x(1,4,1)", 12, 24, 1),
        ("4x1+4x4+4x1", "4x(1,4,1)", 12, 24, 1),
        ("2x1+4x5+2x1", "2x1+4x5+2x1", 8, 24, 1),
        ("2x3+2x3", "2x(3,3)", 4, 12, None),
        ("2x3+2x3*", "2x(3,3*)", 4, 12, 1),
        ("2x1+4x1+2x1", "2x1+4x1+2x1", 8, 8, None),
    ],
)
def test_known_plans(text: str, canonical: str, distinct: int, depth: int, loopable: int | None) -> None:
    plan = LoopPlan.parse(text)
    assert (str(plan), plan.distinct_layers, plan.depth, plan.loopable) == (canonical, distinct, depth, loopable)


def test_the_middle_loop_written_out() -> None:
    plan = LoopPlan.parse("1x(1,2,1)")
    assert plan.steps == (Step(0, 0, 0), Step(1, 1, 0), Step(1, 1, 1), Step(2, 2, 0))
    assert str(plan.with_loops(1)) == "1x(1,1*,1)"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("", 0),
        ("   ", 3),
        ("x6", 0),
        ("0x6", 0),
        ("4x0", 2),
        ("-4x6", 0),
        ("4x-6", 2),
        ("4x", 2),
        ("4", 1),
        ("4y6", 1),
        ("4x6+", 4),
        ("4x6 6", 4),
        ("4x(1,,1)", 5),
        ("4x(1,4", 6),
        ("4x()", 3),
        ("(4x6", 4),
        ("4x6)", 3),
        ("4x1,2", 3),
        ("2x3*+2x3*", 8),
        ("99999999999999999999x1", 0),
        ("4.5x2", 1),
        ("٣x2", 0),
    ],
)
def test_errors_point_at_the_place(text: str, at: int) -> None:
    with pytest.raises(PlanError) as caught:
        LoopPlan.parse(text)
    message, shown, caret = str(caught.value).split("\n")
    assert repr(text) in message
    assert f"(character {at + 1})" in message
    assert shown == "  " + text
    assert caret == "  " + " " * at + "^"


def test_absurd_plans_are_refused_before_any_step_is_made() -> None:
    with pytest.raises(PlanError, match=f"at most {MAX_DEPTH}"):
        LoopPlan.parse("99999x99999")


@given(st.text(alphabet="0123456789x(),+*⊗ -", max_size=20))
def test_any_text_gives_a_plan_or_a_plan_error(text: str) -> None:
    try:
        plan = LoopPlan.parse(text)
    except PlanError:
        return
    assert LoopPlan.parse(str(plan)) == plan


def test_plans_that_cannot_be_built_by_hand_either() -> None:
    for made in ((), (Block(0, 1),), (Block(1, -1),)):
        with pytest.raises(PlanError):
            LoopPlan(made)
    with pytest.raises(PlanError, match="loopable=3"):
        LoopPlan((Block(1, 1),), 3)
    with pytest.raises(PlanError, match="loops=0"):
        LoopPlan.parse("1x6").with_loops(0)
