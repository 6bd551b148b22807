"""Push from a broker to a real HTTPS server on loopback."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

import pytest
import trio
import trio.testing

import escapement
from escapement import testing
from escapement.errors import AccessDenied
from escapement.push.pusher import REFRESH_S, PushConfig, run_push
from support.pushing import NAMES, pushing
from support.roles import begin, connected, new_token
from support.webhook_server import Post, held, raw, silence, status

TRACE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def verified(post: Post, secret: str) -> bool:
    """Verify a post as an endpoint does."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    text = f"{post.headers['webhook-id']}.{post.headers['webhook-timestamp']}.".encode()
    wanted = base64.b64encode(hmac.digest(key, text + post.body, hashlib.sha256)).decode()
    return f"v1,{wanted}" in post.headers["webhook-signature"].split()


async def test_message_is_posted_when_it_is_due_and_then_acknowledged(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """B16: signed, with its attempt, due time and trace."""
    async with pushing(tmp_path) as push, trio.open_nursery() as nursery:
        secret = await push.create()
        assert await nursery.start(push.run) == 1
        producer = await push.broker.producer("x")
        properties = {"traceparent": TRACE, "content-type": "text/plain"}
        await producer.send(b"pay me", delay="1h", properties=properties)
        await push.world.clock.advance(minutes=59)
        assert push.server.posts == []
        await push.world.clock.advance(minutes=1)
        (post,) = await push.server.until(1)
        now_s = push.world.clock.now_ms() // 1000
        assert (post.method, post.target, post.body) == ("POST", "/hook", b"pay me")
        assert post.headers["escapement-attempt"] == "1"
        assert post.headers["escapement-due"] == "2026-12-24T13:00:00.000Z"
        assert post.headers["traceparent"] == TRACE
        assert post.headers["content-type"] == "text/plain"
        assert post.headers["webhook-timestamp"] == str(now_s)
        assert verified(post, secret)
        await push.until(lambda row: row["acknowledged"] == 1)
        push.stop.set()


async def test_failed_post_is_repeated_with_the_same_id_after_the_back_off(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """B16: 5xx, a broken connection, and no answer within the timeout."""
    async with pushing(tmp_path) as push, trio.open_nursery() as nursery:
        await push.create(timeout_ms=1_000)
        await nursery.start(push.run)
        push.server.answers.extend([status(500), raw(b"garbage"), silence])
        await (await push.broker.producer("x")).send(b"again")
        for count, back_off_s in ((1, 11), (2, 22)):
            await push.server.until(count)
            await push.until(lambda row, count=count: row["nacked"] == count)
            await push.world.clock.advance(seconds=back_off_s)
        await push.server.until(3)
        assert (await push.state())["in_flight"] == 1
        await push.world.clock.advance(seconds=1)  # the timeout
        await push.until(lambda row: row["nacked"] == 3)
        await push.world.clock.advance(seconds=44)
        posts = await push.server.until(4)
        assert [post.headers["escapement-attempt"] for post in posts] == ["1", "2", "3", "4"]
        assert len({post.headers["webhook-id"] for post in posts}) == 1
        await push.until(lambda row: row["acknowledged"] == 1)
        push.stop.set()


@pytest.mark.parametrize("code", [400, 404, 410])
async def test_rejected_message_becomes_a_dead_letter_and_the_next_one_is_posted(
    code: int, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """B16"""
    async with pushing(tmp_path) as push, trio.open_nursery() as nursery:
        await push.create()
        await nursery.start(push.run)
        push.server.answers.append(status(code))
        await (await push.broker.producer("x")).send_many([b"bad", b"good"])
        await push.server.until(2)
        (letter,) = await push.dead(1)
        assert (letter["payload"], letter["reason"]) == (b"bad", "rejected")
        assert letter["detail"] == f"HTTP {code}"
        await push.until(lambda row: row["unacknowledged"] == 0)
        assert len(push.server.posts) == 2
        push.stop.set()


async def test_posts_in_progress_start_slowly_and_stay_within_the_concurrency(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """B16"""
    async with pushing(tmp_path) as push, trio.open_nursery() as nursery:
        await push.create(concurrency=4)
        await nursery.start(push.run)
        gates = [trio.Event() for _ in range(3)]
        for gate, size in zip(gates, (1, 2, 4), strict=True):
            push.server.answers.extend([held(gate, status(200))] * size)
        await (await push.broker.producer("x")).send_many([b"m"] * 40)
        received = 0
        for gate, size in zip(gates, (1, 2, 4), strict=True):
            received += size
            await push.server.until(received)
            row = await push.until(lambda row, size=size: row["in_flight"] == size)
            assert row["ready"] > 0
            assert len(push.server.posts) == received
            gate.set()
        await push.until(lambda row: row["acknowledged"] == 40)
        assert push.server.most_at_once == 4
        push.stop.set()


async def test_failure_halves_the_posts_in_progress(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """B16: a message that was pulled before the failure, and must wait now, uses up no attempt."""
    async with pushing(tmp_path) as push, trio.open_nursery() as nursery:
        await push.create(concurrency=4)
        await nursery.start(push.run)
        producer = await push.broker.producer("x")
        await producer.send_many([b"fast"] * 5)
        await push.until(lambda row: row["acknowledged"] == 5)
        fails, ends = trio.Event(), trio.Event()
        push.server.answers.append(held(fails, status(500)))
        await producer.send(b"fails")
        await push.server.until(6)
        await trio.testing.wait_all_tasks_blocked()  # the pusher pulls as many as it may post
        fails.set()
        await push.until(lambda row: row["nacked"] == 1)
        push.server.answers.extend([held(ends, status(200))] * 3)
        await producer.send_many([b"slow"] * 3)
        await push.server.until(8)
        row = await push.until(lambda row: row["released"] == 1)
        assert row["in_flight"] == 2
        ends.set()
        posts = await push.server.until(9)
        await push.until(lambda row: row["acknowledged"] == 8)
        assert [post.headers["escapement-attempt"] for post in posts[6:]] == ["1", "1", "1"]
        push.stop.set()


async def test_pusher_follows_changes_of_its_targets(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """B16: created, rotated, paused, resumed and deleted while it runs."""
    async with pushing(tmp_path) as push, trio.open_nursery() as nursery:
        assert await nursery.start(push.run) == 0
        producer = await push.broker.producer("x")

        async def posted(body: bytes) -> Post:
            count = len(push.server.posts)
            await producer.send(body)
            return (await push.server.until(count + 1))[-1]

        async def followed() -> None:
            await push.world.clock.advance(seconds=2 * REFRESH_S)

        first = await push.create()
        await followed()
        post = await posted(b"1")
        assert verified(post, first)
        second = (await push.broker.admin("push.rotate", **NAMES, keep_ms=60_000))["secret"]
        await followed()
        post = await posted(b"2")
        assert verified(post, first)
        assert verified(post, second)
        await push.world.clock.advance(minutes=1)
        await followed()
        post = await posted(b"3")
        assert not verified(post, first)
        assert verified(post, second)
        await push.broker.admin("push.pause", **NAMES)
        await followed()
        await push.until(lambda row: row["consumers"] == [])
        await producer.send(b"4")
        await push.world.clock.advance(hours=1)
        assert len(push.server.posts) == 3
        await push.broker.admin("push.resume", **NAMES)
        await followed()
        assert (await push.server.until(4))[3].body == b"4"
        await push.until(lambda row: row["unacknowledged"] == 0)
        await push.broker.admin("push.delete", **NAMES)
        await followed()
        await push.until(lambda row: row["consumers"] == [])
        await push.broker.admin("subscriptions.delete", **NAMES)
        await followed()
        assert await push.broker.admin("subscriptions.list", topic="x") == []
        push.stop.set()


async def test_posts_that_a_broker_has_ended_begin_again_after_half_a_minute(
    tmp_path: Path, mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """B16: the subscription was deleted and created again, with its target."""
    async with pushing(tmp_path) as push, trio.open_nursery() as nursery:
        await push.create()
        await nursery.start(push.run)
        await push.until(lambda row: len(row["consumers"]) == 1)
        await push.broker.admin("subscriptions.delete", **NAMES, force=True)
        while "posts end, and begin again in 30 s" not in caplog.text:
            await trio.lowlevel.checkpoint()
        await push.create()
        await (await push.broker.producer("x")).send(b"1")
        await push.world.clock.advance(ms=29_999)
        assert (await push.state())["consumers"] == []
        await push.world.clock.advance(seconds=REFRESH_S)
        (post,) = await push.server.until(1)
        assert post.body == b"1"
        push.stop.set()


async def test_stop_waits_for_the_posts_in_progress(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """B16: their messages are acknowledged, and no other one is begun."""
    async with pushing(tmp_path) as push, trio.open_nursery() as nursery:
        await push.create()
        await nursery.start(push.run)
        answered = trio.Event()
        push.server.answers.append(held(answered, status(200)))
        await (await push.broker.producer("x")).send_many([b"1", b"2"])
        await push.server.until(1)
        push.stop.set()
        await trio.testing.wait_all_tasks_blocked()
        assert (await push.state())["consumers"] == ["push"]
        answered.set()
        row = await push.until(lambda row: not row["consumers"])
        assert (row["acknowledged"], row["unacknowledged"]) == (1, 1)
        assert len(push.server.posts) == 1


async def test_message_in_progress_is_posted_again_after_a_crash_of_the_broker(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """B16, V1: with the same id, by which the endpoint recognises it."""
    async with pushing(tmp_path) as push, trio.open_nursery() as nursery:
        await push.create(timeout_ms=60_000)
        await nursery.start(push.run)
        push.server.answers.append(silence)
        await (await push.broker.producer("x")).send(b"twice")
        await push.server.until(1)
        await push.world.crash()
        await push.world.restart()
        await push.world.clock.advance(minutes=3)
        one, two = await push.server.until(2)
        assert one.headers["webhook-id"] == two.headers["webhook-id"]
        await push.until(lambda row: row["unacknowledged"] == 0)
        push.stop.set()


async def test_message_of_a_process_that_dies_is_posted_by_another(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """B16, V1"""
    async with pushing(tmp_path) as push, trio.open_nursery() as nursery:
        await push.create()
        push.server.answers.append(silence)
        await (await push.broker.producer("x")).send(b"m")
        async with trio.open_nursery() as process:
            await process.start(push.run)
            await push.broker.admin("subscriptions.seek", **NAMES, position="earliest")
            await push.server.until(1)
            process.cancel_scope.cancel()
        await nursery.start(push.run)
        one, two = await push.server.until(2)
        assert [post.headers["escapement-attempt"] for post in (one, two)] == ["1", "2"]
        assert one.headers["webhook-id"] == two.headers["webhook-id"]
        await push.until(lambda row: row["unacknowledged"] == 0)
        push.stop.set()


async def test_pusher_ends_if_its_token_may_not_read_the_targets(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B16, O1: at its start, and when the right is revoked."""
    async with testing.start() as world:
        async with connected(world, await begin(world)) as root:
            token = await new_token(root, "pusher")

            settings = escapement.Settings(heartbeat_s=None, close_timeout_s=0)

            async def run(ready: Callable[[int], None]) -> None:
                def connect() -> AbstractAsyncContextManager[escapement.Broker]:
                    return world.connect(token=token.text, settings=settings)

                with pytest.raises(AccessDenied):
                    await run_push(PushConfig(), connect, trio.sleep_forever, ready)

            counts: list[int] = []
            await run(counts.append)
            assert counts == []
            grant = {"role": "pusher", "pattern": "*"}
            await root.admin("grants.add", **grant, actions=["admin"])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run, counts.append)
                await trio.testing.wait_all_tasks_blocked()
                assert counts == [0]
                await root.admin("grants.remove", **grant)
                await world.clock.advance(seconds=REFRESH_S)
