"""The inbox on both engines: entries are written with their causes and moved exactly once."""

from __future__ import annotations

import contextlib

import pytest

from escapement.errors import LeaseLost, OutcomeUnknown, StorageError, StorageUnavailable
from escapement.message import MessageBatch
from escapement.storage import lease
from escapement.storage.cleanup import freeing
from escapement.storage.commit.items import Acks
from escapement.storage.commit.lane import State
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.inbox import inbox
from escapement.storage.inbox.entry import InboxEntry, decode_inbox_entry
from escapement.storage.inbox.inbox import InboxTarget
from escapement.storage.inbox.staged_batch import Advance
from escapement.storage.journal import journal
from escapement.storage.lease import Identity
from support.storage.commit_pipelines import (
    AtStep,
    Crash,
    FaultyEngine,
    HandClock,
    House,
    Once,
    column,
    committing,
    ends_with,
    stored,
)
from support.storage.inbox_entries import inbox_entry


def put(
    engine: Engine, connection: Connection, *inbox_entries: InboxEntry, now_ms: int = 7
) -> None:
    connection.begin()
    inbox.insert(engine, connection, inbox_entries, now_ms)
    connection.commit()


def contents(connection: Connection) -> dict[str, list[bytes]]:
    """Return the waiting payloads, by target."""
    found: dict[str, list[bytes]] = {}
    for inbox_target in inbox.occupied(connection, 0, 100):
        for one in inbox.read_step(connection, inbox_target.id, 1 << 20):
            batch = decode_inbox_entry(one.data).batch
            found.setdefault(inbox_target.target, []).extend(batch.payloads.to_list())
    return found


# -- the tables ------------------------------------------------------------------


def test_entries_wait_by_target_in_the_order_they_were_written(
    engine: Engine, connection: Connection
) -> None:
    put(
        engine,
        connection,
        inbox_entry("t/n/a", "1"),
        inbox_entry("t/n/b", "1"),
        inbox_entry("t/n/a", "2"),
    )
    put(
        engine,
        connection,
        inbox_entry("t/n/a", "3", b"x", b"y"),
        inbox_entry("T/n/a", "1", b"other"),
    )
    assert contents(connection) == {
        "t/n/a": [b"1", b"2", b"x", b"y"],
        "t/n/b": [b"1"],
        "T/n/a": [b"other"],
    }


def test_repeated_source_id_is_stored_once_per_target(
    engine: Engine, connection: Connection
) -> None:
    put(engine, connection, inbox_entry("t/n/a", "s", b"first"))
    again = [
        inbox_entry("t/n/a", "s", b"second"),
        inbox_entry("t/n/a", "S"),
        inbox_entry("t/n/b", "s"),
    ]
    put(engine, connection, *again, again[1])
    assert contents(connection) == {"t/n/a": [b"first", b"S"], "t/n/b": [b"s"]}


def test_targets_are_found_in_steps_and_only_while_they_have_entries_to_move(
    engine: Engine, connection: Connection
) -> None:
    put(engine, connection, *(inbox_entry(f"t/n/{n}", "s") for n in range(5)))
    first = inbox.occupied(connection, 0, 3)
    rest = inbox.occupied(connection, first[-1].id, 3)
    assert [inbox_target.target for inbox_target in first + rest] == [f"t/n/{n}" for n in range(5)]
    ids = [
        one.id for inbox_target in rest for one in inbox.read_step(connection, inbox_target.id, 1)
    ]
    inbox.remove(connection, ids)
    assert inbox.occupied(connection, 0, 9) == first
    # The next entry of a target uses the same record.
    put(engine, connection, inbox_entry(rest[0].target, "t"))
    assert inbox.occupied(connection, first[-1].id, 9) == [InboxTarget(*rest[0])]


def test_step_has_one_entry_or_as_many_as_fit(engine: Engine, connection: Connection) -> None:
    inbox_entries = [inbox_entry("t/n/a", f"{n}", bytes(100)) for n in range(10)]
    put(engine, connection, *inbox_entries, inbox_entry("t/n/b", "s"))
    inbox_target, other = inbox.occupied(connection, 0, 9)
    size = inbox_entries[0].size_bytes
    for max_bytes, count in ((0, 1), (size, 1), (3 * size + 1, 3), (99 * size, 10)):
        assert len(inbox.read_step(connection, inbox_target.id, max_bytes)) == count
    both = [(inbox_target.id, True), (other.id, True)]
    assert [
        len(s.inbox_entries) for s in inbox.read_steps(connection, both, 5 * size, 2 * size)
    ] == [5]
    assert [
        len(s.inbox_entries) for s in inbox.read_steps(connection, both, 5 * size, 9 * size)
    ] == [
        5,
        1,
    ]


