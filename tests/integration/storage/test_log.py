"""The log gives back what was written, in order, in bounded steps, across generations."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import cast

import numpy as np
import pytest

from escapement.errors import LeaseLost, LogDamaged
from escapement.message import Blobs, MessageBatch
from escapement.storage import lease, schema
from escapement.storage.engine.base import Connection, Engine, Params, Result
from escapement.storage.engine.result_buffer import Landing
from escapement.storage.lease import Identity, Lease
from escapement.storage.log.generation import DAY_MS, GENERATION_SIZE_BYTES, Generation, should_roll
from escapement.storage.log.log import Log
from escapement.storage.log.log_row import Restating, encode_row
from escapement.storage.log.log_table import LogRow, NewRow, RowKey, insertion
from support.commit_pipelines import HandClock, enter

NO_LIMIT = 1 << 40


class ArchiveFolder:
    """A log and a connection to it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        schema.migrate(engine)
        self.lease: Lease = lease.acquire(engine, Identity("a", "a"), 60_000, HandClock())
        self.connection: Connection = engine.connect()
        self.log = Log.open(engine, self.connection, self.lease, 2, 0)
        self.keys: list[RowKey] = []

    def write(self, topic_id: int, base: int, count: int, size: int = 10) -> None:
        payloads = [b"%d@%d" % (topic_id, base + n) + b"." * size for n in range(count)]
        due = np.arange(base, base + count, dtype=np.int64)
        data = encode_row(base, due, [MessageBatch(Blobs.of(payloads)).encode()])
        row = NewRow(self.log.current, topic_id, base, count, base, base + count - 1, base, data)
        self.connection.begin()
        enter(self.connection, *insertion([row], self.lease.epoch))
        self.connection.commit()
        self.keys.append(RowKey(self.log.current.id, topic_id, base, count, len(data)))

    def roll(self, parallelism: int) -> None:
        self.log.begin(*self.log.prepare(self.engine, self.connection, self.lease, parallelism, 0))

    def read(self, topic_id: int, low: int, high: int, limit: int = NO_LIMIT) -> list[int]:
        rows = self.log.read(self.connection, topic_id, low, high, limit)
        check_rows(rows)
        return [row.key.base_offset for row in rows]


def check_rows(rows: list[LogRow]) -> None:
    for row in rows:
        first = row.content.batch().payloads.to_list()[0]
        assert first.startswith(b"%d@%d." % (row.key.topic_id, row.key.base_offset))
        assert row.content.due_ms.tolist() == list(range(row.key.base_offset, row.end_offset))


@pytest.fixture
def shelf(engine: Engine) -> Iterator[ArchiveFolder]:
    shelf = ArchiveFolder(engine)
    yield shelf
    shelf.connection.close()


def test_reading_begins_with_the_row_that_holds_the_offset(shelf: ArchiveFolder) -> None:
    for base in range(0, 50, 5):
        shelf.write(3, base, 5)
        shelf.write(4, base, 5)
    assert shelf.read(3, 12, 50) == [10, 15, 20, 25, 30, 35, 40, 45]
    assert shelf.read(3, 15, 30) == [15, 20, 25]
    assert shelf.read(3, 49, 50) == [45]
    assert shelf.read(3, 50, 50) == []
    assert shelf.read(9, 0, 50) == []


def test_a_read_takes_at_least_one_row_and_then_no_more_than_it_may(shelf: ArchiveFolder) -> None:
    for base in range(6):
        shelf.write(3, base, 1, size=1000)
    size = shelf.keys[0].size_bytes
    assert shelf.read(3, 0, 6, limit=1) == [0]
    assert shelf.read(3, 2, 6, limit=2 * size) == [2, 3]


def test_reading_walks_through_generations(shelf: ArchiveFolder) -> None:
    """A change of parallelism takes effect with the next generation."""
    for parallelism in (3, 1, 4):
        for _ in range(2):
            base = shelf.log.end_offset(shelf.connection, 5)
            shelf.write(5, base, 5)
        shelf.roll(parallelism)
    shelf.write(5, 30, 5)
    assert shelf.read(5, 0, 35) == [0, 5, 10, 15, 20, 25, 30]
    assert shelf.read(5, 12, 22) == [10, 15, 20]
    assert shelf.log.end_offset(shelf.connection, 5) == 35
    assert shelf.log.end_offset(shelf.connection, 6) == 0


