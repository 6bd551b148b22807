"""Tests of the audit job, which compares log, cursors and index."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from escapement import testing
from escapement.cli.main import run as command
from escapement.errors import InvalidRequest, LogDamaged, NotFound
from escapement.names import TopicName
from escapement.pipeline import audit, rebuild
from escapement.pipeline.audit import Audit, AuditConfig, run
from escapement.pipeline.auditing.finding import Kind
from escapement.pipeline.auditing.index_count import IndexCount
from escapement.pipeline.auditing.recount import Digest
from escapement.storage.data_directory import index_directory
from escapement.storage.engine.sqlite import FILE_NAME, SqliteEngine
from escapement.storage.offsets import OffsetSet
from support.storage.bundle_brokers import BUNDLES, brokers, full, publish_everywhere
from support.storage.eventful_log import CONFIG, TOPIC, Expected, fill

Harm = Callable[[sqlite3.Connection, Path], object]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Expected]]:
    """The data directory of a broker with many events, and the expected messages of its log."""
    data = tmp_path_factory.mktemp("data")
    engine = SqliteEngine(data / FILE_NAME)
    try:
        return data, fill(engine, data / "index")
    finally:
        engine.close()


def audited(spark: SparkSession, data: Path) -> Audit:
    return run(spark, AuditConfig({"data": str(data)}, index=str(data)))


def test_audit_of_an_intact_log_finds_nothing(
    spark: SparkSession, sound: tuple[Path, list[Expected]]
) -> None:
    """B7: acknowledged, cancelled, moved and relocated messages, some after the checkpoint."""
    data, expected = sound
    found = audited(spark, data)
    assert found.findings == []
    (topic,) = found.topics
    live = [one for one in expected if one.state in ("to_be_fired", "fired")]
    # Relocated rows contain offsets 50 and 150. The index does not have changes since the
    # checkpoint.
    assert (topic.topic, topic.messages, topic.indexed) == (TOPIC, len(expected), topic.pending)
    assert topic.messages + topic.forgotten == expected[-1].offset + 1
    assert len(live) - 15 <= topic.pending <= len(live)
    by_name = run(spark, AuditConfig({"data": str(data)}, [TOPIC]))
    assert (by_name.findings, by_name.topics[0].indexed) == ([], None)
    assert by_name.topics[0].pending == len(live)
    with pytest.raises(NotFound):
        run(spark, AuditConfig({"data": str(data)}, ["shop/eu/nothing"]))
    with pytest.raises(InvalidRequest, match="has no index of a broker"):
        run(spark, AuditConfig({"data": str(data)}, index=str(data / "index")))


def test_audit_repeats_when_the_journal_is_trimmed_meanwhile(
    spark: SparkSession, sound: tuple[Path, list[Expected]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B7: a checkpoint installs its index before it trims. Without a new index it is damage."""
    data, _ = sound
    unindexed, tries = IndexCount.unindexed, 0

    def trimmed_at_first(index: IndexCount, *of: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise LogDamaged("lane 0 of the journal lacks entry 1")
        return unindexed(index, *of)

    monkeypatch.setattr(IndexCount, "unindexed", trimmed_at_first)
    with pytest.raises(LogDamaged, match="lacks entry 1"):
        audited(spark, data)
    tries = 0
    monkeypatch.setattr(IndexCount, "unchanged", lambda _: tries != 1)
    assert audited(spark, data).findings == []
    assert tries == 2


def test_topic_deleted_before_its_count_is_skipped(
    spark: SparkSession, sound: tuple[Path, list[Expected]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B7: a topic that is given by name is an error instead."""
    listed = audit.read_named

    def then_one_is_deleted(*of: Any) -> Iterator[tuple[TopicName, Any]]:
        for name, record in listed(*of):
            yield TopicName.parse("shop/eu/deleted"), record
            yield name, record

    monkeypatch.setattr(audit, "read_named", then_one_is_deleted)
    found = audited(spark, sound[0])
    assert ([one.topic for one in found.topics], found.findings) == ([TOPIC], [])


def test_audit_of_a_rebuilt_index_finds_nothing(
    spark: SparkSession, sound: tuple[Path, list[Expected]], tmp_path: Path
) -> None:
    """P5, B7: also messages published after the last checkpoint."""
    data = tmp_path / "data"
    shutil.copytree(sound[0], data)
    connection = sqlite3.connect(data / FILE_NAME)
    with connection:
        connection.execute("UPDATE leases SET expires_at_ms = 0")
    connection.close()
    rebuild.run(None, rebuild.RebuildConfig(data))
    found = audited(spark, data)
    assert found.findings == []
    live = [one for one in sound[1] if one.state in ("to_be_fired", "fired")]
    assert found.topics[0].indexed == len(live)


def test_indexes_of_all_bundles_are_rebuilt_and_audited(
    spark: SparkSession, tmp_path: Path
) -> None:
    """B7: each topic is compared with the index of its bundle."""
    engine, topics = SqliteEngine(tmp_path / FILE_NAME), list[str]()

    async def publish() -> None:
        async with brokers(engine, tmp_path, CONFIG) as worlds:
            topics.extend(full(topic) for topic in await publish_everywhere(worlds))

    testing.run(publish)
    engine.close()
    for bundle_id in range(BUNDLES):
        shutil.rmtree(index_directory(tmp_path, bundle_id))
    rebuild.run(None, rebuild.RebuildConfig(tmp_path))
    found = audited(spark, tmp_path)
    assert found.findings == []
    assert [(one.topic, one.messages, one.indexed) for one in found.topics] == [
        (topic, 20, 16) for topic in topics
    ]
    (segment,) = index_directory(tmp_path, 1).glob("*.segment")
    spoilt = bytearray(segment.read_bytes())
    spoilt[len(spoilt) // 2] ^= 1
    segment.write_bytes(spoilt)
    shutil.rmtree(index_directory(tmp_path, 2))
    found = audited(spark, tmp_path)
    assert {one.kind for one in found.findings} == {Kind.INDEX_FILES}
    assert all("index-01" in one.what for one in found.findings)
    named = run(spark, AuditConfig({"data": str(tmp_path)}, [topics[2]], str(tmp_path)))
    assert [(one.topic, one.indexed) for one in named.topics] == [(topics[2], None)]


def log_table(connection: sqlite3.Connection) -> str:
    """Return the log table of the topic."""
    names = connection.execute(
        "SELECT name FROM sqlite_master"
        " WHERE type = 'table' AND name LIKE 'log\\_%\\_%' ESCAPE '\\'"
    )
    (found,) = [
        name
        for (name,) in names.fetchall()
        if connection.execute(f"SELECT 1 FROM {name} WHERE base_offset = 300").fetchone()
    ]
    return str(found)


def lose_a_row(connection: sqlite3.Connection, data: Path) -> object:
    return connection.execute(f"DELETE FROM {log_table(connection)} WHERE base_offset = 300")


def lose_the_beginning(connection: sqlite3.Connection, data: Path) -> object:
    return connection.execute(f"DELETE FROM {log_table(connection)} WHERE base_offset = 200")


def spoil_a_row(connection: sqlite3.Connection, data: Path) -> object:
    table = log_table(connection)
    ((row,),) = connection.execute(f"SELECT data FROM {table} WHERE base_offset = 300")
    spoilt = row[:60] + bytes([row[60] ^ 1]) + row[61:]
    return connection.execute(f"UPDATE {table} SET data = ? WHERE base_offset = 300", (spoilt,))


def misdate_a_row(connection: sqlite3.Connection, data: Path) -> object:
    return connection.execute(
        f"UPDATE {log_table(connection)} SET max_due_ms = max_due_ms + 1 WHERE base_offset = 300"
    )


def lose_what_was_moved(connection: sqlite3.Connection, data: Path) -> object:
    # Delete both records of the relocated messages. No other row has them.
    connection.execute("DELETE FROM journal")
    return connection.execute(f"DELETE FROM {log_table(connection)} WHERE base_offset = -1")


def acknowledge_the_future(connection: sqlite3.Connection, data: Path) -> object:
    future = OffsetSet()
    future.add(np.array([1 << 30, (1 << 30) + 5]))
    rows = [(1, chunk, row) for chunk, row in future.dirty_chunks().items()]
    return connection.executemany("INSERT INTO cursor_chunks VALUES (?, ?, ?)", rows)


def forget_acknowledgements(connection: sqlite3.Connection, data: Path) -> object:
    # The index does not have messages that were acknowledged before the checkpoint.
    return connection.execute("DELETE FROM cursor_chunks WHERE subscription_id > 0")


def exchange_the_log(connection: sqlite3.Connection, data: Path) -> object:
    return connection.execute("UPDATE log_identity SET identity = zeroblob(16)")


def spoil_the_index(connection: sqlite3.Connection, data: Path) -> object:
    segment = max((data / "index").glob("*.segment"))
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    return segment.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lose_a_row, "offsets 300 to 499 are not in the log"),
        (lose_the_beginning, "80 messages, the first at offset 220, are no longer in the log"),
        (spoil_a_row, "a log row fails its checksum"),
        (misdate_a_row, "the row at offset 300 has other times in its data than in its columns"),
        (lose_what_was_moved, "no row of the log has the current due time of offset 50"),
        (acknowledge_the_future, "2 offsets beyond the end of the log are acknowledged by s"),
        (forget_acknowledgements, "pending messages"),
        (exchange_the_log, "the index does not fit the log"),
        (spoil_the_index, "a block fails its checksum"),
    ],
)
def test_audit_reports_each_kind_of_damage(
    spark: SparkSession,
    sound: tuple[Path, list[Expected]],
    tmp_path: Path,
    harm: Harm,
    said: str,
) -> None:
    """B7."""
    data = tmp_path / "data"
    shutil.copytree(sound[0], data)
    connection = sqlite3.connect(data / FILE_NAME)
    with connection:
        harm(connection, data)
    connection.close()
    found = audited(spark, data)
    assert any(said in one.what for one in found.findings), found.findings


def test_unreadable_topic_does_not_hide_other_topics(
    spark: SparkSession, sound: tuple[Path, list[Expected]], tmp_path: Path
) -> None:
    """B7: topics that are read together. No topic is counted twice."""
    data = tmp_path / "data"
    shutil.copytree(sound[0], data)
    engine = SqliteEngine(data / FILE_NAME)

    async def publish() -> None:
        async with testing.start(config=CONFIG, engine=engine) as world, world.connect() as broker:
            for name in ("shop/eu/a", "shop/eu/z"):
                async with await broker.producer(name) as producer:
                    await producer.send_many([b"."] * 10)

    testing.run(publish)
    engine.close()
    connection = sqlite3.connect(data / FILE_NAME)
    with connection:
        connection.execute("UPDATE cursor_chunks SET data = x'00' WHERE subscription_id > 0")
    connection.close()
    found = run(spark, AuditConfig({"data": str(data)}))
    assert [one.topic for one in found.findings] == [TOPIC]
    assert [(one.topic, one.messages) for one in found.topics] == [
        ("shop/eu/a", 10),
        ("shop/eu/z", 10),
    ]


def test_audit_command_exits_with_3_for_findings(
    spark: SparkSession,
    sound: tuple[Path, list[Expected]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """B7."""
    data = tmp_path / "data"
    shutil.copytree(sound[0], data)
    words = ["pipeline", "audit", "--data", str(data), "--index", str(data)]
    assert command(words) == 0
    said = capsys.readouterr().out
    assert TOPIC in said
    assert said.endswith("everything adds up\n")
    connection = sqlite3.connect(data / FILE_NAME)
    with connection:
        misdate_a_row(connection, data)
    connection.close()
    assert command(words) == 3
    assert capsys.readouterr().out.endswith("1 thing does not add up\n")
    assert command([*words, "-o", "json"]) == 3
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["topic"] == TOPIC


def test_digest_ignores_order_and_detects_exchanged_times() -> None:
    """B7."""
    due_ms, offsets = np.array([5, 7, 9]), np.array([1, 2, 3])
    one, other, exchanged = Digest(), Digest(), Digest()
    one.add(due_ms, offsets)
    other.add(due_ms[[2]], offsets[[2]])
    other.add(due_ms[[1, 0]], offsets[[1, 0]])
    exchanged.add(due_ms[[1, 0, 2]], offsets)
    assert one == other
    assert one != exchanged
    assert one.count == exchanged.count
