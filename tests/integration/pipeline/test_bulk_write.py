"""Bulk writes as Spark's driver and tasks do them, in plain Python on MariaDB or MySQL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from escapement.errors import (
    DelaysDisabled,
    DelayTooLong,
    DelayTooShort,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    SchemaError,
    StagingLost,
    StorageUnavailable,
)
from escapement.names import TopicName
from escapement.pipeline.options import LogAddress, Options
from escapement.pipeline.sink import bulk_write
from escapement.pipeline.sink.bulk_write import BulkWrite, Part
from escapement.pipeline.sink.staging import ENTRY_BYTES, MAX_MESSAGE_BYTES
from escapement.storage import schema
from escapement.storage.catalog import catalog
from escapement.storage.catalog.policy import TopicPolicy
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.open import open_engine
from escapement.storage.inbox import inbox, job
from escapement.storage.inbox.entry import decode_inbox_entry
from support.storage.commit_pipelines import FaultyEngine, Once
from support.storage.staged_jobs import take_out

COLUMNS = {"payload": "binary", "deliver_at": "timestamp"}
PAYLOAD = [("payload", "binary")]
DRIVER = """
import json, os, sys
import pyarrow as pa
from escapement.pipeline.sink import bulk_write
from escapement.pipeline.sink.bulk_write import BulkWrite
from escapement.pipeline.options import Options
options, columns, killed = json.loads(sys.argv[1])
plan = BulkWrite.plan(Options(options), columns.items())
rows = pa.RecordBatch.from_pydict({"payload": pa.array([b"%d" % n for n in range(1000)])})
parts = [bulk_write.write_part(plan, part, [rows]) for part in range(2)]
if killed == "before":
    os.kill(os.getpid(), 9)
bulk_write.commit(plan, parts)
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def engine(mysql_url: str, tmp_path: Path) -> Iterator[Engine]:
    """A log with a topic t/n/x, and a namespace t/off where delays are disabled."""
    engine = open_engine(mysql_url, tmp_path)
    schema.migrate(engine)
    connection = engine.connect()
    space = catalog.create_namespace(connection, "t", "n", 0)
    catalog.create_topic(connection, space.id, "x", 0)
    off = catalog.create_namespace(connection, "t", "off", 0, delays_enabled=False)
    catalog.create_topic(connection, off.id, "x", 0)
    connection.close()
    yield engine
    engine.close()


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    connection = engine.connect()
    yield connection
    connection.close()


def plan(url: str, columns: dict[str, str] | None = None, **options: str) -> BulkWrite:
    named = columns or {"payload": "binary"}
    return BulkWrite.plan(Options({"url": url, **options}), named.items())


def rows(*payloads: bytes, topics: list[str] | None = None) -> pa.RecordBatch:
    columns = {"payload": pa.array(payloads, pa.binary())}
    if topics is not None:
        columns["topic"] = pa.array(topics)
    return pa.RecordBatch.from_pydict(columns)


def adopted(engine: Engine, connection: Connection) -> dict[str, list[bytes]]:
    """Take out all entries to be moved, as the owners of their targets do."""
    found: dict[str, list[bytes]] = {}
    while inbox_targets := inbox.occupied(connection, 0, 100):
        for inbox_target in inbox_targets:
            (step,) = inbox.read_steps(connection, [(inbox_target.id, True)], 1 << 20, 1 << 20)
            for one in step.inbox_entries:
                batch = decode_inbox_entry(one.data).batch
                found.setdefault(inbox_target.target, []).extend(batch.payloads.to_list())
            take_out(engine, connection, step)
    return found


