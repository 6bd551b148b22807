"""OpenTelemetry: spans of producers and consumers, and the context that messages carry (O5)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from trio.testing import MockClock, wait_all_tasks_blocked

import escapement
from escapement import FollowUp, Tracing, testing
from escapement.client.consuming.inbox import Inbox
from escapement.client.producing.producer import Producer
from escapement.errors import InvalidRequest, LimitExceeded
from escapement.message import Blobs, MessageBatch
from escapement.testing import World, arrived
from support.spans import Spans, ids_of, links_of, of

TOPIC: Final = "public/default/t"
SUBSCRIPTION: Final = "messaging.destination.subscription.name"


@asynccontextmanager
async def traced(
    spans: Spans, each_message: bool = False, **options: Any
) -> AsyncIterator[tuple[World, escapement.Broker]]:
    tracing = Tracing(spans.provider, each_message)
    async with testing.start() as world, world.connect(tracing=tracing, **options) as broker:
        await broker.admin("subscriptions.create", topic="t", subscription="s")
        yield world, broker


async def fail(message: escapement.Message) -> None:
    async with message:
        raise KeyError("the handler")


async def test_process_span_is_a_new_trace_with_a_link_to_the_send(mock_clock: MockClock) -> None:
    """O5: each attempt to process a message has one. Its context is current in the block."""
    spans = Spans()
    async with traced(spans, name="shop") as (world, broker):
        producer = await broker.producer("t")
        with spans.tracer.start_as_current_span("the request") as request:
            receipt = await producer.send(b"x", delay=(1, "h"), properties={"n": 1})
        send = spans.one("send")
        assert send.kind is SpanKind.PRODUCER
        assert send.parent == request.get_span_context()
        assert of(send) == {
            "messaging.system": "escapement",
            "messaging.destination.name": TOPIC,
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.client.id": "shop",
            "messaging.message.id": str(receipt.id),
        }
        await world.clock.advance(hours=1)
        async with broker.consumer("t", "s") as inbox:
            with pytest.raises(KeyError, match="the handler"):
                await fail(await anext(inbox))
            await world.clock.advance(seconds=45)
            async with await anext(inbox):
                within = trace.get_current_span()
        failed, done = spans.take("process")
        for attempt, span in enumerate((failed, done), 1):
            assert (span.kind, span.parent) == (SpanKind.CONSUMER, None)
            assert links_of(span) == [ids_of(send)]
            assert of(span)["messaging.escapement.attempt"] == attempt
            assert of(span)["messaging.message.id"] == str(receipt.id)
            assert of(span)[SUBSCRIPTION] == "s"
        assert len({ids_of(span)[0] for span in (send, failed, done)}) == 3
        assert within.get_span_context() == done.get_span_context()
        assert not failed.status.is_ok
        assert of(failed)["error.type"] == "KeyError"
        assert [event.name for event in failed.events] == ["exception"]
        assert done.status.is_ok
        assert trace.get_current_span() is trace.INVALID_SPAN
        assert [links_of(span) for span in spans.take("receive")] == [[ids_of(send)]] * 2


async def test_batch_has_one_span_for_each_operation(mock_clock: MockClock) -> None:
    """O5: one send, one receive with a link for each send, and one acknowledgement."""
    spans = Spans()
    async with traced(spans) as (_, broker):
        producer = await broker.producer("t")
        await producer.send_many([b"x"] * 1000, properties=[{"n": n} for n in range(1000)])
        await producer.send_batch(MessageBatch(Blobs.of([b"y"] * 500)))
        sends = spans.take("send")
        assert [span.kind for span in sends] == [SpanKind.PRODUCER] * 2
        counts = [of(span)["messaging.batch.message_count"] for span in sends]
        assert counts == [1000, 500]
        async with broker.consumer("t", "s", permits=2000) as inbox:
            left, number = 1500, 0
            while left:
                batch = await inbox.next_batch()
                assert batch is not None
                assert batch[0].properties["traceparent"]
                await batch.ack(durable=True)
                left -= len(batch)
                number += 1
        receives, acks = spans.take("receive"), spans.take("ack")
        assert len(receives) == len(acks) == number
        assert {span.kind for span in receives + acks} == {SpanKind.CLIENT}
        assert {of(s)["messaging.operation.type"] for s in acks} == {"settle"}
        for kind in (receives, acks):
            heights = [of(s)["messaging.batch.message_count"] for s in kind]
            assert sum(heights) == 1500
        assert {to for span in receives for to in links_of(span)} == set(map(ids_of, sends))
        assert max(len(span.links) for span in receives) <= 2


async def test_single_messages_of_a_delivery_share_a_receive_span(mock_clock: MockClock) -> None:
    """O5: with a link to each of the messages' sends. Acknowledging them has no spans."""
    spans = Spans()
    async with traced(spans) as (_, broker):
        async with broker.consumer("t", "s") as inbox:
            producer = await broker.producer("t")
            pending = [await producer.submit(b"x") for _ in range(20)]
            for one in pending:
                await one.wait()
            for message in await arrived(inbox):
                await message.ack()
    sends, receives = spans.take("send"), spans.take("receive")
    assert len(sends) == 20
    assert len(receives) < 20
    assert sorted(to for span in receives for to in links_of(span)) == sorted(map(ids_of, sends))
    assert spans.take("ack") == []


