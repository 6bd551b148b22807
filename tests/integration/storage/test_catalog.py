"""The catalog of namespaces, topics, subscriptions and producers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from escapement.errors import AlreadyExists, Conflict, NotFound
from escapement.message import Blobs, MessageBatch
from escapement.storage import lease
from escapement.storage.catalog import catalog, producers
from escapement.storage.catalog.catalog import Beginning
from escapement.storage.catalog.policy import SubscriptionPolicy, TopicPolicy
from escapement.storage.cleanup import freeing
from escapement.storage.encoding.attempts import AttemptTable
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.lease import Identity
from escapement.storage.log.log import Log
from escapement.storage.log.log_row import encode_row
from escapement.storage.log.log_table import NewRow, insertion
from escapement.storage.state import checkpoint
from escapement.storage.state.checkpoint import AttemptPart, Checkpoint, ChunkRow
from escapement.storage.state.state import load_state
from support.storage.commit_pipelines import HandClock, enter


def part(subscription_id: int) -> AttemptPart:
    one = np.ones(1, np.int64)
    return AttemptPart(subscription_id, 0, AttemptTable(one, one, one, one))


def test_created_records_are_loaded_by_the_next_start(connection: Connection) -> None:
    namespace = catalog.create_namespace(connection, "shop", "eu", 5, tick_ms=10)
    topics = [catalog.create_topic(connection, namespace.id, f"t{n}", n) for n in range(3)]
    subscription = catalog.create_subscription(
        connection, topics[1].id, "billing", "shared", 7, Beginning(3, fill_until=9)
    )
    producer = producers.open_producer(connection, 1, topics[0].id, "p", 4)
    state = load_state(connection)
    assert state.namespaces == [namespace]
    assert state.topics == topics
    assert state.subscriptions == [subscription]
    assert state.producers == [producer]
    assert (namespace.delays_enabled, namespace.granularity_ms) == (True, 300_000)


def test_names_are_unique_and_compared_byte_for_byte(connection: Connection) -> None:
    namespace = catalog.create_namespace(connection, "shop", "eu", 0)
    catalog.create_namespace(connection, "Shop", "eu", 0)
    with pytest.raises(AlreadyExists, match="shop/eu"):
        catalog.create_namespace(connection, "shop", "eu", 0)
    topic = catalog.create_topic(connection, namespace.id, "orders", 0)
    catalog.create_topic(connection, namespace.id, "Orders", 0)
    with pytest.raises(AlreadyExists, match="orders"):
        catalog.create_topic(connection, namespace.id, "orders", 0)
    catalog.create_subscription(connection, topic.id, "s", "shared", 0)
    with pytest.raises(AlreadyExists, match="subscription s"):
        catalog.create_subscription(connection, topic.id, "s", "failover", 0)


def test_updates_are_stored(connection: Connection) -> None:
    namespace = catalog.create_namespace(connection, "shop", "eu", 0)
    changed = replace(namespace, delays_enabled=False, granularity_ms=60_000, tick_ms=5)
    catalog.update_namespace(connection, changed)
    catalog.update_namespace(connection, changed)  # repeating an update is allowed
    topic = catalog.create_topic(connection, namespace.id, "orders", 0)
    subscription = catalog.create_subscription(connection, topic.id, "s", "exclusive", 0)
    patient = replace(subscription, policy=subscription.policy.updated({"ack_wait_ms": "1h"}))
    catalog.update_subscription(connection, patient)
    newer = replace(topic, policy=TopicPolicy(unknown={"colour": "red"}))
    catalog.update_topic(connection, newer)
    state = load_state(connection)
    assert state.namespaces == [changed]
    assert state.topics == [newer]
    assert state.subscriptions == [patient]


def test_missing_records_cannot_be_updated_or_deleted(connection: Connection) -> None:
    namespace = catalog.create_namespace(connection, "shop", "eu", 0)
    catalog.delete_namespace(connection, namespace)
    for change in (catalog.update_namespace, catalog.delete_namespace):
        with pytest.raises(NotFound):
            change(connection, namespace)
    for delete in (catalog.delete_topic, catalog.delete_subscription):
        with pytest.raises(NotFound):
            delete(connection, 99)


def test_namespace_with_topics_cannot_be_deleted(connection: Connection) -> None:
    namespace = catalog.create_namespace(connection, "shop", "eu", 0)
    topic = catalog.create_topic(connection, namespace.id, "orders", 0)
    with pytest.raises(Conflict, match="delete them first"):
        catalog.delete_namespace(connection, namespace)
    catalog.delete_topic(connection, topic.id)
    catalog.delete_namespace(connection, namespace)


def test_topic_id_is_never_reused(connection: Connection) -> None:
    namespace = catalog.create_namespace(connection, "shop", "eu", 0)
    first = catalog.create_topic(connection, namespace.id, "orders", 0)
    catalog.delete_topic(connection, first.id)
    assert catalog.create_topic(connection, namespace.id, "orders", 0).id > first.id


def test_reopening_a_producer_fences_the_previous_one(connection: Connection) -> None:
    namespace = catalog.create_namespace(connection, "shop", "eu", 0)
    one, other = (catalog.create_topic(connection, namespace.id, name, 0) for name in "ab")
    first = producers.open_producer(connection, 1, one.id, "p", 10)
    assert (first.epoch, first.last_sequence, first.last_offset) == (1, -1, -1)
    connection.execute(
        "UPDATE producers SET last_sequence = 7, last_offset = 70 WHERE id = ?", (first.id,)
    )
    second = producers.open_producer(connection, 2, one.id, "p", 20)
    assert second == replace(first, epoch=2, last_sequence=7, last_offset=70, updated_at_ms=20)
    assert producers.open_producer(connection, 2, other.id, "p", 20).id != first.id


def test_producer_cannot_be_opened_on_a_deleted_topic(connection: Connection) -> None:
    """Q7: the rows of the topic may be freed already, so nothing would delete this producer."""
    namespace = catalog.create_namespace(connection, "shop", "eu", 0)
    topic = catalog.create_topic(connection, namespace.id, "orders", 0)
    catalog.delete_topic(connection, topic.id)
    while freeing.free_step(connection, []):
        pass
    with pytest.raises(NotFound):
        producers.open_producer(connection, 1, topic.id, "late", 0)
    assert list(producers.read_producers(connection)) == []


def test_idle_producers_are_found_in_steps_and_deleted(connection: Connection) -> None:
    namespace = catalog.create_namespace(connection, "shop", "eu", 0)
    topic = catalog.create_topic(connection, namespace.id, "orders", 0)
    connection.begin()
    opened = [
        producers.open_producer(connection, n + 1, topic.id, f"p{n}", n % 2) for n in range(1500)
    ]
    connection.commit()
    found: dict[int, int] = {}
    after = steps = 0
    while True:
        idle, after = producers.read_idle(connection, 1, after)
        found |= idle
        steps += 1
        if not after:
            break
    assert steps == 2
    assert found == {p.id: p.last_sequence for p in opened if p.updated_at_ms == 0}
    connection.begin()
    producers.forget(connection, list(found), 1)
    producers.forget(connection, [], 1)
    connection.commit()
    assert [p.id for p in producers.read_producers(connection)] == [
        p.id for p in opened if p.updated_at_ms == 1
    ]


def test_replaced_subscription_keeps_only_its_name_and_settings(
    engine: Engine, connection: Connection
) -> None:
    """N3: a seek replaces the old record with a new one in one transaction."""
    held = lease.acquire(engine, Identity("a", "a"), 60_000, HandClock())
    log = Log.open(engine, connection, held, 2, 0)
    namespace = catalog.create_namespace(connection, "shop", "eu", 0)
    topic = catalog.create_topic(connection, namespace.id, "t", 0)
    policy = SubscriptionPolicy(ack_wait_ms=7_000)
    old = catalog.create_subscription(
        connection, topic.id, "s", "failover", 1, Beginning(50), policy=policy
    )
    begin = Beginning(start_offset=3, start_due_ms=5, fill_from=1, fill_until=2)
    chunks = [ChunkRow(old.id, 0, b"bits")]
    checkpoint.write(engine, connection, held, Checkpoint(chunks=chunks, attempts=[part(old.id)]))
    connection.begin()
    new = catalog.replace_subscription(connection, old, 9, begin)
    connection.rollback()
    assert load_state(connection).subscriptions == [old]
    connection.begin()
    new = catalog.replace_subscription(connection, old, 9, begin)
    connection.commit()
    assert new.id > old.id
    assert new == replace(old, id=new.id, created_at_ms=9, **begin._asdict())
    while freeing.free_step(connection, log.generations):
        pass
    state = load_state(connection)
    assert (state.subscriptions, state.chunks, state.attempts) == ([new], {}, {})
    connection.begin()
    with pytest.raises(NotFound):
        catalog.replace_subscription(connection, old, 9, Beginning())
    connection.rollback()


def test_a_deleted_topic_leaves_nothing_behind(engine: Engine, connection: Connection) -> None:
    """Rows are freed in bounded steps, in all generations. Other topics keep their rows."""
    held = lease.acquire(engine, Identity("a", "a"), 60_000, HandClock())
    log = Log.open(engine, connection, held, 2, 0)
    namespace = catalog.create_namespace(connection, "shop", "eu", 0)
    topics = [catalog.create_topic(connection, namespace.id, f"t{n}", 0) for n in range(4)]
    subscriptions = [
        catalog.create_subscription(connection, topic.id, "s", "shared", 0) for topic in topics
    ]
    body = MessageBatch(Blobs.of([b"x"])).encode()
    data = encode_row(0, np.zeros(1, np.int64), [body])
    for low in (0, 100):
        connection.begin()
        for number, topic in enumerate(topics, 1):
            rows = [
                NewRow(log.current, topic.id, base, 1, 0, 0, 0, data)
                for base in range(low, low + 100)
            ]
            enter(connection, *insertion(rows, 1))
            producers.open_producer(connection, number, topic.id, "p", 0)
        connection.commit()
        log.begin(*log.prepare(engine, connection, held, 2, 0))
    chunks = [ChunkRow(s.id, n, b"bits") for s in subscriptions for n in range(100)]
    checkpoint.write(
        engine,
        connection,
        held,
        Checkpoint(chunks=chunks, attempts=[part(s.id) for s in subscriptions]),
    )
    assert not freeing.free_step(connection, log.generations)
    connection.begin()
    catalog.delete_topic(connection, topics[0].id)
    catalog.delete_subscription(connection, subscriptions[1].id)
    connection.commit()
    steps = 0
    while freeing.free_step(connection, log.generations):
        steps += 1
    assert steps > 8
    state = load_state(connection)
    assert state.topics == topics[1:]
    assert state.subscriptions == subscriptions[2:]
    assert list(state.chunks) == list(state.attempts) == [s.id for s in subscriptions[2:]]
    assert {p.topic_id for p in state.producers} == {t.id for t in topics[1:]}
    rows = [row.key.topic_id for step in log.scan(connection, 10_000) for row in step]
    assert sorted(rows) == sorted([t.id for t in topics[1:]] * 200)
