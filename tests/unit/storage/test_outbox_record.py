"""The record of an outbox: ids of each kind, and the encoding of records stored before."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import numpy as np
import pytest

from escapement.storage import schema
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.storage.outbox.record import MovedRow, Record, RowId, read_record, write_batch

IDENTITY = bytes(16)


@pytest.mark.parametrize(
    "ids",
    [
        [],
        [1, -5, 2**63 - 1],
        ["a", "é", ""],
        [b"\x00\xff" * 8, b"\x01" * 16],
        [2**63, 2**64 - 1],
        [-(2**63), 1],
        [7, "seven", b"7"],
    ],
)
def test_record_keeps_the_ids_and_digests_of_its_rows(ids: Sequence[RowId]) -> None:
    engine = SqliteEngine.in_memory()
    schema.migrate(engine)
    rows = [MovedRow(id, bytes([at]) * 8) for at, id in enumerate(ids)]
    with closing(engine.connect()) as connection:
        connection.begin()
        write_batch(engine, connection, IDENTITY, Record(1, rows), list, 0)
        assert read_record(engine, connection, IDENTITY) == Record(1, rows)
        connection.commit()


def test_record_of_numbers_has_the_ids_and_then_the_digests() -> None:
    engine = SqliteEngine.in_memory()
    schema.migrate(engine)
    rows = [MovedRow(3, b"a" * 8), MovedRow(9, b"b" * 8)]
    stored = np.array([3, 9], "<i8").tobytes() + b"a" * 8 + b"b" * 8
    with closing(engine.connect()) as connection:
        connection.begin()
        write_batch(engine, connection, IDENTITY, Record(1, rows), list, 0)
        found = connection.execute("SELECT moved_rows FROM outboxes").rows[0][0]
        assert bytes(found) == stored
        connection.commit()
