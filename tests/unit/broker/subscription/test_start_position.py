"""The beginning of a subscription, compared with a description of the messages that it gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.subscription.start_position import beginning
from escapement.errors import InvalidRequest
from escapement.position import EARLIEST, LATEST, Position

END = 8
TIMES = st.integers(0, 20)
POSITIONS = st.one_of(
    st.sampled_from([LATEST, EARLIEST]),
    st.integers(0, END).map(lambda offset: Position("offset", offset)),
    TIMES.map(lambda ms: Position("time", ms)),
)


def wanted(position: Position, offset: int, due_ms: int, now_ms: int) -> bool:
    """Return whether a shared subscription that begins there gets a message of the log."""
    match position.kind:
        case "latest":
            return due_ms > now_ms
        case "earliest":
            return True
        case "offset":
            return offset >= position.value
        case "time":
            return due_ms >= position.value


@given(POSITIONS, TIMES, TIMES, st.lists(TIMES, min_size=END, max_size=END))
def test_shared_subscription_gets_the_messages_of_its_position(
    position: Position, now_ms: int, forgotten_until_ms: int, due_ms: list[int]
) -> None:
    """Messages that the index may have removed are in the range to fill in."""
    made = beginning("shared", position, END, now_ms, forgotten_until_ms)
    for offset, due in enumerate(due_ms):
        gets = offset >= made.start_offset or due >= made.start_due_ms
        assert gets == wanted(position, offset, due, now_ms)
        if gets and due <= forgotten_until_ms:
            assert made.fill_from <= offset < made.fill_until
    later = END + 1
    assert later >= made.start_offset, "a message published later is missed"


@pytest.mark.parametrize("kind", ["exclusive", "failover"])
def test_other_subscriptions_begin_at_an_offset_and_fill_nothing_in(kind: str) -> None:
    """They read the log, which has all messages from the beginning on."""
    for position, offset in ((LATEST, END), (EARLIEST, 0), (Position("offset", 3), 3)):
        made = beginning(kind, position, END, 5, 9)  # type: ignore[arg-type]
        assert (made.start_offset, made.fill_until) == (offset, made.fill_from)


def test_latest_reads_no_earlier_log_unless_the_clock_was_set_back() -> None:
    """A fill reads the whole log, so it must be rare."""
    assert beginning("shared", LATEST, END, 5, 5).fill_until == 0
    assert beginning("shared", LATEST, END, 5, 6).fill_until == END
    assert beginning("shared", Position("time", 6), END, 5, 5).fill_until == 0
    assert beginning("shared", Position("time", 5), END, 5, 0).fill_until == END


def test_offset_past_the_end_of_the_log_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="offset 9 does not exist yet: the next is 8"):
        beginning("shared", Position("offset", END + 1), END, 0)
