"""Endpoints that fail, or that ask to be left alone, and the breakers that wait for them."""

from __future__ import annotations

import ssl
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import format_datetime
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from escapement.push.breaker import FAILURES, FIRST_PAUSE_MS
from support.pushing import pushing
from support.webhook_server import status


@pytest.mark.parametrize("code", [429, 503])
@pytest.mark.parametrize("is_date", [False, True])
async def test_endpoint_is_left_alone_as_long_as_it_asks(
    code: int, is_date: bool, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """B16: Retry-After in seconds, or as a date. Other messages wait too."""
    async with pushing(tmp_path) as push, trio.open_nursery() as nursery:
        await push.create()
        await nursery.start(push.run)
        until = datetime.fromtimestamp(push.world.clock.now_ms() / 1000 + 90, UTC)
        asked = format_datetime(until, usegmt=True) if is_date else "90"
        push.server.answers.append(status(code, {"Retry-After": asked}))
        producer = await push.broker.producer("x")
        await producer.send(b"first")
        await push.server.until(1)
        await push.until(lambda row: row["nacked"] == 1)
        await producer.send(b"second")
        await push.world.clock.advance(seconds=89)
        assert len(push.server.posts) == 1
        await push.world.clock.advance(seconds=1)
        posts = await push.server.until(3)
        assert {post.body for post in posts[1:]} == {b"first", b"second"}
        push.stop.set()


async def test_breaker_stops_posts_and_sends_one_probe(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """B16: messages that are not posted use up no attempts."""
    async with pushing(tmp_path) as push, trio.open_nursery() as nursery:
        await push.create()
        push.server.usual = status(500)
        await (await push.broker.producer("x")).send_many([b"%d" % n for n in range(50)])
        async with push.broker.consumer("x", "s") as inbox:  # make them due for this subscription
            await inbox.seek("earliest")
        await nursery.start(push.run)
        await push.server.until(FAILURES)
        await push.until(lambda row: row["nacked"] == FAILURES and row["in_flight"] == 0)
        await push.world.clock.advance(ms=FIRST_PAUSE_MS - 1)
        assert len(push.server.posts) == FAILURES
        await push.world.clock.advance(ms=1)
        await push.server.until(FAILURES + 1)
        await push.until(lambda row: row["nacked"] == FAILURES + 1)
        await push.world.clock.advance(ms=2 * FIRST_PAUSE_MS - 1)
        assert len(push.server.posts) == FAILURES + 1
        push.server.usual = status(204)
        await push.world.clock.advance(ms=1)
        await push.server.until(FAILURES + 2)
        await push.until(lambda row: row["acknowledged"] >= 50 - FAILURES - 1)
        attempts = [int(post.headers["escapement-attempt"]) for post in push.server.posts]
        assert max(attempts) <= 3
        push.stop.set()


async def test_process_that_cannot_reach_an_endpoint_does_not_stop_the_others(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """B16: it lacks the authority of the endpoint. The others post during its pause."""
    async with pushing(tmp_path) as push, trio.open_nursery() as nursery:
        await push.create()
        blind = replace(push.config, authorities=ssl.create_default_context())
        await (await push.broker.producer("x")).send_many([b"%d" % n for n in range(50)])
        await nursery.start(partial(push.run, config=blind))
        await push.until(lambda row: row["nacked"] == FAILURES and row["in_flight"] == 0)
        began_ms = push.world.clock.now_ms()
        await nursery.start(push.run)
        await push.until(lambda row: row["acknowledged"] == 50 - FAILURES)
        assert push.world.clock.now_ms() == began_ms
        assert len(push.server.posts) == 50 - FAILURES
        # The pause of the first process is over. The other one posts what that process gave back.
        await push.world.clock.advance(seconds=60)
        await push.until(lambda row: row["unacknowledged"] == 0)
        push.stop.set()


async def test_each_process_spares_a_failing_endpoint(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """B16: two processes together make twice the failed posts, and two probes for each pause."""
    async with pushing(tmp_path) as push, trio.open_nursery() as nursery:
        await push.create()
        push.server.usual = status(500)
        await (await push.broker.producer("x")).send_many([b"%d" % n for n in range(100)])
        await nursery.start(push.run)
        await nursery.start(push.run)
        for posts, pause_ms in ((2 * FAILURES, FIRST_PAUSE_MS), (2 * FAILURES + 2, 1)):
            await push.until(
                lambda row, posts=posts: row["nacked"] == posts and row["in_flight"] == 0
            )
            await push.world.clock.advance(ms=pause_ms - 1)
            assert len(push.server.posts) == posts
            await push.world.clock.advance(ms=1)
        push.stop.set()