def test_rows_that_are_due_too_early_are_passed_over(shelf: ArchiveFolder) -> None:
    """N3: a subscription that begins at a time reads what is due from then on, in steps."""
    for base in range(0, 30, 5):
        shelf.write(5, base, 5)  # each is due at its offset
    shelf.roll(3)
    shelf.write(5, 30, 5)

    def read(low: int, min_due_ms: int, limit: int = NO_LIMIT) -> tuple[list[int], int]:
        rows, reached = shelf.log.read_due(shelf.connection, 5, low, 35, min_due_ms, limit)
        check_rows(rows)
        return [row.key.base_offset for row in rows], reached

    assert read(0, 0) == ([0, 5, 10, 15, 20, 25, 30], 35)
    assert read(0, 14) == ([10, 15, 20, 25, 30], 35)
    assert read(22, 14) == ([20, 25, 30], 35)
    assert read(0, 14, 1) == ([10], 15)
    assert read(0, 99) == ([], 35)
    assert read(15, 14, 1) == ([15], 20)


def test_a_time_is_found_in_the_log(shelf: ArchiveFolder) -> None:
    """N3: the first row accepted at it or later, in whichever generation that is."""
    bases = [0, 1, 7, 8, 30, 90, 95]
    for base, end in pairwise([*bases, 100]):
        shelf.write(5, base, end - base)  # each is accepted at its first offset
        if base in (7, 90):
            shelf.roll(3)
            shelf.roll(1)
    shelf.write(6, 0, 1)
    for at_ms in range(102):
        expected = next((base for base in bases if base >= at_ms), 100)
        assert shelf.log.first_accepted(shelf.connection, 5, at_ms, 100) == expected
    assert shelf.log.first_accepted(shelf.connection, 5, 50, 60) == 60
    assert shelf.log.first_accepted(shelf.connection, 9, 0, 0) == 0


def test_a_reopened_log_is_the_same(shelf: ArchiveFolder) -> None:
    shelf.write(5, 0, 5)
    shelf.roll(3)
    shelf.write(5, 5, 5)
    again = Log.open(shelf.engine, shelf.connection, shelf.lease, 7, 0)
    assert again.generations == shelf.log.generations
    assert [row.key for row in again.read(shelf.connection, 5, 0, 10, NO_LIMIT)] == shelf.keys


def test_rows_are_found_by_their_keys_in_the_order_asked_for(shelf: ArchiveFolder) -> None:
    for base in range(40):
        for topic_id in (1, 2, 3):
            shelf.write(topic_id, base, 1)
        if base == 20:
            shelf.roll(2)
    wanted = [*shelf.keys[::2], *shelf.keys[1::2]]
    steps = list(shelf.log.read_rows(shelf.connection, wanted, 500))
    assert [row.key for step in steps for row in step] == wanted
    assert len(steps) > 5
    for step in steps:
        check_rows(step)
        assert sum(row.key.size_bytes for row in step) <= 500


def test_a_missing_or_damaged_row_is_named(shelf: ArchiveFolder) -> None:
    shelf.write(1, 0, 1)
    (key,) = shelf.keys
    with pytest.raises(LogDamaged, match=r"lacks a row .* topic 1, offset 7"):
        list(shelf.log.read_rows(shelf.connection, [key._replace(base_offset=7)], 500))
    shelf.connection.execute("UPDATE log_1_1 SET data = ? WHERE topic_id = 1", (b"?" * 60,))
    with pytest.raises(LogDamaged, match=r"topic 1, offset 0, generation 1: .*checksum"):
        shelf.read(1, 0, 1)


