"""Message statuses read from the database match those of the broker."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
from trio.testing import MockClock

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.inspection import message_history
from escapement.names import TopicName
from escapement.pipeline.source.message_status import NO_COUNT, STATES, MessageStatuses
from escapement.storage.engine.base import Engine
from escapement.storage.state.topic_state import TopicState
from escapement.testing import World, arrived
from support.storage.topic_states import read_topic

TOPIC = TopicName("public", "default", "t")
HOUR = timedelta(hours=1)


async def test_message_statuses_match_those_of_the_broker(
    mock_clock: MockClock, engine: Engine
) -> None:
    """B7, Q2: for each kind of subscription, different start offsets, and the whole topic."""
    config = BrokerConfig(ack_wait_ms=10**9, seed=0)
    async with testing.start(config=config, engine=engine) as world, world.connect() as broker:
        producer = await broker.producer("t")
        await producer.send_many([b"unwanted"] * 5)
        await broker.cancel([0], topic="t")
        found = agree(world, engine)
        for name, kind in (("s", "shared"), ("x", "exclusive")):
            await broker.admin("subscriptions.create", topic="t", subscription=name, kind=kind)
        await producer.send_many([b"now"] * 20)
        await producer.send_many([b"then"] * 20, delay=HOUR)
        await consume(broker, "s", "shared", range(5, 11), range(11, 14))
        await world.checkpoint()
        await broker.admin("subscriptions.create", topic="t", subscription="late")
        await producer.send_many([b"soon"] * 20, delay=2 * HOUR)
        await broker.cancel(np.arange(30, 36), topic="t")
        await broker.reschedule(np.arange(34, 45), topic="t", delay=3 * HOUR)
        found |= agree(world, engine)
        await consume(broker, "x", "exclusive", range(5, 20), range(20, 23))
        found |= agree(world, engine)
        await world.clock.advance(hours=1, minutes=1)
        for name, kind in (("s", "shared"), ("late", "shared")):
            await consume(broker, name, kind, range(20, 30), range(0))
        found |= agree(world, engine)
        await broker.admin("topics.update", topic="t", policy={"ttl_ms": "1m"})
        await producer.send_many([b"short"] * 3)
        await world.clock.advance(minutes=2)
        found |= agree(world, engine)
        await world.checkpoint()
        assert agree(world, engine) <= found
    # Every state has occurred.
    assert {state for _, state in found} == set(STATES)


def agree(world: World, engine: Engine) -> set[tuple[str, str]]:
    """Check that database and broker agree, and return the states by subscription and topic."""
    now_ms = world.clock.now_ms()
    state = read(engine)
    state.read_at_ms = now_ms
    topic = world.server.services.registry.active[state.record.id]
    offsets = np.arange(state.end_offset)
    due_ms = due_of(engine, state, offsets)
    told = set()
    statuses = {
        one.record.name: [
            message_history.status(topic, one, int(due), int(offset), now_ms)
            for due, offset in zip(due_ms, offsets, strict=True)
        ]
        for one in topic.subscriptions()
    }
    for name, theirs in statuses.items():
        codes, counts = MessageStatuses.of(state, name, 0, state.end_offset).codes_and_counts(
            due_ms, offsets
        )
        for one, code, count in zip(theirs, codes.tolist(), counts.tolist(), strict=True):
            assert STATES[code] == known(one)
            assert (None if count == NO_COUNT else count) == one.attempts
            told.add((name, STATES[code]))
    codes, _ = MessageStatuses.of(state, None, 0, state.end_offset).codes_and_counts(
        due_ms, offsets
    )
    for offset, code in enumerate(codes.tolist()):
        each = [theirs[offset] for theirs in statuses.values()]
        assert STATES[code] == message_history._state(
            topic, each, int(due_ms[offset]), offset, now_ms
        )
        told.add(("", STATES[code]))
    return told


def known(one: message_history.SubscriptionStatus) -> str:
    """Return the state as the database knows it, which excludes in-flight messages."""
    if one.state in ("ready", "in flight", "in retry", "waiting"):
        return "in retry" if one.attempts else "waiting"
    return one.state


def read(engine: Engine) -> TopicState:
    connection = engine.connect()
    try:
        return read_topic(engine, connection, TOPIC)
    finally:
        connection.close()


def due_of(engine: Engine, state: TopicState, offsets: np.ndarray) -> np.ndarray:
    """Return the current due time of each message."""
    connection = engine.connect()
    try:
        rows, _ = state.log.read_due(connection, state.record.id, 0, state.end_offset, 0, 1 << 30)
    finally:
        connection.close()
    return state.moves.current(offsets, np.concatenate([row.content.due_ms for row in rows]))


async def consume(
    broker: escapement.Broker, name: str, kind: str, acked: range, nacked: range
) -> None:
    """Acknowledge some of the delivered messages, nack others and leave the rest."""
    async with broker.consumer("t", name, kind=kind, permits=25) as consumer:
        there = {message.offset for message in await arrived(consumer)}
        await consumer.ack(sorted(there & set(acked)), durable=True)
        if there & set(nacked):
            await consumer.nack(sorted(there & set(nacked)), delay=HOUR)
