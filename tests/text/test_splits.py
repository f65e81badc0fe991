"""A document is always in the same split, whatever the corpus, and the shares held out are those asked for."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from tiny_text import documents

from loopt.source import Split
from loopt.text.splits import shares_that_hold_out, split_of

shares = st.floats(0, 0.5, exclude_max=True)


@given(st.binary(), shares, shares, shares)
def test_a_larger_share_keeps_what_a_smaller_one_held_out(text: bytes, one: float, other: float, fixed: float) -> None:
    small, large = sorted([one, other])
    assert not (split_of(text, small, fixed) == "validation" != split_of(text, large, fixed))
    assert not (split_of(text, fixed, small) == "test" != split_of(text, fixed, large))
    assert split_of(text, 0, 0) == "train"


def test_the_shares_held_out_are_the_shares_asked_for() -> None:
    texts = {text.encode() for text in documents(20_000)}
    for validation, test in ((0.01, 0.01), (0.2, 0.1), (0.5, 0.4)):
        found = Counter(split_of(text, validation, test) for text in texts)
        wanted: dict[Split, float] = {"train": 1 - validation - test, "validation": validation, "test": test}
        for split, share in wanted.items():
            assert abs(found[split] / len(texts) - share) < 5 * (share * (1 - share) / len(texts)) ** 0.5


@given(st.sets(st.text(st.characters(codec="utf-8"), min_size=1), min_size=3, max_size=12))
def test_three_documents_are_enough_for_all_splits(texts: set[str]) -> None:
    found = shares_that_hold_out(texts, 0.1)
    assert found is not None
    assert {split_of(text.encode(), *found) for text in texts} == {"train", "validation", "test"}


def test_shares_that_hold_something_out_stay_as_they_are() -> None:
    assert shares_that_hold_out(documents(400), 0.1) == (0.1, 0.1)
    assert shares_that_hold_out(["one", "two", "two", ""], 0.1) is None
