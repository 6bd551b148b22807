"""The page Find: messages by topic, key, properties, time and state."""

from __future__ import annotations

import random
import re
from datetime import timedelta
from html import unescape
from urllib.parse import urlencode

import httpx
import pytest
import trio.testing

import escapement
from escapement import testing
from escapement.console.finding import log, topics
from escapement.console.finding.page import PAGE_MESSAGES
from escapement.storage.engine.base import Engine
from escapement.testing import arrived
from escapement.testing.clock import START_MS
from support.console.visitor import Visitor, text_of, visiting

HOUR_MS = 3_600_000
_ROW = re.compile(r'<a class="id" href="/messages/([^"]+)"')
_MORE = re.compile(r'hx-get="([^"]+)"')


def ids(answer: httpx.Response) -> list[str]:
    """Return the ids of the messages that a page lists."""
    assert answer.status_code == 200, text_of(answer)
    return _ROW.findall(answer.text)


async def found(visitor: Visitor, **query: str | list[str]) -> list[str]:
    """Return the ids of the messages that a filter finds, with all of its pages."""
    answer = await visitor.get("/find?" + urlencode(query, doseq=True))
    seen = ids(answer)
    while more := _MORE.search(answer.text):
        answer = await visitor.get(unescape(more[1]), part=True)
        page = ids(answer)
        assert len(page) <= PAGE_MESSAGES
        seen += page
    return seen


async def publish(broker: escapement.Broker, topic: str, delays_h: list[float]) -> None:
    """Publish messages with keys k0, k1, k0 and so on, and their numbers as a property."""
    producer = await broker.producer(topic)
    await producer.send_many(
        [b""] * len(delays_h),
        delay=[timedelta(hours=one) for one in delays_h],
        keys=[f"k{n % 2}" for n in range(len(delays_h))],
        properties=[{"n": n, "shop": "berlin"} for n in range(len(delays_h))],
    )


