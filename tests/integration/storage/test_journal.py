"""The journal: replay order, trims and known positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from escapement.errors import LogDamaged
from escapement.storage.cleanup.forgetting import named_by_journal
from escapement.storage.engine.base import Connection, Engine, Result
from escapement.storage.journal import journal
from escapement.storage.journal.entry import JournalEntry, ProducerMark, encode_entry
from escapement.storage.journal.journal import START, JournalPosition
from escapement.storage.log.generation import Generation
from support.storage.commit_pipelines import enter


def position(lane: int, seq: int) -> JournalPosition:
    return JournalPosition(seq, b"%04d%04d" % (lane, seq))


def write(connection: Connection, epoch: int, lane: int, *seqs: int) -> None:
    for seq in seqs:
        entry = JournalEntry(producers=[ProducerMark(lane, seq, 0)])
        data = encode_entry(entry)
        enter(connection, journal.insertion(0, lane, position(lane, seq), epoch, 5, data))


def trim(connection: Connection, positions: dict[int, JournalPosition]) -> int:
    """Trim the journal and return the number of steps."""
    steps = 1
    while journal.trim_step(connection, 0, positions):
        steps += 1
        for lane, at in journal.trims(connection, 0).items():
            assert journal.knows(connection, 0, lane, at)
    return steps


def read(connection: Connection, after: dict[int, int] | None = None) -> list[tuple[int, ...]]:
    rows = list(journal.read(connection, 0, after))
    assert all(row.position == position(row.lane, row.position.seq) for row in rows)
    assert all(row.entry.producers[0][:2] == (row.lane, row.position.seq) for row in rows)
    return [(row.epoch, row.lane, row.position.seq) for row in rows]


def test_journal_is_ordered_by_epoch_before_lane(connection: Connection) -> None:
    """A topic of lane 2 may move to lane 0 after a start with fewer lanes."""
    write(connection, 1, 2, *range(1, 100))
    write(connection, 1, 0, 1, 2)
    write(connection, 2, 0, 3, 4)
    write(connection, 3, 2, 100)
    write(connection, 3, 0, 5)
    assert read(connection) == [
        (1, 0, 1),
        (1, 0, 2),
        *((1, 2, seq) for seq in range(1, 100)),
        (2, 0, 3),
        (2, 0, 4),
        (3, 0, 5),
        (3, 2, 100),
    ]
    assert read(connection, {2: 99, 0: 4}) == [(3, 0, 5), (3, 2, 100)]


def test_bundles_have_separate_journals(connection: Connection) -> None:
    write(connection, 1, 0, 1)
    assert list(journal.read(connection, 1)) == []
    assert journal.ends(connection, 1) == {}


def test_trimmed_lane_continues_its_sequence(connection: Connection) -> None:
    write(connection, 1, 0, 1, 2, 3)
    write(connection, 1, 1, 1, 2)
    trim(connection, {0: position(0, 3), 1: position(1, 1)})
    assert read(connection) == [(1, 1, 2)]
    assert journal.ends(connection, 0) == {0: position(0, 3), 1: position(1, 2)}
    assert journal.trims(connection, 0) == {0: position(0, 3), 1: position(1, 1)}


def test_a_long_lane_is_trimmed_in_steps(connection: Connection) -> None:
    connection.begin()
    write(connection, 1, 0, *range(1, 1301))
    connection.commit()
    assert trim(connection, {0: position(0, 1100)}) == 3
    assert journal.trims(connection, 0) == {0: position(0, 1100)}
    assert [seq for *_, seq in read(connection)] == list(range(1101, 1301))
    assert trim(connection, {0: position(0, 1100)}) == 1


def test_position_is_known_from_the_trim_on_and_only_with_its_group_id(
    connection: Connection,
) -> None:
    assert journal.knows(connection, 0, 0, START)
    assert not journal.knows(connection, 0, 0, position(0, 1))
    write(connection, 1, 0, 1, 2, 3)
    trim(connection, {0: position(0, 2)})
    assert journal.knows(connection, 0, 0, position(0, 2)), "complete up to the trim"
    assert journal.knows(connection, 0, 0, position(0, 3))
    assert not journal.knows(connection, 0, 0, START), "entries past it are gone"
    assert not journal.knows(connection, 0, 0, position(0, 1))
    assert not journal.knows(connection, 0, 0, position(0, 4)), "a restored database"
    assert not journal.knows(connection, 0, 0, JournalPosition(3, b"another!"))
    assert not journal.knows(connection, 0, 0, JournalPosition(2, b"another!"))


@pytest.mark.parametrize("seq", [1, 2])
def test_missing_entry_raises_log_damaged(connection: Connection, seq: int) -> None:
    write(connection, 1, 0, 1, 2, 3)
    connection.execute("DELETE FROM journal WHERE seq = ?", (seq,))
    with pytest.raises(LogDamaged, match=f"lane 0 of the journal lacks entry {seq}"):
        read(connection)


def test_error_names_the_damaged_entry(connection: Connection) -> None:
    write(connection, 1, 0, 1, 2)
    connection.execute("UPDATE journal SET data = ? WHERE seq = 2", (b"\x01" + b"?" * 40,))
    with pytest.raises(LogDamaged, match=r"journal lane 0, entry 2: .*checksum"):
        read(connection)


class Interrupted:
    """A connection that calls ``meanwhile`` after its first statement."""

    def __init__(self, connection: Connection, meanwhile: Callable[[], object]) -> None:
        self._connection = connection
        self._meanwhile: Callable[[], object] | None = meanwhile

    def execute(self, sql: str, params: tuple[object, ...] = ()) -> Result:
        result = self._connection.execute(sql, params)
        if self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            meanwhile()
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def test_checkpoint_that_trims_the_journal_does_not_disturb_the_forgetter(
    engine: Engine, connection: Connection
) -> None:
    """P11: a checkpoint trims the journal after the forgetter has read where it begins."""
    write(connection, 1, 0, *range(1, 10))
    other = engine.connect()
    try:
        interrupted = Interrupted(connection, lambda: trim(other, {0: position(0, 5)}))
        generation = Generation(1, 4, 0, 0)
        assert not named_by_journal(cast(Connection, interrupted), 0, generation)
        assert read(connection) == [(1, 0, seq) for seq in range(6, 10)]
    finally:
        other.close()
