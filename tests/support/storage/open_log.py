"""A log that tests write to and read from without a broker."""

from __future__ import annotations

import numpy as np

from escapement.message import Blobs, MessageBatch
from escapement.storage import lease, schema
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.lease import Identity, Lease
from escapement.storage.log.log import Log
from escapement.storage.log.log_row import encode_row
from escapement.storage.log.log_table import LogRow, NewRow, RowKey, insertion
from support.storage.commit_pipelines import HandClock, enter

NO_LIMIT = 1 << 40


class OpenLog:
    """A log with its connection, its lease and the keys of its rows."""

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
        rows, _ = self.log.read_due(self.connection, topic_id, low, high, 0, limit)
        check_rows(rows)
        return [row.key.base_offset for row in rows]


def check_rows(rows: list[LogRow]) -> None:
    for row in rows:
        first = row.content.batch().payloads.to_list()[0]
        assert first.startswith(b"%d@%d." % (row.key.topic_id, row.key.base_offset))
        assert row.content.due_ms.tolist() == list(range(row.key.base_offset, row.key.end_offset))