async def test_filter_finds_messages_by_topic_content_and_time(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """B14: each condition of the address narrows the list, and all of them must be true."""
    async with testing.start(engine=engine) as world, world.connect() as broker:
        await broker.admin("namespaces.create", namespace="shop/eu")
        await publish(broker, "shop/eu/orders", [1, 2, 3, 4])
        await publish(broker, "shop/eu/mails", [2.5])
        async with visiting(world) as visitor:
            assert await found(visitor, where="shop/eu") == [
                "shop/eu/orders@0", "shop/eu/orders@1", "shop/eu/mails@0", "shop/eu/orders@2",
                "shop/eu/orders@3",
            ]  # fmt: skip
            one = {"where": "shop/eu/orders"}
            assert await found(visitor, **one, key="k1") == [
                "shop/eu/orders@1",
                "shop/eu/orders@3",
            ]
            both = {"property": ["n=2", "shop=berlin"]}
            assert await found(visitor, **one, **both) == ["shop/eu/orders@2"]
            assert await found(visitor, **one, **both, key="k1") == []
            span = {"from": str(START_MS + 2 * HOUR_MS), "until": str(START_MS + 4 * HOUR_MS)}
            assert await found(visitor, **one, **span) == ["shop/eu/orders@1", "shop/eu/orders@2"]
            text = await visitor.text("/find?where=shop/eu/orders&count=true&key=k1")
            assert "2 messages match." in text


async def test_box_at_the_top_goes_to_what_it_names(mock_clock: trio.testing.MockClock) -> None:
    """B14: an id, a topic, a part of its name, or a topic and a key."""
    async with testing.start() as world, world.connect() as broker:
        await publish(broker, "orders", [1])
        async with visiting(world) as visitor:

            async def target(text: str, **others: str) -> str:
                answer = await visitor.get("/find?" + urlencode({"q": text, **others}))
                assert answer.status_code == 303
                return answer.headers["location"]

            assert await target("orders@0") == "/messages/public/default/orders@0"
            assert await target("orders") == "/find?where=orders"
            assert await target("orders k 1") == "/find?where=orders&key=k+1"
            assert await target("k0", where="orders") == "/find?where=orders&key=k0"
            assert ids(await visitor.get("/find?where=orders")) == ["public/default/orders@0"]
            # Times of a form are in the zone of the browser; the address has them for everyone.
            visitor.http.cookies.set("escapement_zone", "Europe/Berlin")
            answer = await visitor.get("/find?where=orders&until=2026-12-24T14:00")
            assert answer.headers["location"] == f"/find?where=orders&until={START_MS + HOUR_MS}"


async def test_pages_over_several_topics_have_each_message_once(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: messages of all topics are in one list, next due first."""
    async with testing.start() as world, world.connect() as broker:
        chance = random.Random(7)
        expected = []
        for topic in ("one", "three", "two"):
            delays = [float(chance.randint(1, 20)) for _ in range(70)]
            await publish(broker, topic, delays)
            full = f"public/default/{topic}"
            expected += [(delay, full, n, f"{full}@{n}") for n, delay in enumerate(delays)]
        async with visiting(world) as visitor:
            assert await found(visitor) == [id for *_, id in sorted(expected)]


async def test_messages_are_found_by_their_state(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """B14: the console looks at each message for states that no index has."""
    async with testing.start(engine=engine) as world, world.connect() as broker:
        policy = {"jitter": 0, "min_backoff_ms": 30 * 60_000, "max_backoff_ms": HOUR_MS}
        await broker.admin("subscriptions.create", topic="orders", subscription="s", policy=policy)
        producer = await broker.producer("orders")
        async with broker.consumer("orders", "s", name="till", permits=100) as inbox:
            await producer.send_many([b"lapses", b"cancelled", b"later"], delay=["1h", "2h", "9h"])
            await broker.cancel([1], topic="orders")
            await broker.pause("orders", "s")
            await broker.admin("topics.update", topic="orders", policy={"ttl_ms": 60_000})
            await world.clock.advance(hours=1, minutes=2)
            await broker.resume("orders", "s")
            await producer.send_many([b"acked", b"fails", b"held"])
            acked, fails, _ = await arrived(inbox)
            await inbox.ack([acked])
            await inbox.nack([fails])
            await world.clock.settle()
            async with visiting(world) as visitor:
                offsets = {
                    "lapsed": [0], "cancelled": [1], "not-yet-due": [2], "acknowledged": [3],
                    "in-retry": [4], "in-flight": [5], "overdue": [4, 5], "pending": [4, 5, 2],
                }  # fmt: skip
                for state, expected in offsets.items():
                    shown = await found(visitor, where="orders", state=state)
                    assert shown == [f"public/default/orders@{n}" for n in expected], (state, shown)
                # Messages that were published an hour ago: the two first ones.
                early = {"where": "orders", "published": str(START_MS + HOUR_MS)}
                assert await found(visitor, **early, state="acknowledged") == []
                assert len(await found(visitor, **early, state="lapsed")) == 1


async def test_search_of_the_log_is_bounded_and_goes_on(
    mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B14: a page ends after a number of messages, which it shows. The next one begins there."""
    monkeypatch.setattr(log, "_MOST_READ", 60)
    monkeypatch.setattr(log, "_STEP", 20)
    async with testing.start() as world, world.connect() as broker:
        await publish(broker, "orders", [1 + n for n in range(150)])
        await broker.admin("subscriptions.create", topic="orders", subscription="s")
        await broker.cancel([3, 77, 140], topic="orders")
        async with visiting(world) as visitor:
            query = {"where": "orders", "state": "cancelled"}
            first = await visitor.get("/find?" + urlencode(query))
            assert ids(first) == ["public/default/orders@140"]
            assert "looked at 60 messages" in text_of(first)
            everything = [f"public/default/orders@{n}" for n in (140, 77, 3)]
            assert await found(visitor, **query) == everything
            assert await found(visitor, **query, key="k1") == everything[1:]
            assert await found(visitor, **query, property="n=3") == everything[2:]


async def test_many_topics_are_listed_to_choose_from(mock_clock: trio.testing.MockClock) -> None:
    """B14: a search without a topic does not ask thousands of topics."""
    async with testing.start() as world, world.connect() as broker:
        names = [f"t{n:04}" for n in range(topics.MOST_LISTED + 50)]
        await broker.admin("topics.create_many", topics=names)
        async with visiting(world) as visitor:
            text = await visitor.text("/find?key=k0")
            assert "250 topics are too many to search at once" in text
            assert "the first 200 of 250" in text
            page = (await visitor.get("/find?where=T000&key=k0")).text
            assert "No message matches." in page
            page = (await visitor.get("/find?where=t00&state=cancelled")).text
            assert 'href="/find?state=cancelled&amp;where=public%2Fdefault%2Ft0007"' in page
            assert "There is no topic whose name contains “x/y/z”" in text_of(
                await visitor.get("/find?where=x/y/z")
            )
