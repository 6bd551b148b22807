"""Server-sent events of a page, and how their answer ends."""

from __future__ import annotations

from typing import Any

import trio
import trio.testing

from escapement.console.visit.live import EventStream, events
from escapement.errors import Busy, Unauthenticated


async def _part() -> str:
    await trio.lowlevel.checkpoint()
    return "<p>1</p>"


async def test_stream_ends_with_its_request_in_the_midst_of_an_event(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """B14: a browser that reads no more, and goes, leaves nothing behind."""
    sent: list[bytes] = []
    scopes: set[trio.CancelScope] = set()
    gone = trio.Event()

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message.get("body", b""))
        if sent[-1]:
            assert len(scopes) == 1
            gone.set()
            await trio.sleep_forever()

    stream = EventStream(events(_part), scopes)
    await stream({"type": "http"}, receive, send)
    assert sent == [b"", b"event: part\ndata: <p>1</p>\n\n"]
    assert not scopes
    await trio.testing.wait_all_tasks_blocked()


async def test_events_tell_errors_and_end_when_the_user_must_sign_in(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """B14: a part is sent again only if it has changed."""
    outcomes = iter([None, None, Busy("later"), None, Unauthenticated("Sign in.")])

    async def part() -> str:
        error = next(outcomes)
        if error is not None:
            raise error
        return await _part()

    found = [event.decode().splitlines() async for event in events(part)]
    assert [lines[-2:] for lines in found] == [
        ["data: <p>1</p>", ""],
        ["data: later", ""],
        ["data: <p>1</p>", ""],
        ["data: Sign in.", ""],
    ]