async def test_each_message_has_spans_if_the_application_wants_them(mock_clock: MockClock) -> None:
    """O5."""
    spans = Spans()
    async with traced(spans, each_message=True) as (_, broker):
        producer = await broker.producer("t")
        await producer.send_many([b"a", b"b", b"c"], properties=[None, {"n": 1}, None])
        async with broker.consumer("t", "s") as inbox:
            first, second, third = await arrived(inbox)
            assert second.properties["n"] == 1
            await first.ack()
            await inbox.ack(second, durable=True)
            await third.nack()
    creates, send = spans.take("create"), spans.one("send")
    assert {span.kind for span in creates} == {SpanKind.PRODUCER}
    assert send.kind is SpanKind.CLIENT
    assert links_of(send) == list(map(ids_of, creates))
    assert [links_of(span) for span in spans.take("receive")] == [[ids_of(one)] for one in creates]
    assert (len(spans.take("ack")), len(spans.take("nack"))) == (2, 1)


async def test_errors_are_recorded(mock_clock: MockClock) -> None:
    """O5: by their codes. Each call that failed has its span."""
    spans = Spans()
    async with traced(spans) as (_, broker):
        producer = await broker.producer("t")
        with pytest.raises(InvalidRequest):
            await producer.send(b"x", priority=1000)
        with pytest.raises(LimitExceeded):
            await producer.submit(b"x" * 20_000_000)
        with pytest.raises(LimitExceeded):
            await producer.send_many([b"x" * 20_000_000])
        await broker.admin("namespaces.disable_delayed_message", namespace="public/default")
        with pytest.raises(escapement.DelaysDisabled):
            await producer.send(b"x", delay=(1, "s"))
        async with broker.consumer("t", "s") as inbox:
            await broker.admin("topics.delete", topic="t", force=True)
            with pytest.raises(escapement.NotFound):
                await inbox.receive()
    sends = spans.take("send")
    assert [of(span)["error.type"] for span in sends] == [
        "invalid_request",
        "limit_exceeded",
        "limit_exceeded",
        "delays_disabled",
    ]
    assert of(spans.one("receive"))["error.type"] == "not_found"
    assert not any(span.status.is_ok for span in (*sends, spans.one("receive")))


