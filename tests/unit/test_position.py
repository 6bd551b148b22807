"""Positions in a topic and their text form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.errors import InvalidRequest
from escapement.position import EARLIEST, LATEST, Position

HIGHEST = 2**62 - 1


@given(st.sampled_from(["offset", "time"]), st.integers(0, HIGHEST))
def test_text_of_a_position_names_it_again(kind: str, value: int) -> None:
    position = Position(kind, value)  # type: ignore[arg-type]
    assert str(position) == f"{kind}:{value}"
    assert Position.parse(str(position)) == position


def test_latest_and_earliest_are_words() -> None:
    for position in (LATEST, EARLIEST):
        assert Position.parse(str(position)) is position


@pytest.mark.parametrize(
    "text", ["", "Latest", "offset", "offset:", "offset:-1", "offset:1x", " time:1", "time:1\n",
             "time:\u0661", "time:12345678901234567890"],
)  # fmt: skip
def test_any_other_text_is_refused_with_the_forms_that_are_allowed(text: str) -> None:
    with pytest.raises(InvalidRequest, match="latest, earliest, offset:N or time:MILLISECONDS"):
        Position.parse(text)


@pytest.mark.parametrize("text", [f"offset:{HIGHEST + 1}", "time:9223372036854775807"])
def test_values_that_could_overflow_are_refused(text: str) -> None:
    """The sum of two of them must fit an int64."""
    with pytest.raises(InvalidRequest):
        Position.parse(text)
