"""A checkpoint holds everything a start needs besides the log and the journal."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Final

import numpy as np
import pytest

from escapement.dedup import digests
from escapement.errors import LeaseLost, LogDamaged
from escapement.storage import lease
from escapement.storage.catalog import catalog, producers
from escapement.storage.encoding.attempts import AttemptTable, encode_attempts
from escapement.storage.encoding.dedup_keys import KeyTable, encode_keys
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.journal import journal
from escapement.storage.journal.entry import JournalEntry, encode_entry
from escapement.storage.journal.journal import JournalPosition
from escapement.storage.lease import Identity, Lease
from escapement.storage.log.log import Log
from escapement.storage.offsets import CHUNK_SIZE, FULL_CHUNKS, OffsetSet
from escapement.storage.state import checkpoint
from escapement.storage.state.checkpoint import (
    AttemptPart,
    Checkpoint,
    ChunkRow,
    KeyPart,
    ProducerRow,
    SubscriptionRow,
)
from escapement.storage.state.state import load_state
from support.storage.commit_pipelines import AtStep, Crash, FaultyEngine, HandClock, enter, no_fault

ONE: Final = np.ones(1, np.int64)
TABLE: Final = AttemptTable(ONE, ONE, ONE, ONE)
TRIES: Final = encode_attempts(TABLE)
KEYS: Final = KeyTable(digests(["a", "b"]), np.array([1, 2]), np.array([3, 3]))


def part(subscription_id: int, number: int) -> AttemptPart:
    return AttemptPart(subscription_id, number, TABLE)


@pytest.fixture
def held(engine: Engine, connection: Connection) -> Lease:
    return lease.acquire(engine, Identity("a", "a"), 60_000, HandClock())


def enter_empty(connection: Connection, position: JournalPosition) -> None:
    """Write the journal row of a group without changes."""
    enter(connection, journal.insertion(0, 0, position, 1, 0, encode_entry(JournalEntry())))


def test_checkpoint_is_loaded_as_written(
    engine: Engine, connection: Connection, held: Lease
) -> None:
    log = Log.open(engine, connection, held, 2, 0)
    namespace = catalog.create_namespace(connection, "shop", "eu", 0)
    topic = catalog.create_topic(connection, namespace.id, "t", 0)
    subscription = catalog.create_subscription(connection, topic.id, "s", "shared", 0)
    producer = producers.open_producer(connection, 1, topic.id, "p", 0)
    for seq in (1, 2, 3):
        enter_empty(connection, JournalPosition(seq, b"group--%d" % seq))
    log.wrote(77)
    checkpoint.write(
        engine,
        connection,
        held,
        Checkpoint(
            chunks=[ChunkRow(subscription.id, n, b"chunk%d" % n) for n in range(600)],
            attempts=[part(subscription.id, 0), part(subscription.id, 1)],
            next_offsets={topic.id: 500},
            producers=[ProducerRow(producer.id, 6, 66, 666)],
            subscriptions=[SubscriptionRow(subscription.id, 1, 2)],
            generation=log.current,
            trims={0: JournalPosition(2, b"group--2")},
        ),
    )
    state = load_state(connection)
    assert state.chunks == {subscription.id: [(n, b"chunk%d" % n) for n in range(600)]}
    assert state.attempts == {subscription.id: [(0, TRIES), (1, TRIES)]}
    assert state.topics == [replace(topic, next_offset=500)]
    assert state.subscriptions == [replace(subscription, fill_from=1, fill_until=2)]
    assert state.producers == [
        replace(producer, last_sequence=6, last_offset=66, updated_at_ms=666)
    ]
    assert state.trims == {0: JournalPosition(2, b"group--2")}
    assert state.journal_ends == {0: JournalPosition(3, b"group--3")}
    assert Log.open(engine, connection, held, 9, 0).current.size_bytes == 77
    assert [row.position.seq for row in journal.read(connection, 0)] == [3]


def test_checkpoint_is_refused_by_a_database_that_lost_its_group_commits(
    engine: Engine, connection: Connection, held: Lease
) -> None:
    """O9: it would hide that the log is older than the state."""
    enter_empty(connection, JournalPosition(1, b"group--1"))
    for lost in (JournalPosition(2, b"group--2"), JournalPosition(1, b"another!")):
        newer = Checkpoint(chunks=[ChunkRow(1, 0, b"newer")], trims={0: lost})
        with pytest.raises(LogDamaged, match=f"has lost group commit {lost.seq} of lane 0"):
            checkpoint.write(engine, connection, held, newer)
    state = load_state(connection)
    assert state.chunks == {}
    assert state.trims == {}


def test_empty_data_deletes_a_row_and_other_rows_stay(
    engine: Engine, connection: Connection, held: Lease
) -> None:
    chunks = [ChunkRow(s, n, b"old") for s in (1, 2) for n in (0, 1)]
    checkpoint.write(
        engine,
        connection,
        held,
        Checkpoint(
            chunks=chunks,
            attempts=[part(1, 0), part(2, 0), part(2, 7)],
            keys=[KeyPart(1, 0, KEYS), KeyPart(2, 0, KEYS), KeyPart(2, 3, KEYS)],
        ),
    )
    second = Checkpoint(
        chunks=[ChunkRow(1, 0, b""), ChunkRow(1, 1, b"new")],
        attempts=[part(2, 8)],
        attempts_from={2: 8},
        keys=[KeyPart(2, 4, KEYS)],
        keys_from={2: 3},
    )
    for _ in range(2):  # a checkpoint is repeated if the reply to COMMIT is lost
        checkpoint.write(engine, connection, held, second)
    state = load_state(connection)
    assert state.chunks == {1: [(1, b"new")], 2: [(0, b"old"), (1, b"old")]}
    assert state.attempts == {1: [(0, TRIES)], 2: [(8, TRIES)]}
    assert state.keys == {1: [(0, encode_keys(KEYS))], 2: [(n, encode_keys(KEYS)) for n in (3, 4)]}


def test_checkpoint_does_not_recreate_deleted_records(
    engine: Engine, connection: Connection, held: Lease
) -> None:
    checkpoint.write(
        engine,
        connection,
        held,
        Checkpoint(
            next_offsets={77: 5},
            producers=[ProducerRow(77, 1, 1, 1)],
            subscriptions=[SubscriptionRow(77, 1, 1)],
        ),
    )
    state = load_state(connection)
    assert (state.topics, state.producers, state.subscriptions) == ([], [], [])


def test_stale_owner_cannot_write_a_checkpoint(
    engine: Engine, connection: Connection, held: Lease
) -> None:
    """Invariant 8."""
    lease.acquire(engine, held.identity, 60_000, HandClock())
    with pytest.raises(LeaseLost):
        checkpoint.write(engine, connection, held, Checkpoint(chunks=[ChunkRow(1, 0, b"x")]))
    assert load_state(connection).chunks == {}


def test_a_large_checkpoint_is_written_in_short_transactions(
    engine: Engine, connection: Connection, held: Lease
) -> None:
    """Rows and bytes bound each transaction. The journal is trimmed last, so a crash is safe."""
    faulty = FaultyEngine(engine)
    through = faulty.connect()
    enter_empty(connection, JournalPosition(1, b"group--1"))
    large = Checkpoint(
        chunks=[ChunkRow(1, n, b"x" * 100_000) for n in range(100)],
        attempts=[part(id, 0) for id in range(2500)],
        trims={0: JournalPosition(1, b"group--1")},
    )
    commits: list[str] = []
    faulty.after = commits.append
    checkpoint.write(faulty, through, held, large)
    assert len(commits) == 3 + 3 + 1 - 1
    assert list(journal.read(connection, 0)) == []
    through.close()


def test_interrupted_checkpoint_leaves_the_journal_untrimmed(
    engine: Engine, connection: Connection, held: Lease
) -> None:
    faulty = FaultyEngine(engine)
    enter_empty(connection, JournalPosition(1, b"group--1"))
    whole = Checkpoint(
        attempts=[part(id, 0) for id in range(1, 2501)],
        trims={0: JournalPosition(1, b"group--1")},
    )
    for number in range(1, 100):
        crash = AtStep(number, Crash())
        through = faulty.connect()
        faulty.before = crash
        with contextlib.suppress(Crash):
            checkpoint.write(faulty, through, held, whole)
        faulty.before = no_fault
        through.close()
        state = load_state(connection)
        if state.trims:
            assert len(state.attempts) == 2500
        if crash.count < number:
            break
        assert len(list(journal.read(connection, 0))) == (not state.trims)
    assert number > 10


def test_chunk_that_became_full_survives_a_crash_at_any_checkpoint_step(
    engine: Engine, connection: Connection, held: Lease
) -> None:
    """P6: one transaction records that the chunk is full, another deletes the row of the chunk."""
    acked = OffsetSet()
    acked.add_range(0, CHUNK_SIZE - 1)
    before = [ChunkRow(1, no, data) for no, data in acked.dirty_chunks().items()]
    acked.mark_clean()
    acked.add_one(CHUNK_SIZE - 1)
    now_full = [ChunkRow(1, no, data) for no, data in acked.dirty_chunks().items()]
    others = [
        ChunkRow(2, no, b"x") for no in range(1000)
    ]  # enough rows to put those two into separate transactions
    faulty = FaultyEngine(engine)
    torn = 0
    for number in range(1, 100):
        checkpoint.write(
            engine, connection, held, Checkpoint(chunks=[*before, ChunkRow(1, FULL_CHUNKS, b"")])
        )
        crash = AtStep(number, Crash())
        through = faulty.connect()
        faulty.before = crash
        with contextlib.suppress(Crash):
            checkpoint.write(faulty, through, held, Checkpoint(chunks=[*now_full, *others]))
        faulty.before = no_fault
        through.close()
        rows = load_state(connection).chunks[1]
        torn += len(rows) == 2
        loaded = OffsetSet()
        for no, data in rows:
            loaded.load_chunk(no, data)
        loaded._check()
        loaded.add_one(CHUNK_SIZE - 1)  # as in the journal, which is trimmed last
        assert len(loaded) == CHUNK_SIZE
        # The next checkpoint deletes the stale row and leaves the row of full chunks.
        changed = [ChunkRow(1, no, data) for no, data in loaded.dirty_chunks().items()]
        checkpoint.write(engine, connection, held, Checkpoint(chunks=changed))
        assert [no for no, _ in load_state(connection).chunks[1]] == [FULL_CHUNKS]
        if crash.count < number:
            break
    assert torn