def test_a_scan_meets_every_row_each_topic_in_order(shelf: ArchiveFolder) -> None:
    """More rows in one topic, and more topics, than a page of keys holds."""
    shelf.connection.begin()
    for topic_id, rows in ((2, 300), (4, 3), *((n, 1) for n in range(10, 410, 2))):
        body = MessageBatch(Blobs.of([b"x"])).encode()
        data = encode_row(0, np.zeros(1, np.int64), [body])
        new = [NewRow(shelf.log.current, topic_id, base, 1, 0, 0, 0, data) for base in range(rows)]
        enter(shelf.connection, *insertion(new, shelf.lease.epoch))
        shelf.keys += [RowKey(1, topic_id, base, 1, len(data)) for base in range(rows)]
    shelf.connection.commit()
    steps = list(shelf.log.scan(shelf.connection, 2000))
    assert [row.key for step in steps for row in step] == shelf.keys
    assert all(sum(row.key.size_bytes for row in step) <= 2000 for step in steps)


class Vanishing:
    """A connection under which the rows of topic 1 are freed between two SELECTs."""

    def __init__(self, shelf: ArchiveFolder) -> None:
        self.id = 0
        self._shelf = shelf

    def execute(self, sql: str, params: Params = (), into: Landing | None = None) -> Result:
        if " data " in sql:
            self._shelf.connection.execute("DELETE FROM log_1_1 WHERE topic_id = 1")
        return self._shelf.connection.execute(sql, params, into)


def test_rows_that_are_freed_under_a_read_are_left_out(shelf: ArchiveFolder) -> None:
    """The topic was deleted: that is no damage."""
    for scan in (True, False):
        for topic_id in (1, 3):
            shelf.write(topic_id, 0 if scan else 1, 1)
        connection = cast(Connection, Vanishing(shelf))
        if scan:
            rows = [row for step in shelf.log.scan(connection, NO_LIMIT) for row in step]
            assert [row.key.topic_id for row in rows] == [3]
        else:
            assert shelf.log.read(connection, 1, 0, 2, NO_LIMIT) == []


def test_a_stale_owner_begins_no_generation(shelf: ArchiveFolder) -> None:
    """Invariant 8."""
    lease.acquire(shelf.engine, shelf.lease.identity, 60_000, HandClock())
    with pytest.raises(LeaseLost):
        shelf.roll(2)
    assert shelf.connection.execute("SELECT COUNT(*) FROM generations").rows == [(1,)]


def test_a_roll_whose_reply_was_lost_is_given_up_by_the_next_try(shelf: ArchiveFolder) -> None:
    """N5: the generation is recorded, and nothing is in it."""
    shelf.log.prepare(shelf.engine, shelf.connection, shelf.lease, 4, 0)
    shelf.roll(2)
    shelf.write(1, 0, 1)
    assert shelf.read(1, 0, 1) == [0]
    assert (shelf.log.current.id, shelf.log.current.parallelism) == (3, 2)
    assert [(one.id, one.parallelism) for one in shelf.log.going] == [(2, 4)]
    again = Log.open(shelf.engine, shelf.connection, shelf.lease, 1, 0)
    assert (again.generations, again.going) == (shelf.log.generations, shelf.log.going)


def test_a_generation_ends_by_size_or_by_day() -> None:
    young = Generation(1, 2, 5 * DAY_MS, 0)
    assert not should_roll(young, 6 * DAY_MS), "an empty one may go on for ever"
    used = Generation(1, 2, 5 * DAY_MS, 10)
    assert not should_roll(used, 6 * DAY_MS - 1)
    assert should_roll(used, 6 * DAY_MS)
    assert should_roll(Generation(1, 2, 5 * DAY_MS, GENERATION_SIZE_BYTES), 5 * DAY_MS)