def test_batches_staged_by_tasks_are_committed_and_reported(
    mysql_url: str, engine: Engine, connection: Connection, tmp_path: Path
) -> None:
    """B7: the report counts by topic, entries have a bounded size, a retried task counts once."""
    report_file = tmp_path / "report.json"
    columns = {"payload": "binary", "topic": "string"}
    write = plan(mysql_url, columns, topic="t/n/x", createTopics="true", report=str(report_file))
    big = [bytes([n]) * (ENTRY_BYTES // 3) for n in range(8)]
    bulk_write.write_part(write, 0, [rows(b"lost", topics=["t/n/x"])])
    parts = [
        bulk_write.write_part(
            write, 0, [rows(b"1", b"2", topics=["t/n/x", "t/n/new"]), rows(topics=[])]
        ),
        bulk_write.write_part(write, 1, [rows(*big, topics=["t/n/x"] * 8)]),
    ]
    assert adopted(engine, connection) == {}
    report = bulk_write.commit(write, parts)
    assert (report.messages, report.repeated) == (10, False)
    assert report.by_topic == {"t/n/x": 9, "t/n/new": 1}
    assert json.loads(report_file.read_text())["messages"] == 10
    sizes = connection.execute("SELECT size_bytes FROM inbox").rows
    assert len(sizes) == 7, "including the entry of the lost attempt"
    assert max(size for (size,) in sizes) < 2 * ENTRY_BYTES
    assert adopted(engine, connection) == {"t/n/x": [b"1", *big], "t/n/new": [b"2"]}
    assert "10 messages" in report.line


def test_unwritable_report_is_refused_early_and_fails_no_committed_write(
    mysql_url: str, engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """B7: a caller that sees a failure writes again, and would add every message twice."""
    for where in (tmp_path / "nowhere" / "report.json", tmp_path):
        with pytest.raises(InvalidRequest, match=f"the report cannot be written to {where}"):
            plan(mysql_url, topic="t/n/x", report=str(where))
    (tmp_path / "reports").mkdir()
    write = plan(mysql_url, topic="t/n/x", report=str(tmp_path / "reports" / "report.json"))
    part = bulk_write.write_part(write, 0, [rows(b"1")])
    (tmp_path / "reports").rmdir()
    assert bulk_write.commit(write, [part]).messages == 1
    assert "is committed, but its report cannot be written" in capsys.readouterr().err


def test_record_batches_are_combined_into_full_entries(
    mysql_url: str, engine: Engine, connection: Connection
) -> None:
    """B7: messages stay in order. A message as large as an entry has its own entry."""
    write = plan(mysql_url, topic="t/n/x")
    fifth = [bytes([n]) * (ENTRY_BYTES // 5) for n in range(18)]
    batches = [rows(*fifth[at : at + 3]) for at in range(0, 18, 3)]
    large = bytes([99]) * (ENTRY_BYTES + 1)
    part = bulk_write.write_part(write, 0, [*batches[:3], rows(large), *batches[3:]])
    bulk_write.commit(write, [part])
    found = connection.execute("SELECT message_count FROM inbox ORDER BY id").rows
    assert [count for (count,) in found] == [4, 4, 1, 1, 4, 4, 1]
    assert adopted(engine, connection) == {"t/n/x": [*fifth[:9], large, *fifth[9:]]}


@pytest.mark.parametrize(
    "name", [{"jobId": "nightly"}, {"txnAppId": "app", "txnVersion": "7"}], ids=["job", "txn"]
)
def test_repeated_write_adds_nothing_and_is_reported_as_repeated(
    mysql_url: str, engine: Engine, connection: Connection, name: dict[str, str]
) -> None:
    """B7."""
    for repeated in (False, True):
        write = plan(mysql_url, topic="t/n/x", **name)
        parts = [bulk_write.write_part(write, n, [rows(b"%d" % n)]) for n in range(2)]
        report = bulk_write.commit(write, parts)
        assert (report.repeated, report.messages) == (repeated, 0 if repeated else 2)
    assert len(adopted(engine, connection)["t/n/x"]) == 2
    assert connection.execute("SELECT COUNT(*) FROM inbox").rows == [(2,)]  # freed later


@pytest.mark.parametrize(("name", "again"), [({}, False), ({"txnAppId": "app"}, True)])
def test_stream_batches_are_identified_by_query_id_or_txn_app_id(
    mysql_url: str, engine: Engine, name: dict[str, str], again: bool
) -> None:
    """B7: txnAppId identifies them if the checkpoint is lost, and with it the query id."""
    options = Options({"url": mysql_url, "topic": "t/n/x", **name})
    begun = BulkWrite.plan(options, PAYLOAD, of_stream=True)
    for query, batch, repeated in (("a", 0, False), ("a", 0, True), ("b", 0, again)):
        write = begun.of_batch(f"query/{query}", batch)
        report = bulk_write.commit(write, [bulk_write.write_part(write, 0, [rows(b"1")])])
        assert report.repeated is repeated, (query, batch)
    write = begun.of_batch("query/b", 1)
    assert bulk_write.commit(write, [bulk_write.write_part(write, 0, [rows(b"2")])]).messages == 1


def test_aborted_write_and_failed_task_leave_no_staged_batches(
    mysql_url: str, engine: Engine, connection: Connection
) -> None:
    write, other = (plan(mysql_url, topic="t/n/x", jobId="same") for _ in range(2))
    part = bulk_write.write_part(write, 0, [rows(b"1")])
    theirs = bulk_write.write_part(other, 0, [rows(b"2")])

    def fails() -> Iterator[pa.RecordBatch]:
        yield rows(*[bytes([n]) * ENTRY_BYTES for n in range(6)])
        raise ValueError("of the task's own")

    with pytest.raises(ValueError, match="own"):
        bulk_write.write_part(write, 1, fails())
    assert connection.execute("SELECT COUNT(*) FROM staged_batches").rows == [(2,)]
    bulk_write.abandon(write)
    with pytest.raises(StagingLost):
        bulk_write.commit(write, [part])
    assert job.states(connection, 9)[0].given_up_at_ms is None
    bulk_write.abandon(other)
    assert job.states(connection, 9)[0].given_up_at_ms is not None
    again = bulk_write.write_part(other, 0, [rows(b"2")])
    assert again != theirs
    assert bulk_write.commit(other, [again]).messages == 1
    assert adopted(engine, connection) == {"t/n/x": [b"2"]}


def test_aborted_stream_batch_without_finished_tasks_leaves_nothing(
    mysql_url: str, connection: Connection
) -> None:
    """B7: only tasks know the query id, and Spark aborts with a separate plan.

    The staged batches of other streams stay.
    """

    def stream(checkpoint: str) -> BulkWrite:
        given = {"url": mysql_url, "topic": "t/n/x", "checkpointLocation": checkpoint}
        return BulkWrite.plan(Options(given), PAYLOAD, of_stream=True)

    for checkpoint, batch in (("ours", 7), ("ours", 8), ("theirs", 7)):
        plan = stream(checkpoint).of_batch(f"query/{checkpoint}", batch)
        bulk_write.write_part(plan, 0, [rows(b"1")])
    left = (
        "SELECT series, version FROM staged_batches JOIN jobs ON jobs.id = job_id"
        " WHERE target_id = 0 ORDER BY staged_batches.id"
    )
    bulk_write.abandon_batch(stream("ours"), 7, [])
    assert connection.execute(left).rows == [("query/ours", 8), ("query/theirs", 7)]
    bulk_write.abandon_batch(stream("ours"), 8, [])
    assert connection.execute(left).rows == [("query/theirs", 7)]


def test_stream_without_identifying_options_aborts_only_its_own_parts(
    mysql_url: str, engine: Engine, connection: Connection
) -> None:
    """B7: the checkpoint location may come from the configuration of Spark instead.

    The stream then gives up only the parts of finished tasks, which name its query.
    """

    def stream() -> BulkWrite:
        given = Options({"url": mysql_url, "topic": "t/n/x"})
        return BulkWrite.plan(given, PAYLOAD, of_stream=True)

    ours, theirs = stream().of_batch("query/ours", 7), stream().of_batch("query/theirs", 7)
    ended = [bulk_write.write_part(ours, part, [rows(b"1")]) for part in range(2)]
    part = bulk_write.write_part(theirs, 0, [rows(b"2")])
    bulk_write.abandon_batch(stream(), 7, [])
    bulk_write.abandon_batch(stream(), 7, ended)
    left = "SELECT series FROM staged_batches JOIN jobs ON jobs.id = job_id WHERE target_id = 0"
    assert connection.execute(left).rows == [("query/theirs",)]
    assert bulk_write.commit(stream().of_batch("query/theirs", 7), [part]).messages == 1


@pytest.mark.parametrize("killed", ["before", "after"])
def test_driver_killed_around_its_commit_and_run_again_adds_everything_once(
    mysql_url: str, engine: Engine, connection: Connection, killed: str
) -> None:
    """B7."""
    options = {"url": mysql_url, "topic": "t/n/x", "jobId": "nightly"}
    for end in (killed, "after"):
        asked = json.dumps([options, {"payload": "binary"}, end])
        ran = subprocess.run(
            [sys.executable, "-c", DRIVER, asked], capture_output=True, check=False
        )
        assert ran.returncode == -9, ran.stderr.decode()
    assert sorted(adopted(engine, connection)["t/n/x"]) == sorted(
        [b"%d" % n for n in range(1000)] * 2
    )
    (state,) = job.states(connection, 9)
    assert (state.series, state.messages) == ("job/nightly", 2000)


@pytest.mark.parametrize("when", ["before", "after"])
def test_write_survives_a_short_outage_of_the_database(
    mysql_url: str,
    engine: Engine,
    connection: Connection,
    when: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B7: the reply to COMMIT may be lost, in staging or when the job is committed."""
    faulty = FaultyEngine(engine)
    kind = OutcomeUnknown if when == "after" else StorageUnavailable
    fault = Once("commit", kind("away"), times=2)
    setattr(faulty, when, fault)
    write = plan(mysql_url, topic="t/n/x")
    monkeypatch.setattr(LogAddress, "engine", lambda self: faulty)
    parts: list[Part] = []
    for n in range(3):
        fault.arm()
        parts.append(bulk_write.write_part(write, n, [rows(b"%d" % n)]))
    fault.arm()
    report = bulk_write.commit(write, parts)
    assert (report.messages, report.repeated) == (3, False)
    assert adopted(engine, connection) == {"t/n/x": [b"0", b"1", b"2"]}


@pytest.mark.parametrize(
    ("options", "columns", "kind", "why"),
    [
        ({"topic": "t/n/y"}, {}, NotFound, "createTopics"),
        ({"topic": "t/m/x", "createTopics": "maybe"}, {}, InvalidRequest, "true or false"),
        ({"topic": "t/m/x"}, {}, NotFound, "namespace t/m does not exist"),
        ({"topic": "t/off/x"}, COLUMNS, DelaysDisabled, "enable them"),
        ({"topic": "a/b"}, {}, InvalidRequest, "not a topic"),
        ({}, {}, InvalidRequest, "the topic is missing"),
        (
            {"topic": "t/n/x", "jobid": "a", "txnAppId": "b", "txnVersion": "1"},
            {},
            InvalidRequest,
            "but not both",
        ),
        ({"topic": "t/n/x", "txnAppId": "b"}, {}, InvalidRequest, "must be given together"),
        ({"topic": "t/n/x", "maxDelay": "a year"}, {}, InvalidRequest, "maxDelay: 'a year'"),
        ({"topic": "t/n/x", "topics": "y"}, {}, InvalidRequest, "unknown option 'topics'"),
        ({"topic": "t/n/x", "queryName": "y"}, {}, InvalidRequest, "unknown option 'queryname'"),
        (
            {"topic": "t/n/x", "checkpointLocation": "y"},
            {},
            InvalidRequest,
            "unknown option 'checkpointlocation'",
        ),
        ({"topic": "t/n/x"}, {"payload": "float"}, InvalidRequest, "of type float"),
        (
            {"topic": "t/n/x", "nullTimes": "never"},
            {},
            InvalidRequest,
            "the option nullTimes must be fail or now, not 'never'",
        ),
    ],
)
def test_invalid_write_is_refused_before_any_task_runs(
    mysql_url: str,
    engine: Engine,
    options: dict[str, str],
    columns: dict[str, str],
    kind: type[Exception],
    why: str,
) -> None:
    """B7."""
    with pytest.raises(kind, match=why):
        plan(mysql_url, columns, **options)


@pytest.mark.parametrize(
    ("topic", "kind", "why"),
    [
        ("t/n/nowhere", NotFound, "t/n/nowhere"),
        ("a/b", InvalidRequest, "not a topic"),
        ("t/off/x", DelaysDisabled, "delayed messages are disabled in t/off"),
    ],
)
def test_row_for_an_invalid_topic_fails_its_task_and_is_named(
    mysql_url: str,
    engine: Engine,
    connection: Connection,
    topic: str,
    kind: type[Exception],
    why: str,
) -> None:
    """B7: the error names the first such row, counted over all record batches of the partition."""
    timed = {"payload": "binary", "topic": "string", "delay_ms": "bigint"}
    write = plan(mysql_url, timed, nullTimes="now")

    def rows(*topics: str, delays: list[int | None]) -> pa.RecordBatch:
        columns = {"payload": [b"1"] * len(topics), "topic": topics}
        return pa.RecordBatch.from_pydict({**columns, "delay_ms": pa.array(delays, pa.int64())})

    good = rows(*["t/n/x"] * 3, delays=[None] * 3)
    late = [None, None, 5, None] if kind is DelaysDisabled else [None] * 4
    bad = rows("t/n/x", topic, topic, "t/n/x", delays=late)
    row = 6 if kind is DelaysDisabled else 5
    with pytest.raises(kind, match=f"^row {row} of partition 0: .*{why}"):
        bulk_write.write_part(write, 0, [good, bad])
    assert connection.execute("SELECT COUNT(*) FROM staged_batches").rows == [(0,)]


def test_delay_policy_of_the_topic_applies_to_rows_of_a_job(
    mysql_url: str, engine: Engine, connection: Connection
) -> None:
    """B10: rows without a time get the default; the error for another row names it."""
    name = TopicName.parse("t/n/x")
    policy = TopicPolicy(default_delay_ms=300_000, min_delay_ms=60_000, max_delay_ms=3_600_000)
    record = replace(catalog.find_topic(connection, name), policy=policy)
    catalog.update_topic(connection, record)
    write = plan(
        mysql_url, {"payload": "binary", "delay_ms": "bigint"}, topic="t/n/x", nullTimes="now"
    )

    def rows(*delays: int | None) -> pa.RecordBatch:
        payloads = [b"x"] * len(delays)
        return pa.RecordBatch.from_pydict(
            {"payload": payloads, "delay_ms": pa.array(delays, pa.int64())}
        )

    for wrong_ms, error, said in (
        (59_999, DelayTooShort, "row 3 of partition 0 has a delay of 59999ms. The minimum is 1m"),
        (3_600_001, DelayTooLong, "row 3 of partition 0 has .* The maximum is 1h, set by topic t"),
    ):
        with pytest.raises(error, match=said):
            bulk_write.write_part(write, 0, [rows(60_000), rows(None, wrong_ms)])
    part = bulk_write.write_part(write, 0, [rows(60_000, None)])
    bulk_write.commit(write, [part])
    (inbox_target,) = inbox.occupied(connection, 0, 100)
    (step,) = inbox.read_steps(connection, [(inbox_target.id, True)], 1 << 20, 1 << 20)
    times = decode_inbox_entry(step.inbox_entries[0].data).times
    assert times.at_ms is not None
    assert (times.at_ms - write.start_ms).tolist() == [60_000, 300_000]


@pytest.mark.parametrize("of_stream", [False, True])
def test_null_time_fails_the_write_unless_null_times_is_now(
    mysql_url: str, engine: Engine, connection: Connection, of_stream: bool
) -> None:
    """B7: one bad column must not send a hundred thousand reminders at once."""

    def rows(*delays: int | None) -> pa.RecordBatch:
        columns = {
            "payload": [b"%d" % n for n in range(len(delays))],
            "key": ["c-42"] * len(delays),
        }
        return pa.RecordBatch.from_pydict({**columns, "delay_ms": pa.array(delays, pa.int64())})

    def planned(**options: str) -> BulkWrite:
        given = Options({"url": mysql_url, "topic": "t/n/x", **options})
        columns = {"payload": "binary", "key": "string", "delay_ms": "bigint"}
        write = BulkWrite.plan(given, columns.items(), of_stream=of_stream)
        return write.of_batch("query/1", 7)

    write = planned()
    bulk_write.write_part(write, 0, [rows(1, 2, 3)])
    why = (
        r"^1 row \(the first is row 5 of partition 1, with the key 'c-42'\) whose delay_ms is null"
    )
    with pytest.raises(InvalidRequest, match=why):
        bulk_write.write_part(write, 1, [rows(1, 2, 3), rows(4, None)])
    bulk_write.abandon(write)
    assert connection.execute("SELECT COUNT(*) FROM staged_batches").rows == [(0,)]
    assert adopted(engine, connection) == {}
    write = planned(nullTimes="NOW")
    if of_stream:
        write = write.of_batch("query/2", 7)
    parts = [bulk_write.write_part(write, part, [rows(1, None)]) for part in range(2)]
    assert bulk_write.commit(write, parts).messages == 4
    assert sum(map(len, adopted(engine, connection).values())) == 4


def test_largest_message_is_accepted_and_a_larger_one_is_named(
    mysql_url: str, engine: Engine, connection: Connection
) -> None:
    """B7: the error names row, size and maximum. The size counts all columns."""
    columns = {"payload": "binary", "key": "binary", "priority": "int", "delay_ms": "bigint"}
    write = plan(mysql_url, columns, topic="t/n/x")
    payloads = [os.urandom(MAX_MESSAGE_BYTES - 9), b"small"]

    def rows(key: bytes) -> pa.RecordBatch:
        values = {"key": [b"", key], "priority": [7, 7], "delay_ms": [5, 5]}
        return pa.RecordBatch.from_pydict({"payload": pa.array(payloads[::-1]), **values})

    why = r"1 row \(the first is row 4 of partition 0\) too large: 8,388,545 bytes .* 8,388,544 "
    with pytest.raises(InvalidRequest, match=why):
        bulk_write.write_part(write, 0, [rows(b"k" * 9), rows(b"k" * 10)])
    part = bulk_write.write_part(write, 0, [rows(b"k" * 9)])
    assert bulk_write.commit(write, [part]).messages == 2
    assert adopted(engine, connection) == {"t/n/x": payloads[::-1]}


def test_bulk_write_to_sqlite_or_to_a_database_without_a_log_is_refused(
    mysql_url: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest, match="MySQL or MariaDB"):
        BulkWrite.plan(Options({"data": str(tmp_path), "topic": "x"}), PAYLOAD)
    with pytest.raises(SchemaError):
        plan(mysql_url, topic="t/n/x")