def test_stuck_entry_stays_and_does_not_block_others(
    engine: Engine, connection: Connection
) -> None:
    put(engine, connection, inbox_entry("t/n/a", "1"), inbox_entry("t/n/a", "2"))
    (inbox_target,) = inbox.occupied(connection, 0, 9)
    first, _ = inbox.read_step(connection, inbox_target.id, 1 << 20)
    inbox.mark_stuck(connection, first.id, "because " + "x" * 1000)
    assert contents(connection) == {"t/n/a": [b"2"]}
    (waits,) = inbox.waiting(connection, 9)
    assert waits[:3] == ("t/n/a", 2, 2)
    assert waits.oldest_at_ms == 7
    assert waits.stuck == 1
    assert waits.reason.startswith("because")


def test_closed_target_is_freed_and_the_next_entry_opens_a_new_one(
    engine: Engine, connection: Connection
) -> None:
    put(
        engine,
        connection,
        *(inbox_entry("t/n/a", f"{n}") for n in range(200)),
        inbox_entry("t/n/b", "s"),
    )
    (old, _) = inbox.occupied(connection, 0, 9)
    assert inbox.close(connection, "t/n/a") == 200
    assert inbox.close(connection, "t/n/never") == 0
    assert contents(connection) == {"t/n/b": [b"s"]}
    assert inbox.read_step(connection, old.id, 1 << 20) == []
    put(engine, connection, inbox_entry("t/n/a", "0", b"new"))
    while freeing.free_step(connection, []):
        pass
    assert contents(connection) == {"t/n/b": [b"s"], "t/n/a": [b"new"]}
    assert connection.execute("SELECT COUNT(*) FROM inbox").rows == [(2,)]
    assert connection.execute("SELECT COUNT(*) FROM removals").rows == [(0,)]


def test_closing_a_namespace_closes_only_its_own_targets(
    engine: Engine, connection: Connection
) -> None:
    targets = ["t/n/a", "t/n/b", "t/n-1/a", "t/n.1/a", "t/n0/a", "t/m/a", "T/n/a"]
    put(engine, connection, *(inbox_entry(target, "s") for target in targets))
    inbox.close_namespace(connection, "t/n")
    assert sorted(contents(connection)) == sorted(targets[2:])


def test_removing_a_missing_entry_is_an_error(engine: Engine, connection: Connection) -> None:
    put(engine, connection, *(inbox_entry("t/n/a", f"{n}") for n in range(1200)))
    (inbox_target,) = inbox.occupied(connection, 0, 9)
    step = [one.id for one in inbox.read_step(connection, inbox_target.id, 1 << 20)]
    assert len(step) == 1000
    inbox.remove(connection, step)
    with pytest.raises(StorageError, match="1 of 1 inbox entries"):
        inbox.remove(connection, [step[0]])


# -- the group commit ------------------------------------------------------------


def move(house: House, topic: int, target: str) -> int:
    """Submit the waiting entries of ``target`` as one append, and return their number."""
    with house.connection() as connection:
        for inbox_target in inbox.occupied(connection, 0, 99):
            if inbox_target.target == target:
                step = inbox.read_step(connection, inbox_target.id, 1 << 20)
                batch = MessageBatch.concat([decode_inbox_entry(one.data)[0] for one in step])
                house.append(topic, *batch.payloads.to_list(), entry_ids=[s.id for s in step])
                return len(step)
    return 0


def acknowledged(engine: Engine) -> list[int]:
    connection = engine.connect()
    entries = [row.entry for row in journal.read(connection, 0)]
    connection.close()
    return [n for entry in entries for acked in entry.acks for n in acked.offsets.tolist()]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_crash_at_any_step_keeps_each_entry_with_its_cause_and_in_one_place(
    engine: Engine, when: str
) -> None:
    """B2 relies on this: an entry commits with its cause and is moved exactly once."""
    async with committing(engine) as house:
        topic = await house.topic("t")
    faulty = FaultyEngine(engine)
    for number in range(1, 100):
        crash = AtStep(number, Crash())
        setattr(faulty, when, lambda step: None)
        with contextlib.suppress(BaseExceptionGroup):
            async with committing(faulty, max_lanes=1) as house:
                with house.connection() as connection:
                    end = house.log.end_offset(connection, topic)
                house.pipeline.open_topic(topic, end)
                setattr(faulty, when, crash)
                cause = Acks(
                    topic, 1, column(number), inbox_entries=[inbox_entry("t/n/t", f"{number}")]
                )
                house.pipeline.submit(cause)
                await house.pipeline.drain()
                move(house, topic, "t/n/t")
                await house.pipeline.drain()
        connection = engine.connect()
        moved = stored(engine).get(topic, [])
        waits = contents(connection).get("t/n/t", [])
        connection.close()
        assert [b"%d" % n for n in acknowledged(engine)] == moved + waits
        if crash.count < crash.number:
            break
    else:
        raise AssertionError("the workload never finished")
    assert number > 2
    assert len(moved) > 2


