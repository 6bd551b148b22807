"""The state of a topic, read from the database, matches that of the broker."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from trio.testing import MockClock

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.errors import NotFound, SchemaError
from escapement.names import TopicName
from escapement.pipeline.archiving.plan import accepted_before
from escapement.storage.engine.base import Engine
from escapement.storage.engine.sqlite import FILE_NAME, SqliteEngine
from escapement.storage.schema import migrate
from escapement.storage.state import topic_state
from escapement.storage.state.topic_state import TopicState, read_range, read_topics
from escapement.testing import World, arrived
from support.faults.dying_brokers import finish
from support.storage.commit_pipelines import FaultyEngine, no_fault
from support.storage.topic_states import read_topic

TOPIC = TopicName("public", "default", "t")
HOUR = timedelta(hours=1)


def state_of(engine: Engine) -> TopicState:
    connection = engine.connect()
    try:
        return read_topic(engine, connection, TOPIC)
    finally:
        connection.close()


def agree(world: World, engine: Engine, state: TopicState | None = None) -> None:
    """Check that the state read equals the state in the memory of the broker."""
    state = state_of(engine) if state is None else state
    topic = world.server.services.registry.active[state.record.id]
    assert state.end_offset == topic.next_offset
    end = state.end_offset
    cancelled, moves = topic.amendments.cancelled, topic.amendments.moves
    assert state.cancelled.to_array(0, end).tolist() == cancelled.to_array(0, end).tolist()
    offsets = moves.between(0, end)
    assert state.moves.between(0, end).tolist() == offsets.tolist()
    for column in ("bases", "contains"):
        ours, theirs = getattr(state.moves, column), getattr(moves, column)
        assert ours(offsets).tolist() == theirs(offsets).tolist()
    assert (
        state.moves.current(offsets, offsets).tolist() == moves.current(offsets, offsets).tolist()
    )
    for subscription in topic.subscriptions():
        read = state.subscription(subscription.record.name)
        acked = subscription.acked.to_array(0, end)
        assert read.acked.to_array(0, end).tolist() == acked.tolist()
        counts = [subscription.tries_of(offset)[0] for offset in read.tried.tolist()]
        assert read.counts.tolist() == counts


async def test_state_read_from_the_database_matches_the_broker(
    mock_clock: MockClock, engine: Engine
) -> None:
    """B7, V15: before, at and after a checkpoint, and after a crash."""
    config = BrokerConfig(ack_wait_ms=10**9, seed=0)
    async with testing.start(config=config, engine=engine) as world:
        async with world.connect() as broker:
            await use_topic(broker, "a", 0)
            agree(world, engine)
            await world.checkpoint()
            agree(world, engine)
            await use_topic(broker, "b", 40)
            agree(world, engine)
            read = state_of(engine)
            assert (read.subscription("a").counts > 0).any()
            assert len(read.subscription("b").acked)
            assert len(read.cancelled)
            assert not read.moves.empty
        await world.crash()
        before = state_of(engine)
        await world.restart()
        async with world.connect() as broker:
            await broker.admin("topics.get", topic="t")
            agree(world, engine)
        assert state_of(engine).subscription("a").counts.tolist() == (
            before.subscription("a").counts.tolist()
        )


async def test_topics_read_in_groups_have_the_same_states_as_alone(
    mock_clock: MockClock, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B7: states are returned in the requested order. One of the topics does not exist."""
    monkeypatch.setattr(topic_state, "_TOPICS_AT_ONCE", 2)
    names = [TopicName("public", "default", name) for name in "uvtxw"]
    async with testing.start(engine=engine) as world, world.connect() as broker:
        for topic in "tuv":
            await use_topic(broker, "a", 0, topic)
        await world.checkpoint()
        for topic in "vtw":
            await use_topic(broker, "b", 40 if topic != "w" else 0, topic)
        connection = engine.connect()
        states = list(read_topics(engine, connection, names))
        connection.close()
        for name, state in zip(names, states, strict=True):
            if name.name == "x":
                assert isinstance(state, NotFound)
                assert "public/default/x does not exist" in str(state)
            else:
                assert isinstance(state, TopicState)
                assert state.record.name == name.name
                agree(world, engine, state)