def test_when_messages_were_accepted_is_known_as_long_as_the_log_has_them(
    shelf: ArchiveFolder,
) -> None:
    """Rows are accepted at their base offset here; offsets may lie far apart."""
    for base in range(0, 3_000, 10):
        shelf.write(7, base, 10)
    shelf.roll(3)
    shelf.write(7, 3_000, 5)
    shelf.write(7, 3_005, 5)
    wanted = np.array([0, 9, 10, 1_999, 2_000, 2_995, 2_999, 3_004, 3_005, 3_009, 3_010, 9_000])
    found = shelf.log.accepted_ms(shelf.connection, 7, wanted)
    assert found.tolist() == [0, 0, 10, 1990, 2000, 2990, 2990, 3000, 3005, 3005, 0, 0]
    assert shelf.log.accepted_ms(shelf.connection, 7, np.arange(3_010)).tolist() == [
        n if n == 3_005 else n - n % 10 if n < 3_005 else 3_005 for n in range(3_010)
    ]
    assert not shelf.log.accepted_ms(shelf.connection, 8, wanted).any()


def restate(shelf: ArchiveFolder, topic_id: int, base: int, offsets: list[int]) -> None:
    column = np.array(offsets, np.int64)
    body = MessageBatch(Blobs.of([b"%d@%d." % (topic_id, offset) for offset in offsets])).encode()
    data = encode_row(0, column + 1, [body], Restating(column, column, column, column))
    row = NewRow(shelf.log.current, topic_id, base, len(column), 1, 1, 0, data)
    shelf.connection.begin()
    enter(shelf.connection, *insertion([row], shelf.lease.epoch))
    shelf.connection.commit()
    shelf.keys.append(RowKey(shelf.log.current.id, topic_id, base, len(column), len(data)))


def test_restatements_are_in_nobodys_way(shelf: ArchiveFolder) -> None:
    """B1: reading by offset goes past them; a scan and reading by key find them."""
    shelf.write(7, 0, 4)
    restate(shelf, 7, -1, [1, 3])
    shelf.roll(3)
    restate(shelf, 7, -2, [0])
    shelf.write(7, 4, 2)
    restate(shelf, 8, -1, [0])
    log, connection = shelf.log, shelf.connection
    assert shelf.read(7, 0, 6) == [0, 4]
    assert shelf.read(7, 3, 6) == [0, 4]
    assert log.end_offset(connection, 7) == 6
    assert log.end_offset(connection, 8) == 0
    assert log.lowest_base(connection, 7) == -2
    assert log.lowest_base(connection, 9) == 0
    found = [row for step in log.read_rows(connection, shelf.keys, NO_LIMIT) for row in step]
    named = [None if r.content.offsets is None else r.content.offsets.tolist() for r in found]
    assert named == [None, [1, 3], [0], None, [0]]
    scanned = {row.key for step in log.scan(connection, NO_LIMIT) for row in step}
    assert scanned == set(shelf.keys)
    for max_bytes, reads in ((NO_LIMIT, [4]), (0, [2, 2])):
        wanted, counts, bases = [-2, -7, -1, -9], [], []
        while wanted:
            rows, count = log.restatements(connection, 7, wanted, max_bytes)
            bases += [row.key.base_offset for row in rows]
            counts.append(count)
            wanted = wanted[count:]
        assert (bases, counts) == ([-2, -1], reads)


def test_the_rows_that_hold_some_messages_are_found_in_bounded_steps(shelf: ArchiveFolder) -> None:
    """B1: close together or far apart, in several generations, some not there at all."""
    for base in range(0, 1000, 5):
        shelf.write(7, base, 5)
    shelf.roll(3)
    restate(shelf, 7, -1, [3])
    for base in range(1000, 1500, 5):
        shelf.write(7, base, 4)  # one offset in five is missing
    wanted = np.array([0, 1, 7, 8, 400, 996, 1000, 1004, 1250, 1251, 1499, 9999], np.int64)
    bases: list[int] = []
    at = 0
    while at < len(wanted):
        rows, count = shelf.log.holding(shelf.connection, 7, wanted[at:], 0)
        assert count > 0
        assert len(rows) <= 1
        check_rows(rows)
        bases += [row.key.base_offset for row in rows]
        at += count
    assert bases == [0, 5, 400, 995, 1000, 1250]
    rows, count = shelf.log.holding(shelf.connection, 7, wanted, NO_LIMIT)
    assert [row.key.base_offset for row in rows] == bases
    assert count == len(wanted)
