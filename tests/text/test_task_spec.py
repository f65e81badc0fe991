"""A task named as a source says which, with which settings, and how much of it; anything else is refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopt import tasks
from loopt.errors import InputError
from loopt.tasks import IGSM, Addition, GroupComposition, PHop, Task, VariableAssignment
from loopt.text.task_spec import TaskSpec


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (
            "task:assignment?depth=1&rendering=code&shots=5&share=0.1",
            TaskSpec(VariableAssignment(depth=1, rendering="code", shots=5), 0.1, None),
        ),
        ("task:phop?p=1,2,3&n=24&documents=7", TaskSpec(PHop(p=(1, 2, 3), n=24), None, 7)),
        ("task:phop", TaskSpec(PHop(), None, None)),
        ("task:group?group=S3xZ2&n=4&share=.5", TaskSpec(GroupComposition("S3xZ2", n=4), 0.5, None)),
        ("task:igsm?levels=2,4&share=0.25", TaskSpec(IGSM(levels=(2, 4)), 0.25, None)),
        ("task:group?test_lengths=", TaskSpec(GroupComposition(), None, None)),
    ],
)
def test_a_spec_says_task_settings_and_amount(spec: str, expected: TaskSpec) -> None:
    assert TaskSpec.parse(spec) == expected


specs = st.builds(
    TaskSpec,
    st.one_of(
        st.builds(
            VariableAssignment,
            depth=st.integers(0, 3),
            rendering=st.sampled_from(["math", "code"]),
            shots=st.integers(0, 9),
            order=st.sampled_from(["levels", "shuffled"]),
        ),
        st.builds(Addition, operands=st.lists(st.integers(1, 9), min_size=1, unique=True).map(tuple)),
        st.builds(PHop, p=st.sets(st.integers(1, 9), min_size=1).map(tuple), n=st.integers(30, 99)),
        st.builds(GroupComposition, group=st.sampled_from(["S5", "Z2xZ2"]), n=st.integers(1, 9)),
    ),
    share=st.none() | st.floats(1e-4, 1, exclude_max=True),
    documents=st.none() | st.integers(1, 10**9),
)


@given(specs)
@settings(max_examples=200, deadline=None)
def test_a_spec_written_out_is_read_back_and_says_all(spec: TaskSpec) -> None:
    assert TaskSpec.parse(str(spec)) == spec
    name, _, query = str(spec).partition("?")
    shuffled = "&".join(sorted(query.split("&"), key=hash))
    assert str(TaskSpec.parse(f"{name}?{shuffled}")) == str(spec)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (
            "task:",
            "no task '' that is written as text; allowed are phop, hop_per_loop, addition, group, assignment, igsm",
        ),
        ("task:hop?p=1", "no task 'hop' that is written as text; allowed are phop, hop_per_loop, addition,"),
        ("task:phop?", "how much"),
        ("task:phop?p", "'p'; allowed are settings as field=value, with & between them"),
        ("task:phop?p=1&&n=9", "''; allowed are settings as field=value"),
        ("task:phop?q=1", "no setting 'q'; allowed are p, n, alphabet, sampler, supervision, share, documents"),
        ("task:phop?train_examples=9", "no setting 'train_examples'; allowed are p, n,"),
        ("task:phop?p=1&p=2", "p is given twice; allowed is once"),
        ("task:phop?p=one", "p='one'; allowed is integers with commas between them, such as 1,2"),
        ("task:phop?p=1,,2", "p='1,,2'; allowed is integers with commas between them"),
        ("task:phop?n=1,2", "n='1,2'; allowed is an integer"),
        ("task:phop?n=٣", "n='٣'; allowed is an integer"),
        ("task:phop?n=", "n=''; allowed is an integer"),
        ("task:phop?n=" + "9" * 5000, "n='9999"),
        ("task:phop?share=nan", "share='nan'; allowed is a number such as 0.1"),
        ("task:phop?share=-0.1", "share='-0.1'; allowed is a number such as 0.1"),
        ("task:phop?share=0", "share=0.0; allowed is more than 0, less than 1"),
        ("task:phop?share=1", "share=1.0; allowed is more than 0, less than 1"),
        ("task:phop?documents=0", "documents=0; allowed are 1 to 1000000000"),
        ("task:phop?documents=9999999999", "documents=9999999999; allowed are 1 to 1000000000"),
        ("task:phop?sampler=none", "sampler='none'; allowed are planted, uniform"),
        ("task:assignment?depth=-1", "depth=-1; allowed are integers, 0 to"),
        ("task:group?group=S99", "group 'S99' has more than 1000 elements"),
    ],
)
def test_what_a_spec_cannot_be_is_refused_in_one_line(spec: str, told: str) -> None:
    if told == "how much":  # no setting at all is allowed, and says no amount
        assert TaskSpec.parse(spec) == TaskSpec(PHop(), None, None)
        return
    with pytest.raises(InputError) as refusal:
        TaskSpec.parse(spec)
    assert told in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 500


def test_a_task_without_documents_is_not_among_those_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(PHop):
        name = "silent"
        document = Task.document

    monkeypatch.setitem(tasks.known(), "silent", Silent)
    with pytest.raises(InputError, match=r"^source task:silent: no task 'silent' that is written as text; .* igsm$"):
        TaskSpec.parse("task:silent")
