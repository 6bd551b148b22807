"""The page of one message."""

from __future__ import annotations

import json

import pytest
import trio.testing

from escapement import FollowUp, testing
from escapement.console.config import ConsoleConfig
from escapement.console.pages.message import MOST_SHOWN_BYTES
from escapement.errors import InvalidRequest
from escapement.testing import arrived
from support.console.visitor import text_of, visiting
from support.roles import begin, connected, new_token

ORDERS = "public/default/orders"


async def test_message_is_shown_with_its_state_in_each_subscription(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: each state has its time, its cause and its lateness."""
    async with testing.start() as world, world.connect() as broker:
        for subscription in ("billing", "mails"):
            await broker.admin("subscriptions.create", topic="orders", subscription=subscription)
        producer = await broker.producer("orders")
        await producer.send(b'{"items": [{"sku": "A1"}]}', delay="1h", key="k", priority=7)
        async with visiting(world) as visitor:
            page = f"/messages/{ORDERS}@0"
            text = await visitor.text(page)
            assert "not yet due" in text
            assert "1 item" in text
            assert '"A1"' in text
            # Nobody listens for two seconds after the due time.
            await world.clock.advance(hours=1, seconds=2)
            async with broker.consumer("orders", "billing", name="till-3", ack_wait="5m") as inbox:
                (message,) = await arrived(inbox)
                text = await visitor.text(page)
                assert "delivered 2.0 s after the due time" in text
                assert "till-3 holds it." in text
                assert "in 5 min" in text
                assert "2.0 s overdue" in text  # for the subscription without a consumer
                await inbox.ack([message])
                await world.clock.settle()
                text = await visitor.text(page)
                assert "billing shared acknowledged not kept – not kept" in text
                assert "A consumer acknowledged it." in text
                assert "The broker keeps neither which nor when." in text


async def test_message_that_became_a_dead_letter_says_when_why_and_where_it_is(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: of each subscription, until the dead letter is gone."""
    async with testing.start() as world, world.connect() as broker:
        policy = {"max_deliveries": 1, "expired_to_dead_letter": True}
        for subscription in ("billing", "mails"):
            names = {"topic": "orders", "subscription": subscription}
            await broker.admin("subscriptions.create", **names, policy=policy)
        producer = await broker.producer("orders")
        await producer.send(b"", key="order-7")
        page, dead = f"/messages/{ORDERS}@0", f"/dead-letters/{ORDERS}/billing/0"
        async with visiting(world) as visitor:
            async with broker.consumer("orders", "billing") as inbox:
                (message,) = await arrived(inbox)
                await message.reject("no such customer")
                await world.clock.advance(seconds=5)
            text = await visitor.text(page)
            assert "State due" in text  # for mails
            assert "billing shared dead letter 1 – Thu 24 Dec 2026 12:00:00 5.0 s ago" in text
            assert "Given up: a consumer rejected it: no such customer. Dead letter 0" in text
            assert f'href="{dead}"' in (await visitor.get(page)).text
            assert f'href="{page}"' in (await visitor.get(dead)).text
            of_letter = (await visitor.get(f"/messages/{ORDERS}-billing-DLQ@0")).text
            assert f'href="{dead}?in=' in of_letter
            ttl = {"ttl_ms": 60_000}
            await broker.admin("namespaces.update", namespace="public/default", policy=ttl)
            await world.clock.advance(minutes=5)
            text = await visitor.text(page)
            assert "State dead letter" in text
            assert "Given up: it expired. Dead letter 0" in text
            names = {"topic": "orders", "subscription": "billing"}
            assert await broker.admin("dlq.redrive", **names) == {"redriven": 1}
            await world.clock.settle()
            text = await visitor.text(page)
            assert "billing shared acknowledged not kept" in text
            assert "its dead letter was sent back or deleted" in text
            text = await visitor.text(f"/messages/{ORDERS}-billing-DLQ@0")
            assert "The dead letter was sent back or deleted." in text
            # An administrator finds who did that, and when.
            assert "audit log of the topic" in text
            audit = await visitor.text(f"/audit?object={ORDERS}")
            assert "dlq.redrive" in audit


async def test_dead_letter_links_to_its_original_message(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: the page of a dead letter says why its message was given up, and where it was."""
    async with testing.start() as world, world.connect() as broker:
        policy = {"max_deliveries": 1}
        await broker.admin("subscriptions.create", topic="orders", subscription="s", policy=policy)
        producer = await broker.producer("orders")
        await producer.send_many([b"fine", b"fails"], properties=[None, {"shop": "berlin"}])
        async with broker.consumer("orders", "s") as inbox:
            fine, fails = await arrived(inbox)
            await inbox.ack([fine])
            await inbox.nack([fails])
            await world.clock.advance(seconds=5)
        async with visiting(world) as visitor:
            page = f"/messages/{ORDERS}-s-DLQ@0"
            text = await visitor.text(page)
            assert "a consumer reported a failure at the last attempt" in text
            assert f'href="/messages/{ORDERS}@1"' in (await visitor.get(page)).text
            assert "shop berlin" in text
            # A publisher may set such properties too. The page ignores wrong ones.
            forged = {"dead_letter_topic": "a b", "dead_letter_offset": 1, "dead_letter_reason": ""}
            late = forged | {"dead_letter_topic": "orders", "dead_letter_died_at_ms": 10**18}
            await producer.send_many([b"", b""], properties=[forged, late])
            assert "Original message" not in await visitor.text(f"/messages/{ORDERS}@2")
            assert "Original message" in await visitor.text(f"/messages/{ORDERS}@3")


async def test_whole_payload_is_shown_or_downloaded(mock_clock: trio.testing.MockClock) -> None:
    """B14: a page has the first 512 bytes; it loads the rest if it is not too large to show."""
    async with testing.start() as world, world.connect() as broker:
        producer = await broker.producer("orders")
        long = json.dumps({"note": "x" * 2_000, "last": "end"}).encode()
        payloads = [long, bytes(range(256)) * (MOST_SHOWN_BYTES // 256 + 1), b"<b>bold</b>"]
        await producer.send_many(payloads)
        async with visiting(world) as visitor:
            page = f"/messages/{ORDERS}@"
            cut = await visitor.text(f"{page}0")
            assert "these are the first 512 B" in cut
            assert "end" not in cut
            assert '"end"' in await visitor.text(f"{page}0?whole=true")
            large = await visitor.text(f"{page}1?whole=true")
            assert "000000 00 01 02" in large
            assert "Show all of it" not in large
            assert "&lt;b&gt;bold&lt;/b&gt;" in (await visitor.get(f"{page}2")).text
            for offset, payload in enumerate(payloads):
                answer = await visitor.get(f"/payloads/{ORDERS}@{offset}")
                assert answer.content == payload
                assert answer.headers["content-type"] == "application/octet-stream"
                name = f'attachment; filename="orders-{offset}.bin"'
                assert answer.headers["content-disposition"] == name
            assert (await visitor.get(f"/payloads/{ORDERS}@3")).status_code == 404
            assert (await visitor.get(f"{page}3")).status_code == 404


async def test_message_with_a_trace_links_to_it(mock_clock: trio.testing.MockClock) -> None:
    """B14: the link goes to the operator's tool; other texts in this property get none."""
    async with testing.start() as world, world.connect() as broker:
        producer = await broker.producer("orders")
        trace_id = "0af7651916cd43dd8448eb211c80319c"
        texts = [f"00-{trace_id}-b7ad6b7169203331-01", "javascript:alert(1)", 7]
        await producer.send_many([b""] * 3, properties=[{"traceparent": one} for one in texts])
        url = "https://traces.example/{trace_id}?from=console"
        async with visiting(world, trace_url=url) as visitor:
            pages = [(await visitor.get(f"/messages/{ORDERS}@{n}")).text for n in range(3)]
            assert f'href="https://traces.example/{trace_id}?from=console"' in pages[0]
            assert ["traces.example" in page for page in pages] == [True, False, False]
    for wrong in ("javascript:{trace_id}", "https://traces.example/"):
        with pytest.raises(InvalidRequest, match="--trace-url"):
            ConsoleConfig("127.0.0.1", 0, trace_url=wrong).check(insecure=False)


async def test_viewer_sees_no_payload_and_no_action(mock_clock: trio.testing.MockClock) -> None:
    """B14: a role that may only look gets neither the payload nor a button, nor can it act."""
    async with testing.start() as world:
        root = await begin(world)
        async with connected(world, root) as broker:
            token = await new_token(broker, "vic")
            await broker.admin("grants.add", role="vic", pattern="*", actions=["peek"])
            producer = await broker.producer("orders")
            await producer.send(b"secret", delay="1h", key="k")
            async with visiting(world, token.text) as visitor:
                for path in (f"/messages/{ORDERS}@0", "/find?where=orders"):
                    page = (await visitor.get(path)).text
                    assert 'href="/find' in page
                    assert "secret" not in page
                    assert 'action="/act"' not in page
                    assert 'value="cancel"' not in page
                answer = await visitor.get(f"/payloads/{ORDERS}@0")
                assert (answer.status_code, "secret" in answer.text) == (403, False)
                sent = {"action": "cancel", "id": f"{ORDERS}@0", "sure": "true"}
                answer = await visitor.send("/act/now", sent)
                assert answer.status_code == 403, text_of(answer)
                assert (await broker.show(f"{ORDERS}@0")).state == "to_be_fired"


async def test_group_of_a_message_is_shown(mock_clock: trio.testing.MockClock) -> None:
    """B14: the page of a group has the number of messages left until its follow-up."""
    async with testing.start() as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="orders", subscription="s")
        producer = await broker.producer("orders")
        await producer.send_many([b"", b""], groups="day-1", delay="1h")
        await broker.groups.close("orders", "day-1", "s", FollowUp(b"", "done"))
        async with visiting(world) as visitor:
            link = f'href="/groups/{ORDERS}/day-1"'
            assert link in (await visitor.get(f"/messages/{ORDERS}@1")).text
            assert "s waiting 2" in await visitor.text(f"/groups/{ORDERS}/day-1")
            assert (await visitor.get(f"/groups/{ORDERS}/day-2")).status_code == 404
