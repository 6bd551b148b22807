"""Reads without Spark: from options to parts to Arrow batches."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StructField,
    StructType,
    TimestampNTZType,
)

from escapement import testing
from escapement.errors import InvalidRequest, LogForgotten, NotFound
from escapement.pipeline.arrow import arrow_schema
from escapement.pipeline.columns import READ_COLUMNS
from escapement.pipeline.options import Options
from escapement.pipeline.selection import Span
from escapement.pipeline.source.archived_reading import ArchivedPart
from escapement.pipeline.source.batch_reader import check_types, read_partition
from escapement.pipeline.source.part import Part
from escapement.pipeline.source.planning import BatchPlan
from escapement.pipeline.source.reading import read_part
from escapement.pipeline.source.streaming import StreamPlan
from escapement.storage.engine.base import Engine
from escapement.storage.engine.open import open_engine
from escapement.storage.engine.sqlite import FILE_NAME, SqliteEngine
from escapement.storage.log.log import Log
from support.storage.eventful_log import CONFIG, HOUR_MS, TOPIC, Expected, fill
from support.storage.forgotten_log import rows_of

FilledLog = tuple[Engine, dict[str, str], list[Expected]]


@pytest.fixture(scope="module", params=["sqlite", "mysql"])
def log(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FilledLog]:
    """A log with a long history, the options that name it, and its expected messages."""
    url = request.getfixturevalue("mysql_url_of_module") if request.param == "mysql" else None
    directory = tmp_path_factory.mktemp("log")
    engine = open_engine(url, directory)
    expected = fill(engine)
    yield engine, {"url": url} if url else {"data": str(directory)}, expected
    engine.close()


def read(log: FilledLog, *columns: str, **options: str) -> list[dict[str, Any]]:
    """Return the messages, by offset, of parts that were pickled and unpickled."""
    engine, address, _ = log
    names = columns or tuple(READ_COLUMNS)
    plan = BatchPlan(Options({"topic": TOPIC, **address, **options}), names)
    return rows_of(engine, plan, names)


def offsets(rows: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in rows]


def instant(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def test_every_message_is_read_once_in_its_current_state(log: FilledLog) -> None:
    """B7, V15: acknowledged, cancelled, retried, moved and relocated, live and finished ones."""
    for options in ({}, {"minPartitions": "7"}, {"maxRecordsPerPartition": "40"}):
        rows = read(log, **options)
        assert offsets(rows) == [one.offset for one in log[2]]
        for row, one in zip(rows, log[2], strict=True):
            assert row == {
                "topic": TOPIC,
                "offset": one.offset,
                "deliver_at": instant(one.deliver_ms),
                "published_at": instant(one.published_ms),
                "key": one.key,
                "properties": list(one.properties.items()),
                "priority": one.priority,
                "attempt": one.attempt,
                "state": one.state,
                "payload": one.payload,
            }


def test_all_columns_are_read_without_pandas(log: FilledLog) -> None:
    """N8: importing pandas takes longer than many a whole task."""
    program = """
