"""Archived and live messages are read as one table, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from escapement.errors import InvalidRequest, LogDamaged, LogForgotten
from escapement.pipeline.archive_manifest import ArchivedFile
from escapement.pipeline.arrow import arrow_schema
from escapement.pipeline.options import Options
from escapement.pipeline.selection import Selection, Span
from escapement.pipeline.source.archived_reading import ArchivedPart, read_archived
from escapement.pipeline.source.planning import BatchPlan
from escapement.pipeline.source.reading import read_part
from support.storage.eventful_log import TOPIC
from support.storage.forgotten_log import NAMES, ForgottenLog, ms, open_forgotten_log


@pytest.fixture(scope="module", params=["sqlite", "mysql"])
def log(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ForgottenLog]:
    url = request.getfixturevalue("mysql_url_of_module") if request.param == "mysql" else None
    with open_forgotten_log(url, tmp_path_factory.mktemp("data")) as found:
        yield found


def test_archived_and_live_messages_are_read_as_one_table(log: ForgottenLog) -> None:
    """N8, V15: each message has one row, equal to that before the log forgot it."""
    assert len(log.before) == 320
    after = log.read()
    assert [row["offset"] for row in after] == list(range(320))
    for was, found in zip(log.before, after, strict=True):
        if was["state"] in ("acked", "cancelled") or was["offset"] >= 300:
            assert found == was
        else:
            assert {**found, "state": "", "attempt": 0} == {**was, "state": "", "attempt": 0}
    assert len(log.read(minPartitions="5")) == 320


def test_archives_are_left_out_if_archived_is_false(log: ForgottenLog) -> None:
    """B7: then forgotten messages are missing."""
    live = [*range(150, 300, 15), *range(300, 320)]
    assert [row["offset"] for row in log.read("offset", archived="false")] == live
    assert len(log.read("offset", startingOffsets="1")) == 319
    with pytest.raises(LogForgotten, match="begins at 300, not at 1"):
        log.read("offset", startingOffsets="1", archived="false")


def test_ranges_and_columns_narrow_the_read_of_an_archive(log: ForgottenLog) -> None:
    """B7: ranges select files, row groups and rows. A column has the same values if read alone."""
    due = log.before[200]["deliver_at"].isoformat()
    for options, wanted in (
        ({"startingOffsets": "37", "endingOffsets": "143"}, range(37, 143)),
        ({"startingOffsets": "300"}, range(300, 320)),
        ({"startingTimestamp": due, "endingOffsets": "10"}, range(10)),
    ):
        assert [row["offset"] for row in log.read("offset", **options)] == list(wanted), options
    cancelled = list(range(0, 150, 15))
    later = log.read("offset", startingDeliverAt=str(ms(log.before[0]["deliver_at"])))
    assert [row["offset"] for row in later if row["offset"] < 150] == cancelled
    for name in NAMES:
        found = log.read(*dict.fromkeys(("offset", name)))
        assert [row[name] for row in found[:140]] == [row[name] for row in log.before[:140]]
    plan = BatchPlan(Options({"topic": TOPIC, **log.address, "endingOffsets": "60"}), ["offset"])
    (part,) = [part for part in plan.parts() if isinstance(part, ArchivedPart)]
    assert len(part.files) == 1


def test_states_are_those_of_the_named_subscription(log: ForgottenLog) -> None:
    """B7, Q2."""
    states = {row["offset"]: row["state"] for row in log.read("offset", "state", subscription="s")}
    assert (states[0], states[1], states[150]) == ("cancelled", "acknowledged", "pending")


def test_messages_forgotten_after_planning_are_read_from_the_archive(
    log: ForgottenLog,
) -> None:
    """B7, N8: messages that are not archived are lost."""
    plan = BatchPlan(Options({"topic": TOPIC, **log.address}), ["offset"])
    part = next(part for part in plan.parts() if not isinstance(part, ArchivedPart))
    schema = arrow_schema([("offset", True)])

    def read(low: int, high: int) -> list[int]:
        # Pretend that the log began earlier when the read was planned.
        early = replace(part, begin_offset=0, offsets=Span(low, high))
        batches = read_part(log.engine, early, schema)
        return sorted(n for batch in batches for n in batch["offset"].to_pylist())

    assert read(100, 150) == list(range(100, 150))
    with pytest.raises(LogForgotten, match="messages from 280 on"):
        read(280, 310)  # offset 285 was restated
    part = replace(part, fail_on_loss=False)
    assert read(280, 310) == [n for n in range(280, 310) if n != 285]


def test_repeated_values_of_a_file_are_read_in_bounded_batches(tmp_path: Path) -> None:
    """N8: a file stores a repeated value once, but memory holds every copy."""
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


def test_error_for_an_unreadable_archive_says_what_to_do(log: ForgottenLog) -> None:
    """N8: a file system that pyarrow does not know, a missing file, and a different file."""
    plan = BatchPlan(Options({"topic": TOPIC, **log.address}), ["offset"])
    part = next(part for part in plan.parts() if isinstance(part, ArchivedPart))
    schema = arrow_schema([("offset", True)])
    ((root, file), *_) = part.files
    for other, error, said in (
        (("oss://bucket/archive", file), InvalidRequest, "option archived to false"),
        ((root, replace(file, path="gone")), InvalidRequest, "pyarrow cannot open"),
        ((root, replace(file, messages=7)), LogDamaged, "has 100 messages, not 7"),
    ):
        with pytest.raises(error, match=said):
            list(read_archived(replace(part, files=(other,)), schema))