async def test_context_travels_although_the_send_is_not_sampled(mock_clock: MockClock) -> None:
    """O5: the consumer links to it, and sees that it was not sampled."""
    unsampled, sampled = Spans(sampler=ALWAYS_OFF), Spans()
    async with traced(unsampled) as (world, broker):
        await (await broker.producer("t")).send_many([b"x"] * 3)
        async with (
            world.connect(tracing=Tracing(sampled.provider)) as other,
            other.consumer("t", "s") as inbox,
        ):
            async with await anext(inbox) as message:
                assert int(message.properties["traceparent"][-2:], 16) & 1 == 0
    (link,) = sampled.one("process").links
    assert not link.context.trace_flags.sampled
    assert unsampled.take("send") == []


async def test_context_of_the_application_stays_in_its_message(mock_clock: MockClock) -> None:
    """O5: the send is then a client span that links to it."""
    spans = Spans()
    own: dict[str, str] = {}
    with spans.tracer.start_as_current_span("created earlier") as created:
        TraceContextTextMapPropagator().inject(own)
    async with traced(spans) as (_, broker):
        producer = await broker.producer("t")
        await producer.send(b"x", properties=own)
        await producer.send_many([b"y", b"z"], properties=[own, None])
        async with broker.consumer("t", "s") as inbox:
            contexts = [message.properties["traceparent"] for message in await arrived(inbox)]
    single, batch = spans.take("send")
    assert (single.kind, batch.kind) == (SpanKind.CLIENT, SpanKind.PRODUCER)
    to = created.get_span_context()
    assert [links_of(span) for span in (single, batch)] == [[(to.trace_id, to.span_id)]] * 2
    assert contexts[:2] == [own["traceparent"]] * 2
    assert f"{ids_of(batch)[1]:016x}" in contexts[2]


async def test_dead_letter_and_its_redelivery_link_to_the_send(mock_clock: MockClock) -> None:
    """O5, V1."""
    spans = Spans()
    names = {"topic": "t", "subscription": "s"}
    async with traced(spans) as (world, broker):
        await broker.admin("subscriptions.update", **names, policy={"max_deliveries": 1})
        await (await broker.producer("t")).send(b"dead")
        async with broker.consumer("t", "s") as inbox:
            await (await anext(inbox)).nack()
            await wait_all_tasks_blocked()
            await world.clock.advance(seconds=10)
            async with broker.consumer("t-s-DLQ", "mine", position="earliest") as dead:
                async with await anext(dead):
                    pass
            await broker.admin("dlq.redrive", **names)
            await world.clock.advance(seconds=10)
            async with await anext(inbox):
                pass
    send = spans.one("send")
    assert [links_of(span) for span in spans.take("process")] == [[ids_of(send)]] * 2


async def test_schedules_and_follow_ups_carry_no_context_of_their_own(
    mock_clock: MockClock,
) -> None:
    """O5: closing a group twice must be the same request. An application may give a context."""
    spans = Spans()
    own = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    async with traced(spans) as (world, broker):
        with spans.tracer.start_as_current_span("the import"):
            await broker.schedules.create("tick", "t", every=(1, "m"))
            follow_up = FollowUp(b"done", "t", properties=own)
            for _ in range(2):
                await broker.groups.close("t", "g", "s", follow_up)
        await world.clock.advance(seconds=59)
        async with broker.consumer("t", "s") as inbox:
            async with await anext(inbox):
                pass
            await world.clock.advance(seconds=1)
            async with await anext(inbox) as message:
                assert message.properties["schedule"] == "public/default/tick"
    followed, occurred = spans.take("process")
    assert links_of(followed) == [(0xA * (16**32 - 1) // 15, 0xB * (16**16 - 1) // 15)]
    assert links_of(occurred) == []


async def test_client_without_a_provider_does_not_trace(mock_clock: MockClock) -> None:
    """O5: its producers and consumers are the plain classes, without any code of tracing."""
    for tracing in (None, Tracing(trace.NoOpTracerProvider())):
        async with testing.start() as world, world.connect(tracing=tracing) as broker:
            async with broker.consumer("t", "s") as inbox:
                producer = await broker.producer("t")
                await producer.send(b"x")
                assert (await anext(inbox)).properties == {}
                assert (type(producer), type(inbox)) == (Producer, Inbox)
