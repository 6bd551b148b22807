"""What is archived and what is live are read as one table; both databases."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import escapement
from dying import finish
from escapement import testing
from escapement.errors import InvalidRequest, LogDamaged, LogForgotten
from escapement.pipeline.archived import ArchivedPart, read_archived
from escapement.pipeline.archivemanifest import ArchivedFile, Manifest
from escapement.pipeline.arrow import arrow_schema
from escapement.pipeline.columns import READ_COLUMNS
from escapement.pipeline.options import Options
from escapement.pipeline.planning import BatchPlan
from escapement.pipeline.reading import read_part
from escapement.pipeline.selection import Selection, Span
from escapement.storage import archive
from escapement.storage.archive import ArchiveRecord
from escapement.storage.engine.base import Engine
from escapement.storage.engine.open import open_engine
from escapement.storage.log.generation import read_generations
from escapement.storage.offsets import OffsetSet
from escapement.testing import World, arrived
from storied import CONFIG, DAY_MS

TOPIC = "shop/eu/orders"
NAMES = tuple(READ_COLUMNS)
HOUR = timedelta(hours=1)
Row = dict[str, Any]


@dataclass
class Shop:
    """A log of which the first generation is forgotten: some archived, some relocated."""

    engine: Engine
    address: dict[str, str]
    before: list[Row]  # what there was, by offset
    root: Path

    def read(self, *columns: str, **options: str) -> list[Row]:
        given = {"topic": TOPIC, **self.address, **options}
        names = columns or NAMES
        return rows_of(self.engine, BatchPlan(Options(given), names), names)


def rows_of(engine: Engine, plan: BatchPlan, names: tuple[str, ...]) -> list[Row]:
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
    """What is done from offset ``low`` on, in two files, as the job would leave it."""
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
    archive.record(engine, connection, row, whole)
    connection.close()


def ms(at: Any) -> int:
    return int(at.timestamp() * 1000 + 0.5)


async def publish(world: World, broker: escapement.Broker) -> None:
    """300 messages, of which ten wait, ten are cancelled, and the rest is acknowledged."""
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
            await finish(world, world.server.works.housekeeper.round)
            async with await broker.producer(TOPIC) as producer:
                await producer.send_many([b"new %d" % n for n in range(20)])
            await world.checkpoint()
            on_published()
            await finish(world, world.server.works.forgetter.round)


@pytest.fixture(scope="module", params=["sqlite", "mysql"])
def shop(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    url = request.getfixturevalue("mysql_url_of_module") if request.param == "mysql" else None
    data = tmp_path_factory.mktemp("data")
    engine = open_engine(url, data)
    found = Shop(engine, {"url": url} if url else {"data": str(data)}, [], data / "an archive")

    def published() -> None:
        found.before = found.read()
        archived(engine, found.address, found.root, "one", 0)

    testing.run(live, engine, published)
    connection = engine.connect()
    assert [one.id for one in read_generations(connection)] == [2], "the first is forgotten"
    connection.close()
    yield found
    engine.close()


def test_what_is_archived_and_what_is_live_is_one_table(shop: Shop) -> None:
    """N8, V15: as it was before the log forgot it, each once, in every column."""
    assert len(shop.before) == 320
    after = shop.read()
    assert [row["offset"] for row in after] == list(range(320))
    for was, found in zip(shop.before, after, strict=True):
        if was["state"] in ("acked", "cancelled") or was["offset"] >= 300:
            assert found == was
        else:
            assert {**found, "state": "", "attempt": 0} == {**was, "state": "", "attempt": 0}
    assert len(shop.read(minPartitions="5")) == 320


def test_archives_are_left_out_where_that_is_said(shop: Shop) -> None:
    """B7: then the log has forgotten what it has forgotten."""
    live = [*range(150, 300, 15), *range(300, 320)]
    assert [row["offset"] for row in shop.read("offset", archived="false")] == live
    assert len(shop.read("offset", startingOffsets="1")) == 319
    with pytest.raises(LogForgotten, match="begins at 300, not at 1"):
        shop.read("offset", startingOffsets="1", archived="false")


def test_ranges_and_columns_narrow_what_is_read_of_an_archive(shop: Shop) -> None:
    """B7: by files, row groups and rows, and a message comes as with all its columns."""
    due = shop.before[200]["deliver_at"].isoformat()
    for options, wanted in (
        ({"startingOffsets": "37", "endingOffsets": "143"}, range(37, 143)),
        ({"startingOffsets": "300"}, range(300, 320)),
        ({"startingTimestamp": due, "endingOffsets": "10"}, range(10)),
    ):
        assert [row["offset"] for row in shop.read("offset", **options)] == list(wanted), options
    cancelled = list(range(0, 150, 15))
    later = shop.read("offset", startingDeliverAt=str(ms(shop.before[0]["deliver_at"])))
    assert [row["offset"] for row in later if row["offset"] < 150] == cancelled
    for name in NAMES:
        found = shop.read(*dict.fromkeys(("offset", name)))
        assert [row[name] for row in found[:140]] == [row[name] for row in shop.before[:140]]
    plan = BatchPlan(Options({"topic": TOPIC, **shop.address, "endingOffsets": "60"}), ["offset"])
    (part,) = [part for part in plan.parts() if isinstance(part, ArchivedPart)]
    assert len(part.files) == 1


def test_states_are_a_subscriptions_where_one_is_named(shop: Shop) -> None:
    """B7, Q2."""
    states = {row["offset"]: row["state"] for row in shop.read("offset", "state", subscription="s")}
    assert (states[0], states[1], states[150]) == ("cancelled", "acknowledged", "pending")


def test_what_is_forgotten_between_planning_and_reading_is_read_from_the_archive(
    shop: Shop,
) -> None:
    """B7, N8: as far as it is there; the rest is lost."""
    plan = BatchPlan(Options({"topic": TOPIC, **shop.address}), ["offset"])
    part = next(part for part in plan.parts() if not isinstance(part, ArchivedPart))
    schema = arrow_schema([("offset", True)])

    def read(low: int, high: int) -> list[int]:
        # As if the log had begun earlier when the read was planned.
        early = replace(part, begin_offset=0, offsets=Span(low, high))
        batches = read_part(shop.engine, early, schema)
        return sorted(n for batch in batches for n in batch["offset"].to_pylist())

    assert read(100, 150) == list(range(100, 150))
    with pytest.raises(LogForgotten, match="messages from 280 on"):
        read(280, 310)  # 285 was stated again
    part = replace(part, fail_on_loss=False)
    assert read(280, 310) == [n for n in range(280, 310) if n != 285]


def test_what_repeats_in_a_file_is_read_in_bounded_batches(tmp_path: Path) -> None:
    """N8: a file has it once, memory as often as it comes."""
    count, payload = 20_000, b"x" * 2_000
    columns = {"offset": pa.array(range(count), pa.int64()), "payload": [payload] * count}
    parquet.write_table(pa.table(columns), tmp_path / "file")
    assert (tmp_path / "file").stat().st_size < 1 << 20
    file = ArchivedFile("file", 0, "", count, 0, count - 1, 0, 0, 0, 0, "")
    part = ArchivedPart(TOPIC, ((tmp_path.as_uri(), file),), Selection(), np.zeros(0, int), None)
    sizes = [
        (len(batch), batch.nbytes)
        for batch in read_archived(part, arrow_schema([("offset", True), ("payload", True)]))
    ]
    assert sum(rows for rows, _ in sizes) == count
    assert max(size_bytes for _, size_bytes in sizes) < 10 << 20


def test_what_cannot_be_opened_says_what_to_do(shop: Shop) -> None:
    """N8: a file system that pyarrow does not know, a file that is gone or another."""
    plan = BatchPlan(Options({"topic": TOPIC, **shop.address}), ["offset"])
    part = next(part for part in plan.parts() if isinstance(part, ArchivedPart))
    schema = arrow_schema([("offset", True)])
    ((root, file), *_) = part.files
    for other, error, said in (
        (("oss://bucket/archive", file), InvalidRequest, "set archived to false"),
        ((root, replace(file, path="gone")), InvalidRequest, "cannot be opened by pyarrow"),
        ((root, replace(file, messages=7)), LogDamaged, "has 100 messages, not 7"),
    ):
        with pytest.raises(error, match=said):
            list(read_archived(replace(part, files=(other,)), schema))
