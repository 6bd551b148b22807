"""The pages of subscriptions: their figures and lateness, and the forms to pause and to seek."""

from __future__ import annotations

from datetime import timedelta
from zoneinfo import ZoneInfo

import trio.testing

from escapement import testing
from escapement.clock import moment
from escapement.console.visit.view import ZONE_COOKIE
from escapement.testing import arrived
from support.console.visitor import Visitor, text_of, visiting
from support.roles import begin, connected

ORDERS = "public/default/orders"
ZONE = "Asia/Tokyo"
NAMED = {"topic": ORDERS, "subscription": "s"}
PAGE = f"/subscription?topic={ORDERS}&subscription=s"


async def does(visitor: Visitor, action: str, **fields: str) -> str:
    """Send a form of the subscription, and return the text of the page that follows."""
    answer = await visitor.send(f"/subscription/{action}", NAMED | fields)
    assert answer.status_code == 200, text_of(answer)
    return text_of(answer)


async def test_figures_of_a_subscription_are_those_of_the_broker(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: due, in flight, in retry, not yet due, consumers and rates."""
    async with testing.start() as world, world.connect() as broker, visiting(world) as visitor:
        await broker.admin("subscriptions.create", **NAMED, policy={"min_backoff_ms": 600_000})
        producer = await broker.producer("orders")
        await producer.send_many([b""] * 10, delay=["0s"] * 6 + ["1h"] * 4)
        async with broker.consumer("orders", "s", name="till-3") as inbox:
            messages = await arrived(inbox)
            await inbox.nack(messages[:1])
            await inbox.ack(messages[1:3], durable=True)
            await producer.send(b"", delay="1s")
            await broker.pause("orders", "s")
            await world.clock.advance(seconds=1)
            text = await visitor.text(PAGE)
            assert "1 due 3 in flight 1 in retry 4 not yet due 1 consumers" in text
            assert "Consumers till-3" in text
            assert "6 delivered, 0 of them again; 2 acknowledged; 1 negative" in text
            assert "– acknowledged in a second" in text
            assert f"s {ORDERS} paused 1 1 3 1 9 – 0" in await visitor.text("/subscriptions")
            await broker.resume("orders", "s")
            await inbox.ack(messages[3:5], durable=True)
            await world.clock.advance(seconds=4)
            assert "0.5 acknowledged in a second" in await visitor.text(PAGE)
            assert f"s {ORDERS} active 1" in await visitor.text("/subscriptions")
        await world.clock.settle()
        assert f"s {ORDERS} no consumer 0" in await visitor.text("/subscriptions")


async def test_subscription_is_paused_for_a_time_and_resumed(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14, B17: delivery stops, and goes on by itself or at once. The log says who, and why."""
    async with testing.start() as world:
        root = await begin(world)
        async with connected(world, root) as broker, visiting(world, root.text) as visitor:
            await broker.admin("subscriptions.create", **NAMED)
            producer = await broker.producer("orders")
            async with broker.consumer("orders", "s") as inbox:
                text = await does(visitor, "pause", duration="30m", reason="ticket 4711")
                assert "Delivery is paused for 30m." in text
                assert "in 30 min" in text
                (row,) = (await broker.admin("audit.list", count=1))["actions"]
                assert (row["verb"], row["role"]) == ("dispatch.pause", "root")
                assert row["reason"] == "ticket 4711"
                assert f"s {ORDERS} paused" in await visitor.text("/subscriptions")
                await producer.send(b"")
                await world.clock.advance(minutes=29)
                assert await arrived(inbox) == []
                await world.clock.advance(minutes=1)
                assert await inbox.ack(await arrived(inbox), durable=True) == 1
                assert "Delivery is paused" not in await visitor.text(PAGE)
                assert "until you resume it" in await does(visitor, "pause")
                await producer.send(b"")
                await world.clock.advance(hours=10)
                assert await arrived(inbox) == []
                assert "paused until it is resumed" in await visitor.text(PAGE)
                assert "Delivery goes on." in await does(visitor, "resume")
                assert len(await arrived(inbox)) == 1


async def test_subscription_moves_to_where_the_user_says(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: a time in the zone of the browser, an offset, the earliest message, or now."""
    async with testing.start() as world, world.connect() as broker, visiting(world) as visitor:
        visitor.http.cookies.set(ZONE_COOKIE, ZONE)
        await broker.admin("subscriptions.create", **NAMED)
        producer = await broker.producer("orders")
        async with broker.consumer("orders", "s") as inbox:

            async def sought(**fields: str) -> list[int]:
                text = await does(visitor, "seek", confirmed="yes", reason="again", **fields)
                assert "The subscription continues from" in text
                messages = await arrived(inbox)
                await inbox.ack(messages)
                return [message.offset for message in messages]

            for _ in range(4):
                await producer.send(b"")
                await world.clock.advance(hours=1)
            await inbox.ack(await arrived(inbox))
            unsure = await visitor.send("/subscription/seek", NAMED | {"to": "earliest"})
            assert (unsure.status_code, "Tick the box" in unsure.text) == (400, True)
            assert await arrived(inbox) == []
            assert await sought(to="earliest") == [0, 1, 2, 3]
            assert await sought(to="offset", value="3") == [3]
            assert await sought(to="latest") == []
            # 90 minutes ago, on the clock of the browser.
            ago = moment(world.clock.now_ms()).astimezone(ZoneInfo(ZONE)) - timedelta(minutes=90)
            assert await sought(to="time", value=f"{ago:%Y-%m-%d %H:%M}") == [3]


async def test_lateness_has_the_worst_first_and_names_missed_targets(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: p50, p99 and the most, by subscription and by minute."""
    async with testing.start() as world, world.connect() as broker, visiting(world) as visitor:
        for topic, late_ms in (("good", 40), ("bad", 3_000)):
            await broker.admin("subscriptions.create", topic=topic, subscription="s")
            async with await broker.producer(topic) as producer:
                await producer.send_many([b""] * 2, delay=[timedelta(0), timedelta(minutes=1)])
            await world.clock.advance(ms=late_ms)
            async with broker.consumer(topic, "s") as inbox:
                await inbox.ack(await arrived(inbox))
                await world.clock.advance(minutes=1)
                await inbox.ack(await arrived(inbox))
        worst = await visitor.text("/lateness?target=1000")
        bad = "s public/default/bad 2 0 ms 3.0 s 3.0 s missed"
        good = "s public/default/good 2 0 ms 40 ms 40 ms kept"
        assert f"{bad} {good}" in worst
        ours = "topic=public/default/bad&subscription=s"
        minutes = await visitor.text(f"/lateness?{ours}&target=1000")
        assert "1 0 ms 0 ms 0 ms kept" in minutes
        assert "1 3.0 s 3.0 s 3.0 s missed" in minutes
        assert "missed" not in await visitor.text(f"/lateness?{ours}&target=4000")
        # The minute of the late delivery is longer ago than that.
        assert "3.0 s missed" not in await visitor.text(f"/lateness?{ours}&minutes=1")
