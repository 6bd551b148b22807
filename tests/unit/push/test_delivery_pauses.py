"""The times at which posts begin again after a pause."""

from __future__ import annotations

import ssl

import trio.testing

from escapement.clock import SystemClock
from escapement.endpoint import Endpoint
from escapement.push.delivery import Delivery
from escapement.push.poster import Poster
from escapement.push.target import Target


async def test_post_may_begin_at_the_very_end_of_a_pause(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """B16: a time in seconds may be just below its millisecond. The process does not spin then."""
    endpoint = Endpoint.parse("https://hooks.example/")
    target = Target("public/default/x", "s", "msg_", endpoint, 1_000, 11_000, 4, ())
    clock = SystemClock()
    delivery = Delivery(
        target, Poster(target, (), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), clock), clock
    )
    begin_ms = round(trio.current_time() * 1000)
    for until_ms in range(begin_ms + 1, begin_ms + 3_000):
        delivery._breaker.hold(until_ms)
        assert delivery._room() <= 0
        await trio.sleep_until(until_ms / 1000)
        assert delivery._room() == 1