async def test_state_is_consistent_at_every_step_of_a_checkpoint(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    """B7: data that a checkpoint moves is found at its old or its new place."""
    real = SqliteEngine(tmp_path / FILE_NAME)
    engine = FaultyEngine(real)
    steps = 0

    async with testing.start(engine=engine) as world, world.connect() as broker:

        def look(step: str) -> None:
            nonlocal steps
            steps += 1
            agree(world, real)

        for name, first in (("a", 0), ("b", 40)):
            await use_topic(broker, name, first)
            engine.before = engine.after = look
            await world.checkpoint()
            engine.before = engine.after = no_fault
        assert steps > 20
    real.close()


def bounds_of(engine: Engine) -> tuple[int, int]:
    """Return the bounds from the whole state of the topic."""
    state = state_of(engine)
    return state.begin_offset, state.end_offset


def range_of(engine: Engine) -> tuple[int, int]:
    """Return the bounds from a few queries."""
    with closing(engine.connect()) as connection:
        _, end, begin = read_range(connection, TOPIC)
    return begin, end


def dates_of(engine: Engine) -> tuple[int, int]:
    """Return the bounds from the times at which messages were accepted."""
    with closing(engine.connect()) as connection:
        begin, end = (accepted_before(connection, 1, ms, 25) for ms in (0, 1 << 60))
    return begin, end


@pytest.mark.parametrize("engine", ["mysql"], indirect=True)
@pytest.mark.parametrize("look", [bounds_of, range_of, dates_of])
async def test_look_is_repeated_if_a_generation_is_dropped_meanwhile(
    mock_clock: MockClock, engine: Engine, look: Callable[[Engine], tuple[int, int]]
) -> None:
    """B7: the result is the state after the generation was dropped."""
    faulty = FaultyEngine(engine)
    async with testing.start(config=BrokerConfig(seed=0), engine=engine) as world:
        async with world.connect() as broker, await broker.producer("t") as producer:
            await producer.send_many([b"%d" % n for n in range(20)])
            await world.checkpoint()
            world.clock.set_back(-86_400_000)
            await finish(world, world.server.services.housekeeper.round)
            await producer.send_many([b"%d" % n for n in range(5)])
        dropped = 0

        def drop(step: str) -> None:
            nonlocal dropped
            if dropped or "FROM log_1_" not in step:
                return
            dropped = 1
            connection = engine.connect()
            parallelism = world.server.services.log.generations[0].parallelism
            for shard in range(parallelism):
                connection.execute(f"DROP TABLE log_1_{shard}")
            connection.execute("DELETE FROM generations WHERE id = 1")
            connection.close()

        faulty.before = drop
        assert look(faulty) == (20, 25)
        assert dropped


async def use_topic(broker: escapement.Broker, name: str, first: int, topic: str = "t") -> None:
    """Publish 40 messages, then cancel, reschedule, acknowledge and nack some of them."""
    await broker.admin("subscriptions.create", topic=topic, subscription=name)
    async with await broker.producer(topic) as producer:
        await producer.send_many([b"%d" % n for n in range(20)])
        await producer.send_many([b"%d" % n for n in range(20)], delay=HOUR)
    later = np.arange(first + 20, first + 40)
    await broker.cancel(later[:5], topic=topic)
    await broker.reschedule(later[3:12], topic=topic, delay=2 * HOUR)
    await broker.reschedule(later[8:14], topic=topic, delay=3 * HOUR)
    async with broker.consumer(topic, name, permits=1000) as consumer:
        messages = await arrived(consumer)
        await consumer.ack([message.offset for message in messages[:8]], durable=True)
        await consumer.nack([message.offset for message in messages[8:12]])


def test_missing_log_or_topic_is_an_error(engine: Engine) -> None:
    """B7."""
    with pytest.raises(SchemaError, match="no log in this database"):
        state_of(engine)
    migrate(engine)
    with pytest.raises(NotFound, match="public/default/t does not exist"):
        state_of(engine)
    connection = engine.connect()
    connection.execute("DELETE FROM schema_migrations WHERE version > 3")
    connection.close()
    with pytest.raises(SchemaError, match="has schema 3, this program needs"):
        state_of(engine)
