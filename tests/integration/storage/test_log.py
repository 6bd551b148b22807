"""The log: reads in order and in bounded steps, across generations."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import cast

import numpy as np
import pytest

from escapement.errors import LeaseLost, LogDamaged
from escapement.message import Blobs, MessageBatch
from escapement.storage import lease
from escapement.storage.engine.base import Connection, Engine, Params, Result
from escapement.storage.engine.result_buffer import Landing
from escapement.storage.log.generation import DAY_MS, GENERATION_SIZE_BYTES, Generation, should_roll
from escapement.storage.log.log import Log
from escapement.storage.log.log_row import Restating, encode_row
from escapement.storage.log.log_table import NewRow, RowKey, insertion
from support.storage.commit_pipelines import HandClock, enter
from support.storage.open_log import NO_LIMIT, OpenLog, check_rows


@pytest.fixture
def opened(engine: Engine) -> Iterator[OpenLog]:
    opened = OpenLog(engine)
    yield opened
    opened.connection.close()


def test_reading_begins_with_the_row_that_holds_the_offset(opened: OpenLog) -> None:
    for base in range(0, 50, 5):
        opened.write(3, base, 5)
        opened.write(4, base, 5)
    assert opened.read(3, 12, 50) == [10, 15, 20, 25, 30, 35, 40, 45]
    assert opened.read(3, 15, 30) == [15, 20, 25]
    assert opened.read(3, 49, 50) == [45]
    assert opened.read(3, 50, 50) == []
    assert opened.read(9, 0, 50) == []


def test_read_returns_at_least_one_row_and_respects_its_byte_limit(opened: OpenLog) -> None:
    for base in range(6):
        opened.write(3, base, 1, size=1000)
    size = opened.keys[0].size_bytes
    assert opened.read(3, 0, 6, limit=1) == [0]
    assert opened.read(3, 2, 6, limit=2 * size) == [2, 3]


def test_reads_continue_across_generations(opened: OpenLog) -> None:
    """A changed parallelism takes effect with the next generation."""
    for parallelism in (3, 1, 4):
        for _ in range(2):
            base = opened.log.end_offset(opened.connection, 5)
            opened.write(5, base, 5)
        opened.roll(parallelism)
    opened.write(5, 30, 5)
    assert opened.read(5, 0, 35) == [0, 5, 10, 15, 20, 25, 30]
    assert opened.read(5, 12, 22) == [10, 15, 20]
    assert opened.log.end_offset(opened.connection, 5) == 35
    assert opened.log.end_offset(opened.connection, 6) == 0


def test_read_due_skips_rows_due_too_early(opened: OpenLog) -> None:
    """N3: a subscription that begins at a time reads only messages due from then on, in steps."""
    for base in range(0, 30, 5):
        opened.write(5, base, 5)  # each is due at its offset
    opened.roll(3)
    opened.write(5, 30, 5)

    def read(low: int, min_due_ms: int, limit: int = NO_LIMIT) -> tuple[list[int], int]:
        rows, reached = opened.log.read_due(opened.connection, 5, low, 35, min_due_ms, limit)
        check_rows(rows)
        return [row.key.base_offset for row in rows], reached

    assert read(0, 0) == ([0, 5, 10, 15, 20, 25, 30], 35)
    assert read(0, 14) == ([10, 15, 20, 25, 30], 35)
    assert read(22, 14) == ([20, 25, 30], 35)
    assert read(0, 14, 1) == ([10], 15)
    assert read(0, 99) == ([], 35)
    assert read(15, 14, 1) == ([15], 20)


def test_first_accepted_finds_the_first_row_at_or_after_a_time(opened: OpenLog) -> None:
    """N3: the row may be in any generation."""
    bases = [0, 1, 7, 8, 30, 90, 95]
    for base, end in pairwise([*bases, 100]):
        opened.write(5, base, end - base)  # each is accepted at its first offset
        if base in (7, 90):
            opened.roll(3)
            opened.roll(1)
    opened.write(6, 0, 1)
    for at_ms in range(102):
        expected = next((base for base in bases if base >= at_ms), 100)
        assert opened.log.first_accepted(opened.connection, 5, at_ms, 100) == expected
    assert opened.log.first_accepted(opened.connection, 5, 50, 60) == 60
    assert opened.log.first_accepted(opened.connection, 9, 0, 0) == 0


def test_reopened_log_has_the_same_generations_and_rows(opened: OpenLog) -> None:
    opened.write(5, 0, 5)
    opened.roll(3)
    opened.write(5, 5, 5)
    again = Log.open(opened.engine, opened.connection, opened.lease, 7, 0)
    assert again.generations == opened.log.generations
    rows, _ = again.read_due(opened.connection, 5, 0, 10, 0, NO_LIMIT)
    assert [row.key for row in rows] == opened.keys


def test_rows_are_read_by_key_in_the_requested_order(opened: OpenLog) -> None:
    for base in range(40):
        for topic_id in (1, 2, 3):
            opened.write(topic_id, base, 1)
        if base == 20:
            opened.roll(2)
    wanted = [*opened.keys[::2], *opened.keys[1::2]]
    steps = list(opened.log.read_rows(opened.connection, wanted, 500))
    assert [row.key for step in steps for row in step] == wanted
    assert len(steps) > 5
    for step in steps:
        check_rows(step)
        assert sum(row.key.size_bytes for row in step) <= 500


def test_error_names_the_missing_or_damaged_row(opened: OpenLog) -> None:
    opened.write(1, 0, 1)
    (key,) = opened.keys
    with pytest.raises(LogDamaged, match=r"lacks a row .* topic 1, offset 7"):
        list(opened.log.read_rows(opened.connection, [key._replace(base_offset=7)], 500))
    opened.connection.execute("UPDATE log_1_1 SET data = ? WHERE topic_id = 1", (b"?" * 60,))
    with pytest.raises(LogDamaged, match=r"topic 1, offset 0, generation 1: .*checksum"):
        opened.read(1, 0, 1)


def test_scan_returns_every_row_in_order_within_each_topic(opened: OpenLog) -> None:
    """One topic has more rows, and the log more topics, than a page of keys holds."""
    opened.connection.begin()
    for topic_id, rows in ((2, 300), (4, 3), *((n, 1) for n in range(10, 410, 2))):
        body = MessageBatch(Blobs.of([b"x"])).encode()
        data = encode_row(0, np.zeros(1, np.int64), [body])
        new = [NewRow(opened.log.current, topic_id, base, 1, 0, 0, 0, data) for base in range(rows)]
        enter(opened.connection, *insertion(new, opened.lease.epoch))
        opened.keys += [RowKey(1, topic_id, base, 1, len(data)) for base in range(rows)]
    opened.connection.commit()
    steps = list(opened.log.scan(opened.connection, 2000))
    assert [row.key for step in steps for row in step] == opened.keys
    assert all(sum(row.key.size_bytes for row in step) <= 2000 for step in steps)


class Vanishing:
    """A connection that deletes the rows of topic 1 between two SELECTs."""

    def __init__(self, opened: OpenLog) -> None:
        self.id = 0
        self._opened = opened

    def execute(self, sql: str, params: Params = (), into: Landing | None = None) -> Result:
        if " data " in sql:
            self._opened.connection.execute("DELETE FROM log_1_1 WHERE topic_id = 1")
        return self._opened.connection.execute(sql, params, into)


def test_rows_freed_during_a_read_are_left_out(opened: OpenLog) -> None:
    """The topic was deleted, so the log is not damaged."""
    for scan in (True, False):
        for topic_id in (1, 3):
            opened.write(topic_id, 0 if scan else 1, 1)
        connection = cast(Connection, Vanishing(opened))
        if scan:
            rows = [row for step in opened.log.scan(connection, NO_LIMIT) for row in step]
            assert [row.key.topic_id for row in rows] == [3]
        else:
            assert opened.log.read_due(connection, 1, 0, 2, 0, NO_LIMIT) == ([], 2)


def test_stale_owner_cannot_begin_a_generation(opened: OpenLog) -> None:
    """Invariant 8."""
    lease.acquire(opened.engine, opened.lease.identity, 60_000, HandClock())
    with pytest.raises(LeaseLost):
        opened.roll(2)
    assert opened.connection.execute("SELECT COUNT(*) FROM generations").rows == [(1,)]


def test_retried_roll_discards_the_generation_whose_reply_was_lost(opened: OpenLog) -> None:
    """N5: the discarded generation is recorded but empty."""
    opened.log.prepare(opened.engine, opened.connection, opened.lease, 4, 0)
    opened.roll(2)
    opened.write(1, 0, 1)
    assert opened.read(1, 0, 1) == [0]
    assert (opened.log.current.id, opened.log.current.parallelism) == (3, 2)
    assert [(one.id, one.parallelism) for one in opened.log.going] == [(2, 4)]
    again = Log.open(opened.engine, opened.connection, opened.lease, 1, 0)
    assert (again.generations, again.going) == (opened.log.generations, opened.log.going)


def test_a_generation_ends_by_size_or_by_day() -> None:
    young = Generation(1, 2, 5 * DAY_MS, 0)
    assert not should_roll(young, 6 * DAY_MS), "an empty generation may last forever"
    used = Generation(1, 2, 5 * DAY_MS, 10)
    assert not should_roll(used, 6 * DAY_MS - 1)
    assert should_roll(used, 6 * DAY_MS)
    assert should_roll(Generation(1, 2, 5 * DAY_MS, GENERATION_SIZE_BYTES), 5 * DAY_MS)


def test_accepted_ms_is_known_for_all_messages_in_the_log(
    opened: OpenLog,
) -> None:
    """Each row is accepted at its base offset. The requested offsets may lie far apart."""
    for base in range(0, 3_000, 10):
        opened.write(7, base, 10)
    opened.roll(3)
    opened.write(7, 3_000, 5)
    opened.write(7, 3_005, 5)
    wanted = np.array([0, 9, 10, 1_999, 2_000, 2_995, 2_999, 3_004, 3_005, 3_009, 3_010, 9_000])
    found = opened.log.accepted_ms(opened.connection, 7, wanted)
    assert found.tolist() == [0, 0, 10, 1990, 2000, 2990, 2990, 3000, 3005, 3005, 0, 0]
    assert opened.log.accepted_ms(opened.connection, 7, np.arange(3_010)).tolist() == [
        n if n == 3_005 else n - n % 10 if n < 3_005 else 3_005 for n in range(3_010)
    ]
    assert not opened.log.accepted_ms(opened.connection, 8, wanted).any()


def restate(opened: OpenLog, topic_id: int, base: int, offsets: list[int]) -> None:
    column = np.array(offsets, np.int64)
    body = MessageBatch(Blobs.of([b"%d@%d." % (topic_id, offset) for offset in offsets])).encode()
    data = encode_row(0, column + 1, [body], Restating(column, column, column, column))
    row = NewRow(opened.log.current, topic_id, base, len(column), 1, 1, 0, data)
    opened.connection.begin()
    enter(opened.connection, *insertion([row], opened.lease.epoch))
    opened.connection.commit()
    opened.keys.append(RowKey(opened.log.current.id, topic_id, base, len(column), len(data)))


def test_reads_by_offset_skip_restatements(opened: OpenLog) -> None:
    """B1: scans and reads by key return restatements."""
    opened.write(7, 0, 4)
    restate(opened, 7, -1, [1, 3])
    opened.roll(3)
    restate(opened, 7, -2, [0])
    opened.write(7, 4, 2)
    restate(opened, 8, -1, [0])
    log, connection = opened.log, opened.connection
    assert opened.read(7, 0, 6) == [0, 4]
    assert opened.read(7, 3, 6) == [0, 4]
    assert log.end_offset(connection, 7) == 6
    assert log.end_offset(connection, 8) == 0
    assert log.lowest_base(connection, 7) == -2
    assert log.lowest_base(connection, 9) == 0
    found = [row for step in log.read_rows(connection, opened.keys, NO_LIMIT) for row in step]
    named = [None if r.content.offsets is None else r.content.offsets.tolist() for r in found]
    assert named == [None, [1, 3], [0], None, [0]]
    scanned = {row.key for step in log.scan(connection, NO_LIMIT) for row in step}
    assert scanned == set(opened.keys)
    for max_bytes, reads in ((NO_LIMIT, [4]), (0, [2, 2])):
        wanted, counts, bases = [-2, -7, -1, -9], [], []
        while wanted:
            rows, count = log.restatements(connection, 7, wanted, max_bytes)
            bases += [row.key.base_offset for row in rows]
            counts.append(count)
            wanted = wanted[count:]
        assert (bases, counts) == ([-2, -1], reads)


def test_holding_finds_the_rows_of_messages_in_bounded_steps(opened: OpenLog) -> None:
    """B1: messages may be close together, far apart, in several generations or missing."""
    for base in range(0, 1000, 5):
        opened.write(7, base, 5)
    opened.roll(3)
    restate(opened, 7, -1, [3])
    for base in range(1000, 1500, 5):
        opened.write(7, base, 4)  # one offset in five is missing
    wanted = np.array([0, 1, 7, 8, 400, 996, 1000, 1004, 1250, 1251, 1499, 9999], np.int64)
    bases: list[int] = []
    at = 0
    while at < len(wanted):
        rows, count = opened.log.holding(opened.connection, 7, wanted[at:], 0)
        assert count > 0
        assert len(rows) <= 1
        check_rows(rows)
        bases += [row.key.base_offset for row in rows]
        at += count
    assert bases == [0, 5, 400, 995, 1000, 1250]
    rows, count = opened.log.holding(opened.connection, 7, wanted, NO_LIMIT)
    assert [row.key.base_offset for row in rows] == bases
    assert count == len(wanted)