@pytest.mark.parametrize("durable", [True, False], ids=["committed", "not-committed"])
async def test_lost_commit_reply_moves_no_entry_twice(engine: Engine, durable: bool) -> None:
    faulty = FaultyEngine(engine)
    async with committing(faulty) as house:
        topic = await house.topic("t")
        fault = Once("commit", OutcomeUnknown("the reply was lost"))
        setattr(faulty, "after" if durable else "before", fault)
        for n in range(3):
            fault.arm()
            house.pipeline.submit(
                Acks(topic, 1, column(n), inbox_entries=[inbox_entry("t/n/t", f"{n}")])
            )
            await house.pipeline.drain()
            fault.arm()
            assert move(house, topic, "t/n/t") == 1
            await house.pipeline.drain()
        assert [ticket.offset for ticket in house.tickets] == [0, 1, 2]
        assert stored(engine) == {topic: [b"0", b"1", b"2"]}
        with house.connection() as connection:
            assert contents(connection) == {}


async def test_entries_wait_through_an_outage_and_count_as_waiting_bytes(
    engine: Engine,
) -> None:
    faulty = FaultyEngine(engine)
    async with committing(faulty, max_lanes=1, max_waiting_bytes=500) as house:
        topic = await house.topic("t")
        outage = Once("", StorageUnavailable("away"), times=10**6)
        faulty.before = outage
        outage.arm()
        house.pipeline.submit(Acks(topic, 1, column(0), inbox_entries=[inbox_entry("t/n/a", "1")]))
        await house.until(State.DOWN)
        more = [inbox_entry("t/n/a", "2", bytes(500))]
        house.pipeline.submit(Acks(topic, 1, column(1), inbox_entries=more))
        assert house.pipeline.waiting_bytes > 500
        assert not house.pipeline.has_room
        outage.left = 0
        await house.pipeline.drain()
        assert house.pipeline.waiting_bytes == 0
        with house.connection() as connection:
            assert contents(connection) == {"t/n/a": [b"1", bytes(500)]}
        assert acknowledged(engine) == [0, 1]


async def test_stale_owner_neither_writes_nor_moves_entries(engine: Engine) -> None:
    """Invariant 8."""
    clock = HandClock()
    with ends_with(LeaseLost):
        async with committing(engine, clock=clock) as house:
            topic = await house.topic("t")
            house.pipeline.submit(
                Acks(topic, 1, column(1), inbox_entries=[inbox_entry("t/n/t", "1")])
            )
            await house.pipeline.drain()
            connection = engine.connect()
            connection.execute("UPDATE leases SET expires_at_ms = 0")
            lease.acquire(engine, Identity("two", "two"), 1000, clock)
            house.pipeline.submit(
                Acks(topic, 1, column(2), inbox_entries=[inbox_entry("t/n/t", "2")])
            )
            move(house, topic, "t/n/t")
            await house.pipeline.drain()
    assert contents(connection) == {"t/n/t": [b"1"]}
    assert stored(engine) == {}
    connection.close()


async def test_entries_removed_by_another_owner_are_not_appended(engine: Engine) -> None:
    with ends_with(StorageError):
        async with committing(engine) as house:
            topic = await house.topic("t")
            house.append(topic, b"never", entry_ids=[99])
            await house.pipeline.drain()
    assert stored(engine) == {}


async def test_entries_of_a_batch_advanced_by_another_owner_are_not_appended(
    engine: Engine,
) -> None:
    """B7."""
    with ends_with(StorageError):
        async with committing(engine) as house:
            topic = await house.topic("t")
            house.append(topic, b"never", advances=[Advance(99, 0, 1)])
            await house.pipeline.drain()
    assert stored(engine) == {}
