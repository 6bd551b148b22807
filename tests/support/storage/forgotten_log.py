"""A log whose first generation is deleted; the done messages of it are archived."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

import escapement
from escapement import testing
from escapement.pipeline.archive_manifest import ArchivedFile, Manifest
from escapement.pipeline.arrow import arrow_schema
from escapement.pipeline.columns import READ_COLUMNS
from escapement.pipeline.options import Options
from escapement.pipeline.source.archived_reading import ArchivedPart, read_archived
from escapement.pipeline.source.planning import BatchPlan
from escapement.pipeline.source.reading import read_part
from escapement.storage import archive_record
from escapement.storage.archive_record import ArchiveRecord
from escapement.storage.engine.base import Engine
from escapement.storage.engine.open import open_engine
from escapement.storage.log.generation import read_generations
from escapement.storage.offsets import OffsetSet
from escapement.testing import World, arrived
from support.faults.dying_brokers import finish
from support.storage.eventful_log import CONFIG, DAY_MS, HOUR, TOPIC

NAMES = tuple(READ_COLUMNS)
Row = dict[str, Any]


@dataclass
class ForgottenLog:
    """A log whose first generation is deleted; some messages are archived, some relocated."""

    engine: Engine
    address: dict[str, str]
    before: list[Row]  # all rows before the deletion, by offset
    root: Path

    def read(self, *columns: str, **options: str) -> list[Row]:
        given = {"topic": TOPIC, **self.address, **options}
        names = columns or NAMES
        return rows_of(self.engine, BatchPlan(Options(given), names), names)


def rows_of(engine: Engine, plan: BatchPlan, names: tuple[str, ...]) -> list[Row]:
    """Return the messages, by offset, of parts that were pickled and unpickled."""
    found: list[Row] = []
    schema = arrow_schema([(name, True) for name in names])
    for part in pickle.loads(pickle.dumps(plan.parts())):
        if isinstance(part, ArchivedPart):
            batches = read_archived(part, schema)
        else:
            batches = read_part(engine, part, schema)
        for batch in batches:
            batch.validate(full=True)
            found += batch.to_pylist()
    return sorted(found, key=lambda row: row["offset"])


def archived(engine: Engine, address: dict[str, str], root: Path, run: str, low: int) -> None:
    """Archive the done messages from offset ``low`` on in two files, as the archive job does."""
    plan = BatchPlan(Options({"topic": TOPIC, **address, "startingOffsets": str(low)}), NAMES)
    rows = [row for row in rows_of(engine, plan, NAMES) if row["state"] in ("acked", "cancelled")]
    schema = arrow_schema([(name, True) for name in NAMES])
    files = []
    root.mkdir(exist_ok=True)
    for number, some in enumerate((rows[:100], rows[100:])):
        table = pa.Table.from_pylist(some, schema=schema).drop_columns(["topic"])
        path = root / f"{run}%2F{number}.parquet"
        parquet.write_table(table, path, compression="zstd", row_group_size=40)
        offsets = [row["offset"] for row in some]
        due = [ms(row["deliver_at"]) for row in some]
        published = [ms(row["published_at"]) for row in some]
        content = path.read_bytes()
        files.append(
            ArchivedFile(
                path.name,
                len(content),
                sha256(content).hexdigest(),
                len(some),
                min(offsets),
                max(offsets),
                *(min(due), max(due), min(published), max(published)),
                content="",
            )
        )
    manifest = Manifest(TOPIC, 1, "00", run, f"file:{root}", 0, tuple(files))
    whole = OffsetSet()
    whole.add(np.array([row["offset"] for row in rows]))
    bounds = manifest.first_offset, manifest.last_offset
    row = ArchiveRecord(1, run, 0, len(whole), manifest.size_bytes, *bounds, manifest.encode())
    connection = engine.connect()
    archive_record.record(engine, connection, row, whole)
    connection.close()


def ms(at: Any) -> int:
    return int(at.timestamp() * 1000 + 0.5)


async def publish(world: World, broker: escapement.Broker) -> None:
    """Publish 300 messages: ten stay pending, ten are cancelled, the rest is acknowledged."""
    async with await broker.producer(TOPIC) as producer:
        await producer.send_many(
            [b"%d" % n + b"." * 200 for n in range(300)],
            delay=[60 * HOUR if n % 15 == 0 else None for n in range(300)],
            keys=[f"k{n}" if n % 2 else None for n in range(300)],
            properties=[{"n": str(n) if n % 7 else None} if n % 3 else {} for n in range(300)],
            priorities=[n % 256 for n in range(300)],
        )
    async with broker.consumer(TOPIC, "s", permits=1000) as inbox:
        await inbox.ack([message.id for message in await arrived(inbox)], durable=True)
    await broker.cancel(list(range(0, 150, 15)), topic=TOPIC)
    await world.checkpoint()


async def live(engine: Engine, on_published: Callable[[], None]) -> None:
    start_ms = int(time.time() * 1000) - 2 * DAY_MS
    async with testing.start(config=CONFIG, engine=engine, start_ms=start_ms) as world:
        async with world.connect() as broker:
            await broker.admin("namespaces.create", namespace="shop/eu")
            policy = {"retention_ms": "0s", "archive": "yes"}
            await broker.admin("namespaces.update", namespace="shop/eu", policy=policy)
            await broker.admin("subscriptions.create", topic=TOPIC, subscription="s")
            await publish(world, broker)
            world.clock.set_back(-DAY_MS)
            await finish(world, world.server.services.housekeeper.round)
            async with await broker.producer(TOPIC) as producer:
                await producer.send_many([b"new %d" % n for n in range(20)])
            await world.checkpoint()
            on_published()
            await finish(world, world.server.services.forgetter.round)


@contextmanager
def open_forgotten_log(url: str | None, data: Path) -> Iterator[ForgottenLog]:
    """Create the log on MySQL, or else on SQLite in ``data``. The archive is in ``data``."""
    engine = open_engine(url, data)
    found = ForgottenLog(
        engine, {"url": url} if url else {"data": str(data)}, [], data / "an archive"
    )

    def published() -> None:
        found.before = found.read()
        archived(engine, found.address, found.root, "one", 0)

    try:
        testing.run(live, engine, published)
        with closing(engine.connect()) as connection:
            assert [one.id for one in read_generations(connection)] == [2], "the first is deleted"
        yield found
    finally:
        engine.close()
