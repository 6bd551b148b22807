"""The sessions of signed-in users."""

from __future__ import annotations

import trio.testing

from escapement.console.visit import sessions
from escapement.console.visit.sessions import IDLE_S, LONGEST_S, MOST_SESSIONS, Sessions
from escapement.console.visit.user import User

NOBODY = User(None)


async def test_session_ends_without_requests(mock_clock: trio.testing.MockClock) -> None:
    kept = Sessions()
    id, session = kept.begin("token", NOBODY)
    mock_clock.jump(IDLE_S)
    assert kept.find(id) is session
    mock_clock.jump(IDLE_S + 1)
    assert kept.find(id) is None
    assert len(kept) == 0


async def test_session_ends_after_the_longest_time(mock_clock: trio.testing.MockClock) -> None:
    kept = Sessions()
    id, session = kept.begin("token", NOBODY)
    for _ in range(int(LONGEST_S / IDLE_S)):
        mock_clock.jump(IDLE_S)
        assert kept.find(id) is session
    mock_clock.jump(1)
    assert kept.find(id) is None


async def test_session_used_longest_ago_makes_room(mock_clock: trio.testing.MockClock) -> None:
    kept = Sessions()
    ids = [kept.begin("token", NOBODY)[0] for _ in range(MOST_SESSIONS)]
    assert kept.find(ids[0]) is not None  # used just now
    kept.begin("token", NOBODY)
    assert kept.find(ids[0]) is not None
    assert kept.find(ids[1]) is None
    assert len(kept) == MOST_SESSIONS


async def test_ended_session_is_unknown_and_secrets_differ() -> None:
    kept = Sessions()
    (id, one), (other_id, other) = kept.begin("a", NOBODY), kept.begin("a", NOBODY)
    assert id != other_id
    assert one.csrf != other.csrf
    kept.end(id)
    assert kept.find(id) is None
    assert kept.find("") is None
    assert sessions.MOST_SESSIONS >= len(kept) == 1
