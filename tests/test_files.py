"""JSON from disk is read or refused in one line, and what was signed is seen to be edited."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopt.errors import ConfigError, InputError, RunError
from loopt.files import check_signature, parse_json, read_json, signed

numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(st.none() | st.booleans() | numbers | st.text(), lambda inner: st.lists(inner), max_leaves=10)
objects = st.dictionaries(st.text(), values, min_size=1)


@given(objects)
def test_what_was_written_is_read(data: dict[str, Any]) -> None:
    assert parse_json(json.dumps(data), "file") == data
    assert parse_json(json.dumps(data).encode(), "file") == data


@pytest.mark.parametrize(
    ("written", "wrong"),
    [
        (b"", "line 1, column 1: no JSON: Expecting value"),
        (b'{"a": 1', "line 1, column 8: no JSON"),
        (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
        (b"[" * 100_000, "nested too deep"),
        (b"[NaN]", "NaN; allowed are finite numbers"),
        (b"[-1e999]", "-1e999; allowed are finite numbers"),
        (b"9" * 400, "a number of 400 digits; allowed are those of 64 bits"),
        (b"9" * 5000, "a number of 5000 digits; allowed are those of 64 bits"),
    ],
)
def test_what_is_no_json_is_refused_in_one_line(written: bytes, wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_bytes(written)
    with pytest.raises(ConfigError) as error:
        read_json(path, ConfigError)
    assert str(error.value).startswith(f"{path}: {wrong}")
    assert "\n" not in str(error.value)


@given(st.binary(max_size=40))
def test_any_bytes_are_json_or_an_error(data: bytes) -> None:
    try:
        parse_json(data, "file")
    except InputError:
        return
    json.loads(data.decode("utf-8-sig"))


@given(objects, objects)
def test_only_what_was_signed_passes(data: dict[str, Any], other: dict[str, Any]) -> None:
    data, other = (
        {name: value for name, value in one.items() if name != "sha256"} or {"a": 1} for one in (data, other)
    )
    written = json.loads(json.dumps(signed(data)))
    assert check_signature(written, Path("file")) == data
    if json.dumps(other, sort_keys=True) != json.dumps(data, sort_keys=True):
        with pytest.raises(RunError):
            check_signature({**other, "sha256": written["sha256"]}, Path("file"))


@pytest.mark.parametrize("data", [{}, [], None, 3, {"a": 1}, {"sha256": "0"}])
def test_what_was_never_signed_is_refused(data: Any) -> None:
    with pytest.raises(RunError, match="not as it was written"):
        check_signature(data, Path("file"))
