"""The commit pipeline without faults, and its bounds."""

from __future__ import annotations

import numpy as np
import pytest
import trio
from trio.testing import MockClock

from escapement.errors import (
    AlreadyExists,
    Busy,
    LeaseLost,
    NotFound,
    ShuttingDown,
    StorageUnavailable,
)
from escapement.message import Times
from escapement.storage.blocking import in_threads
from escapement.storage.catalog import catalog
from escapement.storage.commit.group import Group
from escapement.storage.commit.group_rows import MAX_ROW_BYTES
from escapement.storage.commit.items import ITEM_BYTES, Acks, Attempts
from escapement.storage.commit.lane import (
    GROUP_BYTES,
    GROUP_STATEMENTS,
    MOST_GROUP_BYTES,
    State,
)
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.journal import journal
from escapement.storage.state.state import load_state
from support.storage.commit_pipelines import (
    Crash,
    FaultyEngine,
    HandClock,
    Once,
    Ticket,
    check_promises,
    column,
    committing,
    ends_with,
    stored,
)


async def test_receipt_is_sent_after_the_batch_is_committed(engine: Engine) -> None:
    """Invariant 1: another connection can read the batch when ``on_commit`` runs."""
    async with committing(engine) as house:
        topic = await house.topic("t")
        seen: list[int] = []

        def look(group: Group) -> None:
            with house.connection() as connection:
                seen.append(house.log.end_offset(connection, topic))

        house.on_group = look
        for n in range(5):
            house.append(topic, b"a%d" % n, b"b%d" % n)
            await house.pipeline.drain()
        assert seen == [2, 4, 6, 8, 10]
        check_promises(engine, house.tickets)


async def test_waiting_batches_share_a_transaction_and_a_row(engine: Engine) -> None:
    async with committing(engine, max_lanes=1) as house:
        one, two = await house.topic("one"), await house.topic("two")
        before = len(house.groups)
        for n in range(3):
            house.append(one, b"1-%d" % n)
            house.append(two, b"2-%d" % n, b"more")
        await house.pipeline.drain()
        (group,) = house.groups[before:]
        assert [(t.topic_id, t.base_offset, t.base_offsets) for t in group.topics] == [
            (one, 0, [0, 1, 2]),
            (two, 0, [0, 2, 4]),
        ]
        assert [len(topic.appends) for topic in group.topics] == [3, 3]
        with house.connection() as connection:
            *_, last = journal.read(connection, 0)
        assert [(r.topic_id, r.message_count) for r in last.entry.rows] == [(one, 3), (two, 6)]
        assert last.position == group.position


async def test_times_are_fixed_when_the_group_is_formed(engine: Engine) -> None:
    """P8: the due time is the requested time, or now if that has passed. One clock serves all."""
    async with committing(engine, clock=HandClock(5000)) as house:
        topic = await house.topic("t")
        house.append(topic, b"a")
        house.append(topic, b"b", b"c", times=Times(delay_ms=column(10, -1)))
        house.append(topic, b"d", b"e", times=Times(at_ms=column(9000, 20)))
        house.append(topic, b"f")
        house.clock.now = 6000
        await house.pipeline.drain()
        (formed,) = house.groups[-1].topics
        assert house.groups[-1].accepted_at_ms == 6000
        assert formed.due_ms.tolist() == [6000, 6010, 6000, 9000, 6000, 6000]
        with house.connection() as connection:
            ((row,), _) = house.log.read_due(connection, topic, 0, 6, 0, 1)
        assert row.content.due_ms.tolist() == formed.due_ms.tolist()
        assert row.content.accepted_at_ms == 6000


async def test_journal_row_holds_acks_attempts_and_producers_of_its_group(engine: Engine) -> None:
    async with committing(engine) as house:
        topic = await house.topic("t")
        house.append(topic, b"a", b"b", producer_id=9, last_sequence=4)
        house.append(topic, b"c", b"d", producer_id=9, last_sequence=6)
        pipeline = house.pipeline
        pipeline.submit(Acks(topic, 31, column(5, 3)))
        pipeline.submit(Acks(topic, 32, column(1)))
        pipeline.submit(Acks(topic, 31, column(4)))
        pipeline.submit(Attempts(topic, 31, column(8), column(2), column(70), column(60)))
        pipeline.submit(Attempts(topic, 32, column(9), column(1), column(71), column(61)))
        assert pipeline.waiting_acks == 4
        await pipeline.drain()
        assert pipeline.waiting_acks == pipeline.waiting_bytes == 0
        group = house.groups[-1]
        assert [acks.subscription_id for acks in group.acks] == [31, 32, 31]
        with house.connection() as connection:
            *_, last = journal.read(connection, 0)
        entry = last.entry
        assert [(a.subscription_id, a.offsets.tolist()) for a in entry.acks] == [
            (31, [3, 4, 5]),
            (32, [1]),
        ]
        assert entry.attempts is not None
        assert entry.attempts.subscription_id.tolist() == [31, 32]
        assert entry.attempts.next_ms.tolist() == [70, 71]
        assert [tuple(mark) for mark in entry.producers] == [(9, 6, 3)]