import json, sys
from escapement.pipeline.arrow import arrow_schema
from escapement.pipeline.columns import READ_COLUMNS
from escapement.pipeline.options import Options
from escapement.pipeline.source.planning import BatchPlan
from escapement.pipeline.source.reading import read_part
plan = BatchPlan(Options(json.loads(sys.argv[1])), list(READ_COLUMNS))
engine = plan.address.engine()
schema = arrow_schema([(name, True) for name in READ_COLUMNS])
found = sum(len(batch) for part in plan.parts() for batch in read_part(engine, part, schema))
engine.close()
print(found, "pandas" in sys.modules)
"""
    options = json.dumps({"topic": TOPIC, **log[1]})
    command = [sys.executable, "-c", program, options]
    said = subprocess.run(command, capture_output=True, text=True)
    assert (said.stdout, said.stderr) == (f"{len(log[2])} False\n", "")


def test_state_and_attempt_are_those_of_the_named_subscription(log: FilledLog) -> None:
    """B7, Q2."""
    theirs = {"acked": "acknowledged", "cancelled": "cancelled", "to_be_fired": "pending"}
    rows = read(log, "offset", "state", "attempt", subscription="s")
    assert [(row["state"], row["attempt"]) for row in rows] == [
        (theirs.get(one.state, "in retry" if one.attempt else "waiting"), one.attempt)
        for one in log[2]
    ]
    with pytest.raises(NotFound, match="no subscription nobody"):
        read(log, subscription="nobody")
    with pytest.raises(NotFound, match="no subscription nobody"):
        read(log, subscription="nobody", startingOffsets="500")  # the range is empty


def test_ranges_of_offsets_and_times_are_options(log: FilledLog) -> None:
    """B7."""
    expected = log[2]
    now_ms = expected[-1].published_ms
    due_ms = now_ms + 2 * HOUR_MS
    span = [one.offset for one in expected if 250 <= one.offset < 320]
    whole = [one.offset for one in expected]
    later = [one.offset for one in expected if one.deliver_ms >= due_ms]
    earlier = [one.offset for one in expected if one.deliver_ms < due_ms]
    for options, wanted in (
        ({"startingOffsets": "250", "endingOffsets": "320"}, span),
        ({"startingOffsets": json.dumps({TOPIC: 250}), "endingOffsets": "320"}, span),
        ({"startingOffsets": "-2", "endingOffsets": "-1"}, whole),
        ({"startingOffsets": json.dumps({TOPIC: -2}), "endingOffsets": "LATEST"}, whole),
        ({"endingOffsets": json.dumps({TOPIC: -1})}, whole),
        ({"startingTimestamp": str(now_ms)}, [one.offset for one in expected[2:]]),
        ({"endingTimestamp": str(now_ms)}, [50, 150]),
        ({"startingDeliverAt": instant(due_ms).isoformat()}, later),
        ({"endingDeliverAt": str(due_ms)}, earlier),
    ):
        assert offsets(read(log, "offset", **options)) == wanted, options


def test_filters_narrow_the_read_and_exclude_no_matching_message(log: FilledLog) -> None:
    """B7: Spark applies the filters again to the rows it receives."""
    engine, address, expected = log
    now_ms = expected[-1].published_ms
    names = ("offset", "deliver_at", "published_at")
    compare = {
        "=": lambda a, b: a == b,
        "<": lambda a, b: a < b,
        "<=": lambda a, b: a <= b,
        ">": lambda a, b: a > b,
        ">=": lambda a, b: a >= b,
    }
    for column, values in {
        "offset": [0, 150, 311, 499, 10_000],
        "published_at": [
            instant(now_ms),
            instant(now_ms) + timedelta(microseconds=1),
            instant(now_ms - HOUR_MS),
        ],
        "deliver_at": [instant(now_ms + n * HOUR_MS) for n in range(4)],
    }.items():
        for value in values:
            for operator, holds in compare.items():
                plan = BatchPlan(Options({"topic": TOPIC, **address}), names)
                plan.selection = plan.selection.narrowed(column, operator, value)
                rows = rows_of(engine, plan, names)
                there = [row["offset"] for row in rows if holds(row[column], value)]
                ours = {"offset": lambda one: one.offset}.get(
                    column,
                    lambda one, c=column: instant(
                        one.deliver_ms if c == "deliver_at" else one.published_ms
                    ),
                )
                assert there == [one.offset for one in expected if holds(ours(one), value)]
                tolerance = 0 if column == "offset" else timedelta(milliseconds=2)
                beside = [row for row in rows if not holds(row[column], value)]
                assert all(abs(row[column] - value) <= tolerance for row in beside)


@pytest.mark.parametrize(
    ("column", "operator", "hours", "bases"),
    [
        ("published_at", ">", 0.5, []),
        ("published_at", "<", -48, []),
        ("published_at", ">", -0.5, [200, 300]),
        ("deliver_at", "<", 0.5, [200, 300]),
        # Messages of the second row were moved, so it is read whatever its times are.
        ("deliver_at", "<", -1, [300]),
        ("deliver_at", ">", 1.5, [300]),
        ("deliver_at", "=", 3, [300]),
    ],
)
def test_log_rows_without_a_matching_message_are_not_fetched(
    log: FilledLog,
    monkeypatch: pytest.MonkeyPatch,
    column: str,
    operator: str,
    hours: float,
    bases: list[int],
) -> None:
    """B7: the log has two rows, from offsets 200 and 300 on."""
    engine, address, expected = log
    fetched: list[int] = []
    fetch = Log.fetch_found

    def noted(*given: Any) -> Any:
        fetched.extend(key.base_offset for key in given[2] if key.base_offset >= 0)
        return fetch(*given)

    monkeypatch.setattr(Log, "fetch_found", noted)
    plan = BatchPlan(Options({"topic": TOPIC, **address}), ["offset"])
    value = instant(expected[-1].published_ms + round(hours * HOUR_MS))
    plan.selection = plan.selection.narrowed(column, operator, value)
    rows_of(engine, plan, ("offset",))
    assert sorted(fetched) == bases


def test_start_at_a_forgotten_offset_is_refused_unless_fail_on_data_loss_is_false(
    log: FilledLog,
) -> None:
    """B7."""
    with pytest.raises(LogForgotten, match="begins at 200, not at 100"):
        read(log, startingOffsets="100")
    rows = read(log, "offset", startingOffsets="100", failOnDataLoss="false")
    assert offsets(rows) == [150, *range(200, 500)]


def test_messages_forgotten_after_planning_are_detected(log: FilledLog) -> None:
    """B7."""
    engine, address, _ = log
    for fail in ("true", "false"):
        options = {"topic": TOPIC, **address, "failOnDataLoss": fail}
        (part,) = BatchPlan(Options(options), ["offset"]).parts()
        # Pretend that the log began earlier when the read was planned.
        part = replace(part, begin_offset=0, offsets=Span(100, 300))
        schema = arrow_schema([("offset", True)])
        if fail == "true":
            with pytest.raises(LogForgotten, match=r"forgotten some of \[100, 300\)"):
                list(read_part(engine, part, schema))
        else:
            batches = list(read_part(engine, part, schema))
            assert [n for batch in batches for n in batch["offset"].to_pylist()] == [
                *range(200, 300)
            ]


def test_small_topics_share_a_task(tmp_path: Path) -> None:
    """B7: in batches and streams, unless the options ask for many or for small tasks."""
    names = [f"shop/eu/{number}" for number in range(3)]
    engine = SqliteEngine(tmp_path / FILE_NAME)

    async def publish() -> None:
        async with testing.start(config=CONFIG, engine=engine) as world, world.connect() as broker:
            await broker.admin("namespaces.create", namespace="shop/eu")
            for name in names:
                async with await broker.producer(name) as producer:
                    await producer.send_many([name.encode()] * 10)

    testing.run(publish)
    engine.close()

    def asked(**options: str) -> Options:
        return Options({"topics": ",".join(names), "data": str(tmp_path), **options})

    def sizes(tasks: Sequence[Sequence[Part | ArchivedPart]]) -> list[int]:
        return [len(parts) for parts in tasks]

    columns = [("topic", False), ("payload", False)]
    plan = BatchPlan(asked(), ["topic", "payload"])
    (task,) = [InputPartition(parts) for parts in plan.tasks()]
    travelled = pickle.loads(pickle.dumps(task))
    batches = list(read_partition(plan.address, columns, travelled))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert rows == [{"topic": name, "payload": name.encode()} for name in names for _ in range(10)]
    assert sizes(BatchPlan(asked(maxRecordsPerPartition="20"), []).tasks()) == [2, 1]
    # ``minPartitions`` counts the tasks of all topics, which share them in proportion.
    begin = json.dumps({names[0]: 0, names[1]: 5, names[2]: 10})
    of_each = (1, [30], 2), (3, [10] * 3, 3), (6, [5] * 6, 6), ((1 << 63) - 1, [1] * 30, 15)
    for least, of_all, of_some in of_each:
        batch = BatchPlan(asked(minPartitions=f"{least}"), [])
        assert [sum(part.messages for part in task) for task in batch.tasks()] == of_all
        some = BatchPlan(asked(minPartitions=f"{least}", startingOffsets=begin), [])
        assert len(some.parts()) == of_some
        stream = StreamPlan(asked(minPartitions=f"{least}", startingOffsets="earliest"), [])
        tasks = stream.tasks(stream.initial(), stream.latest())
        assert [sum(part.messages for part in task) for task in tasks] == of_all
    stream = StreamPlan(asked(startingOffsets="earliest"), [])
    assert sizes(stream.tasks(stream.initial(), stream.latest())) == [3]


def test_overlapping_or_adjacent_spans_are_merged() -> None:
    spans = [Span(5, 7), Span(0, 2), Span(7, 9), Span(1, 3), Span(20, 30), Span(22, 25)]
    assert Span.merged(spans) == [Span(0, 3), Span(5, 9), Span(20, 30)]


def test_invalid_options_are_refused() -> None:
    """B7."""
    for options, said in (
        ({"startingOfsets": "3"}, "unknown option 'startingofsets'"),
        ({"startingOffsets": "soon"}, "earliest, latest or an offset"),
        ({"startingOffsets": "{3"}, "not a JSON object"),
        ({"startingOffsets": "latest"}, "startingOffsets latest a batch would read nothing"),
        ({"startingOffsets": json.dumps({TOPIC: -1})}, "startingOffsets -1 a batch"),
        ({"endingOffsets": json.dumps({TOPIC: -2})}, "endingOffsets -2 a batch would"),
        ({"endingOffsets": "-3"}, "earliest, latest or an offset"),
        ({"startingOffsets": '{"other": 3}'}, "names public/default/other, which is not read"),
        ({"endingTimestamp": "2027-01-31T09:00:00"}, "its offset from UTC"),
        ({"topics": "a,b"}, "given twice"),
        ({"minPartitions": "0"}, "an integer from 1 to"),
        ({"topic": "", "topics": " , "}, "the topic is missing"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            BatchPlan(Options({"topic": TOPIC, "url": "mysql://db/log", **options}), ["offset"])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([StructField("value", BinaryType())], "no column 'value'"),
        ([StructField("offset", IntegerType())], "offset is bigint, not int"),
        ([StructField("deliver_at", TimestampNTZType())], "write TIMESTAMP_LTZ"),
        # Spark would trust the schema and read a number where the value is null.
        ([StructField("attempt", IntegerType(), nullable=False)], "attempt may be null"),
        ([StructField("key", BinaryType()), StructField("Key", BinaryType())], "two columns key"),
    ],
)
def test_schema_that_messages_do_not_have_is_refused(fields: list[StructField], said: str) -> None:
    """B7."""
    check_types(StructType([StructField("offset", LongType(), nullable=False)]))
    with pytest.raises(InvalidRequest, match=said):
        check_types(StructType(fields))
