"""The limits of an agent, its rights, and a broker that is away."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from escapement import testing
from escapement.access.pattern import Pattern
from escapement.errors import InvalidRequest
from escapement.mcp.limits import Limits
from escapement.mcp.server import MOST_CALLS
from support.agents import WRITER, Agent, agent
from support.roles import begin, connected, new_token

X: dict[str, Any] = {"topic": "notes", "payload_text": "x"}


async def test_agent_uses_allowed_topics_only(mock_clock: Any) -> None:
    """B18: other topics are neither shown nor changed, however a call names them."""
    limits = Limits(topics=(Pattern.parse("a/b/*"), Pattern.parse("notes")), may_write=True)
    async with testing.start() as world, world.connect() as broker:
        await (await broker.producer("a/c/secret")).send(b"x", delay="1h", key="k")
        async with agent(world, limits) as robot:
            for name in ("a/b/one", "notes", "persistent://a/b/two"):
                await robot.call("schedule_message", topic=name, payload_text="x", delay="1h")
            topics = ["a/b/one", "a/b/two", "public/default/notes"]
            assert (await robot.call("list_topics"))["topics"] == topics
            one = {"topic": "a/c/secret"}
            for name, arguments in (
                ("list_messages", one),
                ("show_message", {"id": "a/c/secret@0"}),
                ("forecast", one),
                ("schedule_message", one | {"payload_text": "x"}),
                ("cancel_message", {"ids": ["a/c/secret@0"]}),
                ("cancel_message", one | {"key": "k"}),
                ("reschedule_message", {"ids": ["a/b/one@0", "a/c/secret@0"], "now": True}),
                ("pause_delivery", one),
                ("resume_delivery", one),
            ):
                words = await robot.refused(name, **arguments)
                assert "does not allow topic a/c/secret. Allowed are: a/b/*, public/" in words
            shown = await broker.show("a/c/secret@0")
            assert shown.state == "to_be_fired"


async def test_agent_cannot_schedule_further_ahead_than_allowed(mock_clock: Any) -> None:
    """B18: by a delay or a time, in a new message or by a reschedule."""
    limits = Limits(may_write=True, max_delay_ms=3_600_000)
    async with testing.start() as world, world.connect() as broker, agent(world, limits) as robot:
        await robot.call("schedule_message", **X, delay="1h")
        await robot.call("schedule_message", **X, at="2026-12-24T13:00:00Z")
        for time in ({"delay": "3600001ms"}, {"at": "2026-12-24T13:00:00.001Z"}):
            assert "at most 1h ahead" in await robot.refused("schedule_message", **X, **time)
            words = await robot.refused("reschedule_message", ids=["notes@0"], **time)
            assert "Choose an earlier time" in words
        assert (await broker.admin("topics.stats", topic="notes"))["next_offset"] == 2
        assert (await broker.show("notes@0")).due_at == (await broker.show("notes@1")).due_at


async def test_number_is_no_time(mock_clock: Any) -> None:
    """B18: a day without hyphens is not taken as Unix seconds, which would be due at once."""
    async with testing.start() as world, world.connect() as broker, agent(world) as robot:
        for at in ("20261225", 20261225, 1798192800, "1798192800.5", " 1798192800", "2026-12-25"):
            words = await robot.refused("schedule_message", **X, at=at)
            assert words.startswith("The arguments of schedule_message are not valid. at: ")
        await robot.call("schedule_message", **X, at="2026-12-25T00:00:00Z")
        assert (await broker.admin("topics.stats", topic="notes"))["next_offset"] == 1


async def test_pending_messages_of_a_key_are_limited(mock_clock: Any) -> None:
    """B18: calls at the same time never exceed the limit. A repeated call stores nothing new."""
    limits = Limits(may_write=True, max_pending_per_key=3)
    async with testing.start() as world, world.connect() as broker, agent(world, limits) as robot:
        results: list[bool] = []

        async def schedule() -> None:
            given = X | {"delay": "1h", "key": "k"}
            results.append((await robot.client.call_tool("schedule_message", given)).is_error)

        first = await robot.call("schedule_message", **X, key="k", delay="1h", idempotency_key="i")
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(schedule)
        assert sorted(results) == [False, False, True, True, True]
        words = await robot.refused("schedule_message", **X, key="k")
        assert "3 messages with key 'k' are pending" in words
        assert "Nothing was scheduled" in words
        again = await robot.call("schedule_message", **X, key="k", idempotency_key="i")
        assert again == first | {"duplicate": True}
        await robot.call("schedule_message", **X, key="other")
        await robot.call("schedule_message", **X)
        await robot.call("cancel_message", ids=[first["id"]])
        await robot.call("schedule_message", **X, key="k", delay="1h")
        assert len([one async for one in broker.peek("notes", key="k")]) == 3


async def test_messages_of_a_call_and_bytes_of_a_payload_are_limited(mock_clock: Any) -> None:
    """B18: a list goes on with a cursor, and a change of too many messages changes none."""
    limits = Limits(may_write=True, max_messages=2, max_payload_bytes=3)
    async with testing.start() as world, world.connect() as broker, agent(world, limits) as robot:
        for _ in range(5):
            await robot.call("schedule_message", **X, delay="1h", key="k")
        words = await robot.refused("schedule_message", topic="notes", payload_text="€€")
        assert "has 6 bytes, and at most 3" in words
        words = await robot.refused("schedule_message", **X, properties={"a": "b"})
        assert "with its properties has 11 bytes, and at most 3" in words
        found, cursor = [], None
        while True:
            page = await robot.call("list_messages", topic="notes", count=1000, cursor=cursor)
            assert len(page["messages"]) <= 2
            found += [one["id"] for one in page["messages"]]
            if (cursor := page["next_cursor"]) is None:
                break
        assert found == [f"public/default/notes@{offset}" for offset in range(5)]
        for named in ({"topic": "notes", "key": "k"}, {"ids": found[:3]}):
            words = await robot.refused("cancel_message", **named)
            assert "More than 2 messages are meant" in words
            assert "Nothing was changed" in words
            assert words == await robot.refused("reschedule_message", **named, now=True)
        assert len([one async for one in broker.peek("notes")]) == 5
        twice = [found[0], found[0].removeprefix("public/default/")]
        assert (await robot.call("cancel_message", ids=twice))["done"] == 1
        assert (await robot.call("cancel_message", ids=found[1:3]))["done"] == 2


async def test_rights_of_the_token_apply(mock_clock: Any) -> None:
    """B18, O1: a call without the right names it, and a revoked token ends no server."""
    async with testing.start() as world:
        root = await begin(world)
        async with connected(world, root) as broker:
            token = await new_token(broker, "robot")
            async with agent(world, WRITER, token.text) as robot:
                denied = await robot.refused("schedule_message", **X)
                assert "robot" in denied
                assert "grants add" in denied
                await broker.admin("grants.add", role="robot", pattern="notes", actions=["produce"])
                await robot.call("schedule_message", **X)
                assert "peek" in await robot.refused("list_messages", topic="notes")
                await broker.admin("tokens.revoke", id=token.id)
                await world.clock.advance(seconds=10)  # the client tries to connect again
                for _ in range(2):
                    words = await robot.refused("schedule_message", **X)
                    assert "does not accept the token" in words
            async with agent(world, WRITER) as stranger:
                words = await stranger.refused("list_topics")
                assert "does not accept the token" in words


async def test_call_fails_while_the_broker_is_away_and_the_next_connects(mock_clock: Any) -> None:
    """B18: the server goes on, also if the broker was never there."""
    async with testing.start() as world:
        await world.stop()
        async with agent(world) as robot:
            assert "the broker is down" in await robot.refused("list_topics")
            await world.restart()
            await robot.call("schedule_message", **X, delay="1h")
            await world.crash()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(away, robot)
                await world.clock.advance(seconds=40)
            await world.restart()
            await world.clock.advance(seconds=20)
            assert len((await robot.call("list_messages", topic="notes"))["messages"]) == 1


async def away(robot: Agent) -> None:
    words = await robot.refused("schedule_message", **X)
    assert "may or may not be stored" in words
    assert "It may succeed later" in words


async def test_too_many_calls_at_once_are_refused(mock_clock: Any) -> None:
    """B18: while the broker is away, calls wait, and further ones are refused at once."""
    async with testing.start() as world, agent(world) as robot:
        await robot.call("list_topics")
        await world.crash()
        async with trio.open_nursery() as nursery:
            for _ in range(MOST_CALLS):
                nursery.start_soon(robot.refused, "list_topics")
            await world.clock.settle()
            assert f"{MOST_CALLS} calls are in progress" in await robot.refused("list_topics")
            await world.clock.advance(seconds=40)


def test_limits_that_allow_nothing_or_too_much_are_refused() -> None:
    """B18: an operator cannot set a limit without effect."""
    for wrong in (
        {"max_messages": 0},
        {"max_messages": 1001},
        {"max_pending_per_key": 0},
        {"max_payload_bytes": 2**20 + 1},
    ):
        with pytest.raises(InvalidRequest, match="must be from 1 to"):
            Limits(**wrong)  # type: ignore[arg-type]