async def test_groups_of_a_topic_commit_in_order_on_several_lanes(engine: Engine) -> None:
    """Use threads, so that lanes run in parallel."""
    async with committing(engine, run=in_threads(4)) as house:
        assert house.pipeline.lanes == min(4, engine.max_lanes)
        topics = [await house.topic(f"t{n}") for n in range(6)]

        async def publish(topic: int) -> None:
            for n in range(20):
                ticket = house.append(topic, b"%d" % n, b"%d!" % n)
                if n % 3 == 0:
                    await ticket.done.wait()

        async with trio.open_nursery() as nursery:
            for topic in topics:
                nursery.start_soon(publish, topic)
        await house.pipeline.drain()
        for lane in range(house.pipeline.lanes):
            seqs = [group.seq for group in house.groups if group.lane == lane]
            assert seqs == list(range(1, len(seqs) + 1))
        ends = dict.fromkeys(topics, 0)
        for group in house.groups:
            for formed in group.topics:
                assert formed.topic_id % house.pipeline.lanes == group.lane
                assert formed.base_offset == ends[formed.topic_id]
                ends[formed.topic_id] = formed.end_offset
        assert set(ends.values()) == {40}
        check_promises(engine, house.tickets)


async def test_groups_and_rows_have_separate_size_limits(engine: Engine) -> None:
    """A body of several megabytes does not share a row with the messages before it."""
    async with committing(engine) as house:
        topic = await house.topic("t")
        before = len(house.groups)
        for _ in range(10):
            house.append(topic, b"x" * (MOST_GROUP_BYTES // 8))
        house.append(topic, b"y" * (MAX_ROW_BYTES - 1000))
        await house.pipeline.drain()
        groups = house.groups[before:]
        assert [len(group.topics[0].appends) for group in groups] == [8, 3]
        with house.connection() as connection:
            rows, _ = house.log.read_due(connection, topic, 0, 11, 0, 100 << 20)
        assert [row.key.message_count for row in rows] == [8, 2, 1]
        check_promises(engine, house.tickets)


@pytest.mark.parametrize(
    ("count", "sizes"), [(3, [2, 1]), (6, [4, 2]), (40, [8, 8, 8, 8, 5, 2, 1])]
)
async def test_group_takes_half_of_what_waits_within_limits(
    engine: Engine, count: int, sizes: list[int]
) -> None:
    """At least ``GROUP_BYTES``, at most ``MOST_GROUP_BYTES``."""
    async with committing(engine) as house:
        topic = await house.topic("t")
        before = len(house.groups)
        for _ in range(count):
            house.append(topic, b"x" * (GROUP_BYTES // 2))
        await house.pipeline.drain()
        assert [len(group.topics[0].appends) for group in house.groups[before:]] == sizes


async def test_append_past_max_waiting_bytes_is_refused(engine: Engine) -> None:
    """Committing a group frees room and wakes the tasks that wait for it."""
    async with committing(engine, max_waiting_bytes=1000) as house:
        topic = await house.topic("t")
        pipeline = house.pipeline
        house.append(topic, b"x" * 999)
        assert not pipeline.has_room
        with pytest.raises(Busy, match="the limit is 1000"):
            house.append(topic, b"y")
        pipeline.submit(Acks(topic, 1, column(1)))  # dispatch bounds the acks, not the pipeline
        order: list[int] = []

        async def publish(n: int) -> None:
            await pipeline.room()
            house.append(topic, b"%d" % n * 999)
            order.append(n)

        async with trio.open_nursery() as nursery:
            for n in range(4):
                nursery.start_soon(publish, n)
        await pipeline.drain()
        assert sorted(order) == [0, 1, 2, 3]
        assert all(len(group.topics) <= 1 for group in house.groups)
        check_promises(engine, house.tickets)


async def test_small_appends_count_with_the_memory_that_each_takes(engine: Engine) -> None:
    """Invariant 9. Their group is as large as without that memory."""
    async with committing(engine, max_waiting_bytes=2000 * ITEM_BYTES) as house:
        topic = await house.topic("t")
        before = len(house.groups)
        while house.pipeline.has_room:
            house.append(topic, b"x")
        assert 1900 < len(house.tickets) <= 2000
        await house.pipeline.drain()
        assert house.pipeline.waiting_bytes == 0
        assert len(house.groups) == before + 1
        check_promises(engine, house.tickets)


async def test_failing_statement_does_not_affect_the_rest_of_its_group(engine: Engine) -> None:
    """Only the changes of the failing statement are rolled back."""
    async with committing(engine, max_lanes=1) as house:
        topic = await house.topic("t")
        failures: list[Exception] = []

        def half(connection: Connection) -> None:
            catalog.create_topic(connection, 1, "half", 0)
            catalog.create_topic(connection, 1, "t", 0)

        async def fails() -> None:
            with pytest.raises(AlreadyExists):
                await house.pipeline.transact(half)
            failures.append(AlreadyExists())

        async def succeeds() -> None:
            await house.pipeline.transact(lambda c: catalog.create_topic(c, 1, "other", 0))

        groups = len(house.groups)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fails)
            nursery.start_soon(succeeds)
            nursery.start_soon(fails)
            ticket = house.append(topic, b"x")
        assert len(failures) == 2
        assert ticket.offset == 0
        assert len(house.groups) - groups <= 2
        with house.connection() as connection:
            names = {record.name for record in load_state(connection).topics}
        assert names == {"t", "other"}
        check_promises(engine, house.tickets)


async def test_statement_runs_after_earlier_appends_of_its_topic(engine: Engine) -> None:
    """A delete is committed after earlier appends of its topic, whichever lane it uses."""
    async with committing(engine) as house:
        await house.topic("zero")
        topic = await house.topic("t")
        for _ in range(3):
            house.append(topic, b"x" * GROUP_BYTES)
        ends: list[int] = []
        await house.pipeline.transact(
            lambda c: ends.append(house.log.end_offset(c, topic)), topic_id=topic
        )
        assert ends == [3]


async def test_closing_a_topic_fails_its_waiting_appends(engine: Engine) -> None:
    """Appends that are being written, and other topics of the lane, are not affected."""
    async with committing(engine, max_lanes=1) as house:
        topic, other = await house.topic("t"), await house.topic("other")
        written = house.append(topic, b"x" * GROUP_BYTES)
        waiting: list[Ticket] = []

        def close(group: Group) -> None:
            waiting.extend((house.append(topic, b"late"), house.append(other, b"kept")))
            house.pipeline.close_topic(topic)
            house.on_group = lambda group: None

        house.on_group = close
        await house.pipeline.drain()
        late, kept = waiting
        assert (written.offset, kept.offset) == (0, 0)
        assert isinstance(late.error, NotFound)
        assert house.pipeline.waiting_bytes == 0
        await house.pipeline.transact(lambda c: catalog.delete_topic(c, topic), topic_id=topic)
        check_promises(engine, house.tickets)


async def test_a_topic_closed_during_an_outage_stays_closed(
    engine: Engine, autojump_clock: MockClock
) -> None:
    """The append fails, but the lane does not restore the offset of a closed topic."""
    faulty = FaultyEngine(engine)
    async with committing(faulty, max_lanes=1) as house:
        topic = await house.topic("t")
        outage = Once("", StorageUnavailable("cut"), times=8)

        def close(step: str) -> None:
            if outage.left == 8:
                house.pipeline.close_topic(topic)
            outage(step)

        faulty.before = close
        outage.arm()
        ticket = house.append(topic, b"x")
        await ticket.done.wait()
        assert isinstance(ticket.error, StorageUnavailable)
        house.pipeline.open_topic(topic, 0)
        await house.until(State.UP)


async def test_many_statements_are_spread_over_groups(engine: Engine) -> None:
    async with committing(engine, max_lanes=1) as house:
        async with trio.open_nursery() as nursery:
            for n in range(GROUP_STATEMENTS + 10):
                nursery.start_soon(house.topic, f"t{n}")
        assert max(len(group.statements) for group in house.groups) <= GROUP_STATEMENTS
        with house.connection() as connection:
            assert len(load_state(connection).topics) == GROUP_STATEMENTS + 10


async def test_commits_can_be_paced(engine: Engine, autojump_clock: MockClock) -> None:
    async with committing(engine, max_lanes=1, max_commits_per_second=2.0) as house:
        topic = await house.topic("t")
        begin = trio.current_time()
        for n in range(4):
            ticket = house.append(topic, b"%d" % n)
            await ticket.done.wait()
        assert trio.current_time() - begin == pytest.approx(2.0, abs=0.01)


async def test_commit_pace_applies_to_all_lanes_together(
    engine: Engine, autojump_clock: MockClock
) -> None:
    """N6: waiting appends join the next group. Pacing refuses none of them."""
    async with committing(engine, max_lanes=3, max_commits_per_second=6.0) as house:
        topics = [await house.topic(f"t{n}") for n in range(6)]
        before, begin = len(house.groups), trio.current_time()

        async def publish(topic: int) -> None:
            while trio.current_time() - begin < 5:
                await house.append(topic, b"x").done.wait()

        async with trio.open_nursery() as nursery:
            for topic in topics:
                nursery.start_soon(publish, topic)
        span_s = trio.current_time() - begin
        groups = len(house.groups) - before
        assert 6 * 4 <= groups <= 6 * span_s + house.pipeline.lanes


async def test_stop_fails_waiting_appends_with_shutting_down(engine: Engine) -> None:
    async with committing(engine) as house:
        topic = await house.topic("t")
        ticket = house.append(topic, b"x")
    assert isinstance(ticket.error, ShuttingDown)
    check_promises(engine, house.tickets)


async def test_requests_after_the_end_are_refused(engine: Engine) -> None:
    """Appends and statements fail at once instead of waiting forever."""
    async with committing(engine) as house:
        topic = await house.topic("t")
    with pytest.raises(StorageUnavailable, match="ended"):
        house.append(topic, b"late")
    with pytest.raises(StorageUnavailable, match="ended"):
        await house.topic("late")


async def test_next_start_continues_at_the_end_of_the_log(engine: Engine) -> None:
    """The number of lanes may change, because the journal is ordered by epoch first."""
    for start, lanes in enumerate((3, 1, 2)):
        async with committing(engine, max_lanes=lanes) as house:
            if start == 0:
                topics = [await house.topic(f"t{n}") for n in range(3)]
                tickets: list[Ticket] = []
            else:
                for topic in topics:
                    with house.connection() as connection:
                        end = house.log.end_offset(connection, topic)
                    house.pipeline.open_topic(topic, end)
            for n in range(5):
                for topic in topics:
                    tickets.append(house.append(topic, b"%d.%d.%d" % (start, topic, n)))
                await house.pipeline.drain()
    check_promises(engine, tickets)
    connection = engine.connect()
    replayed = dict.fromkeys(topics, 0)
    for row in journal.read(connection, 0):
        for key in row.entry.rows:
            assert key.base_offset == replayed[key.topic_id], "replayed out of order"
            replayed[key.topic_id] += key.message_count
    connection.close()
    assert set(replayed.values()) == {15}


async def test_a_stale_owner_writes_nothing(engine: Engine) -> None:
    """Invariant 8: the old pipeline ends with LeaseLost and its waiting appends fail."""
    with ends_with(LeaseLost):
        async with committing(engine) as old:
            topic = await old.topic("t")
            old.append(topic, b"mine")
            await old.pipeline.drain()
            async with committing(engine) as new:
                new.pipeline.open_topic(topic, 1)
                new.append(topic, b"theirs")
                await new.pipeline.drain()
            old.append(topic, b"stale")
            old.pipeline.submit(Acks(topic, 1, column(0)))
            await trio.sleep_forever()
    assert isinstance(old.tickets[-1].error, LeaseLost)
    check_promises(engine, [*old.tickets, *new.tickets])
    assert stored(engine) == {topic: [b"mine", b"theirs"]}
    connection = engine.connect()
    assert not [acks for row in journal.read(connection, 0) for acks in row.entry.acks]
    connection.close()


async def test_error_in_on_commit_ends_the_pipeline(engine: Engine) -> None:
    """The error is not swallowed."""

    def mistake(group: Group) -> None:
        raise Crash

    with ends_with(Crash):
        async with committing(engine) as house:
            house.on_group = mistake
            await house.topic("t")


async def test_error_in_on_commit_leaves_no_change_without_its_outcome(engine: Engine) -> None:
    """A change of the catalog waits for it, shielded. Otherwise the broker would never end."""
    values: list[int] = []

    def mistake(group: Group) -> None:
        raise Crash

    with ends_with(Crash):
        async with committing(engine) as house:
            house.on_group = mistake
            with trio.move_on_after(2, shield=True):
                values.append(await house.pipeline.transact(lambda connection: 7))
            await trio.sleep_forever()
    assert values == [7]


async def test_state_is_up_from_the_start(engine: Engine) -> None:
    async with committing(engine, max_lanes=3) as house:
        assert house.pipeline.state is State.UP
        assert house.states == [State.UP]


async def test_many_due_times_are_resolved_in_columns(engine: Engine) -> None:
    """One batch becomes one row, whatever the width of its columns."""
    async with committing(engine) as house:
        topic = await house.topic("t")
        count = 20_000
        delays = np.arange(count, dtype=np.int64) * 7_000_000
        ticket = house.append(topic, *[b""] * count, times=Times(delay_ms=delays))
        await ticket.done.wait()
        with house.connection() as connection:
            ((row,), _) = house.log.read_due(connection, topic, 0, count, 0, 1)
        assert (row.content.due_ms - house.clock.now).tolist() == delays.tolist()
