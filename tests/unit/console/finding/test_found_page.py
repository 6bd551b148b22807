"""Pages of messages of several topics."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.console.finding.page import PAGE_MESSAGES, Place, Row, merged
from escapement.errors import InvalidRequest

TOPICS = ("a/b/c", "a/b/d.1", "a/c/b")


def row(topic: str, due_ms: int, offset: int) -> Row:
    return Row(topic, offset, due_ms, "due", None, {}, 0)


def served(
    rows: Sequence[Row], begin: list[int] | None, count: int
) -> tuple[Sequence[Row], list[int] | None]:
    """Answer as a broker does: at most ``count`` messages from a place on, and the next place."""
    left = [one for one in rows if begin is None or [one.due_ms, one.offset] >= begin]
    if len(left) <= count:
        return left, None
    return left[:count], [left[count].due_ms, left[count].offset]


@given(
    st.lists(st.tuples(st.sampled_from(TOPICS), st.integers(0, 9)), max_size=300),
    st.integers(1, PAGE_MESSAGES),
)
def test_pages_have_each_message_once_and_in_order(
    drawn: list[tuple[str, int]], count: int
) -> None:
    """A topic may answer with fewer messages than a page has, since its work is bounded."""
    by_topic: dict[str, list[Row]] = {
        topic: sorted(
            (row(topic, due_ms, at) for at, (one, due_ms) in enumerate(drawn) if one == topic),
            key=lambda one: one.place,
        )
        for topic in TOPICS
    }
    seen: list[Row] = []
    begin: Place | None = None
    while True:
        found = merged(
            {
                topic: served(rows, begin and begin.inside(topic), count)
                for topic, rows in by_topic.items()
            }
        )
        assert len(found.rows) <= PAGE_MESSAGES
        seen += found.rows
        if not found.next:
            break
        following = Place.parse(found.next)
        assert begin is None or following > begin
        begin = following
    everything = [one for rows in by_topic.values() for one in rows]
    assert seen == sorted(everything, key=lambda one: one.place)


@pytest.mark.parametrize("wrong", ["", "1", "1.2", "x.2.a", "1.-2.a", f"{10**18}.2.a", "1.2.a b"])
def test_text_that_is_no_place_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidRequest):
        Place.parse(wrong)
