"""The log rows of earlier owners, by due time and by table, on both engines."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import cast

import pytest

from escapement.storage.engine.base import Connection, Engine, Params, Result
from escapement.storage.engine.result_buffer import Landing
from escapement.storage.log.earlier_rows import BEGINNING, EarlierRows
from escapement.storage.log.log_table import NewRow, insertion
from support.seeds import named, seeds
from support.storage.commit_pipelines import enter
from support.storage.open_log import OpenLog


@pytest.fixture
def opened(engine: Engine) -> Iterator[OpenLog]:
    opened = OpenLog(engine)
    yield opened
    opened.connection.close()


def write(opened: OpenLog, topic_id: int, base: int, min_due_ms: int, epoch: int) -> None:
    row = NewRow(opened.log.current, topic_id, base, 1, min_due_ms, min_due_ms + 5, 7, b"row")
    opened.connection.begin()
    enter(opened.connection, *insertion([row], epoch))
    opened.connection.commit()


@pytest.mark.parametrize("seed", seeds(range(3)))
def test_rows_are_found_in_both_orders_wherever_a_read_begins(opened: OpenLog, seed: int) -> None:
    """B5: rows of several tables and generations, restatements, and equal due times."""
    rng = random.Random(seed)
    with named(seed, []):
        written = []
        for number in range(80):
            if number % 30 == 29:
                opened.roll(rng.choice([1, 3]))
            row = (rng.randrange(1, 5), rng.choice([number, -number - 1]), rng.randrange(12))
            epoch = rng.choice([3, 3, 4])
            write(opened, *row, epoch)
            written += [row] if epoch < 4 else []
        rows = EarlierRows(opened.log.generations, 4)
        low, until = sorted(rng.sample(range(14), 2))
        heads = list(rows.due_between(opened.connection, low, until))
        assert [head.min_due_ms for head in heads] == sorted(head.min_due_ms for head in heads)
        found = sorted((h.key.topic_id, h.key.base_offset, h.min_due_ms) for h in heads)
        assert found == sorted(row for row in written if low <= row[2] < until)
        everything = list(rows.after(opened.connection, BEGINNING))
        keys = [(h.key.topic_id, h.key.base_offset, h.min_due_ms) for _, h in everything]
        assert sorted(keys) == sorted(written)
        at = rng.randrange(len(everything))
        assert list(rows.after(opened.connection, everything[at][0])) == everything[at + 1 :]


class Recorded:
    """A connection that notes the statements that it runs."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.statements: list[tuple[str, Params]] = []

    def execute(self, sql: str, params: Params = (), into: Landing | None = None) -> Result:
        self.statements.append((sql, params))
        return self._connection.execute(sql, params, into)


@pytest.fixture
def recorded(opened: OpenLog) -> Recorded:
    return Recorded(opened.connection)


def test_rows_due_first_are_found_by_an_index_of_the_database(
    opened: OpenLog, recorded: Recorded
) -> None:
    """B5: the database reads the rows that are due, and not the whole table."""
    for number in range(1_000):
        write(opened, 2, number, 10_000 + number, 1)
    before = rows_read(opened)
    rows = EarlierRows(opened.log.generations, 4)
    assert len(list(rows.due_between(cast(Connection, recorded), 0, 10_010))) == 10
    assert rows_read(opened) - before <= 2 * 10
    for plan in plans(opened, recorded):
        assert f"{opened.log.current.table(2)}_due" in plan.split(), plan


@pytest.mark.parametrize("until_ms", [10_001, 20_000])
def test_page_begins_at_its_first_row_among_many_with_the_same_due_time(
    opened: OpenLog, recorded: Recorded, until_ms: int
) -> None:
    """B5: no page reads the rows of the pages before it again, which all have its due time."""
    for number in range(1_000):
        write(opened, 2, number, 10_000, 1)
    before = rows_read(opened)
    rows = EarlierRows(opened.log.generations, 4)
    heads = rows.due_between(cast(Connection, recorded), 0, until_ms)
    assert [head.key.base_offset for head in heads] == list(range(1_000))
    assert rows_read(opened) - before <= 1_000 + 20
    # The first page begins at a due time. The last two look for other topics and due times.
    for plan in plans(opened, recorded)[1:-2]:
        assert "(min_due_ms=? AND topic_id=? AND base_offset>?)" in plan, plan


def rows_read(opened: OpenLog) -> int:
    """Return how many rows MySQL has read for this connection, one after another in an index.

    SQLite does not count them; :func:`plans` tells how it reads.
    """
    if opened.engine.kind == "sqlite":
        return 0
    sql = "SHOW SESSION STATUS LIKE 'Handler_read_next'"
    ((_, count),) = opened.connection.execute(sql).rows
    return int(count)


def plans(opened: OpenLog, recorded: Recorded) -> list[str]:
    """Return how SQLite finds the rows of each recorded statement about topic 2."""
    if opened.engine.kind != "sqlite":
        return []
    table = opened.log.current.table(2)
    found = []
    for sql, params in recorded.statements:
        if table in sql:
            (row,) = opened.connection.execute(f"EXPLAIN QUERY PLAN {sql}", params).rows
            found.append(" ".join(map(str, row)))
    assert found, "no statement was about the topic"
    return found
