"""The bodies of requests have bounds."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from starlette.requests import Request
from starlette.types import Message

from escapement.errors import Busy, InvalidRequest
from escapement.http.body import LONGEST_S, Bodies, read_body


def request_of(*parts: bytes, ends: bool = True) -> Request:
    """Return a request whose body arrives in parts, and then has its end, or nothing."""
    left = [*parts]

    async def receive() -> Message:
        if not left and not ends:
            await trio.sleep_forever()
        part = left.pop(0) if left else b""
        return {"type": "http.request", "body": part, "more_body": bool(left) or not ends}

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


async def test_body_that_does_not_arrive_is_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """B15: a sender that goes on too slowly does not keep a place of the requests in progress."""
    began_s = trio.current_time()
    with pytest.raises(InvalidRequest, match="has not arrived within 60 s"):
        await read_body(request_of(b"a", b"b", ends=False), 10)
    assert trio.current_time() == began_s + LONGEST_S


async def test_bodies_of_all_requests_have_a_bound_together() -> None:
    """B15: a body has room again when another one is no longer needed."""
    bodies = Bodies(10)
    async with bodies.lend(request_of(b"1234", b"567"), 8) as body:
        assert body == b"1234567"
        with pytest.raises(Busy):
            async with bodies.lend(request_of(b"12", b"34"), 8):
                pass
        async with bodies.lend(request_of(b"123"), 8):
            pass
    async with bodies.lend(request_of(b"12345678"), 8):
        pass
    with pytest.raises(InvalidRequest, match="more than 8 bytes"):
        async with bodies.lend(request_of(b"123456789"), 8):
            pass
    async with bodies.lend(request_of(b"12345678"), 8):
        pass
