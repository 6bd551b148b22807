"""Tests of the archive job: it writes completed messages to Parquet once and verifies them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from escapement.cli.main import run as command
from escapement.errors import InvalidRequest, NotFound, StorageError
from escapement.names import TopicName
from escapement.pipeline import archive as job
from escapement.pipeline import audit
from escapement.pipeline.archive import ArchiveConfig, run
from escapement.pipeline.archive_manifest import Manifest
from escapement.pipeline.archiving import tasks
from escapement.pipeline.archiving.archive_file import FoundFile
from escapement.pipeline.archiving.digest import Digest
from escapement.pipeline.archiving.tasks import Made, make, read_back
from escapement.pipeline.arrow import arrow_schema
from escapement.pipeline.auditing.archive_count import RecordedArchive, count_files
from escapement.pipeline.columns import READ_COLUMNS
from escapement.pipeline.directories.local_directory import local_path
from escapement.pipeline.selection import Selection
from escapement.pipeline.source.archived_reading import archived_parts, read_archived
from escapement.storage import archive_record
from escapement.storage.catalog.catalog import TopicRecord
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.mysql.engine import MysqlEngine
from escapement.storage.state import topic_state
from support.storage.eventful_log import TOPIC, Expected, fill
from support.storage.topic_states import read_topic


@dataclass
class Log:
    """A log, its expected messages, and the root of its archive."""

    engine: Engine
    source: dict[str, str]
    expected: list[Expected]
    root: Path

    @property
    def done(self) -> list[int]:
        return [one.offset for one in self.expected if one.state in ("acked", "cancelled")]

    def config(self) -> ArchiveConfig:
        return ArchiveConfig(self.source, str(self.root), older_than_ms=0)

    def archived(self) -> list[int]:
        connection = self.engine.connect()
        try:
            return archive_record.archived(connection, 1).to_array(0, 1 << 40).tolist()
        finally:
            connection.close()

    def forget_archives(self) -> None:
        connection = self.engine.connect()
        for table in ("archives", "archived_chunks"):
            connection.execute(f"DELETE FROM {table}")
        connection.close()

    def set_archive(self, archive: bool) -> None:
        """Set the archive policy of the namespace."""
        policy = json.dumps({"archive": archive, "retention_ms": 0})
        connection = self.engine.connect()
        connection.execute("UPDATE namespaces SET policy = ?", (policy,))
        connection.close()


@pytest.fixture(scope="module")
def log(mysql_url_of_module: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    engine = MysqlEngine(MysqlAddress.parse(mysql_url_of_module))
    root = tmp_path_factory.mktemp("data") / "an archive"
    yield Log(engine, {"url": mysql_url_of_module}, fill(engine), root)
    engine.close()


def files(root: Path) -> list[Path]:
    return sorted(root.rglob("[!.]*.parquet"))


def test_only_namespaces_with_an_archive_policy_are_archived(spark: SparkSession, log: Log) -> None:
    """N8: the log retains messages for the archive only with this policy."""
    log.set_archive(False)
    with pytest.raises(InvalidRequest, match="no namespace is to be archived"):
        run(spark, log.config())
    with pytest.raises(InvalidRequest, match="namespaces update shop/eu --archive yes"):
        run(spark, ArchiveConfig(log.source, str(log.root), [TOPIC]))
    with pytest.raises(InvalidRequest, match=r'to nowhere://x: .*for scheme "nowhere"$'):
        run(spark, ArchiveConfig(log.source, "nowhere://x"))
    with pytest.raises(InvalidRequest, match="as a pattern"):
        run(spark, ArchiveConfig(log.source, f"{log.root}/[1]"))


def test_topic_deleted_during_a_run_is_skipped(
    spark: SparkSession, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N8: before its state is read, and before its messages are read."""
    log.set_archive(True)
    listed = job.read_topics

    def then_one_is_deleted(*of: Any) -> Iterator[TopicRecord]:
        for topic in listed(*of):
            yield from (replace(topic, name="deleted"), topic)

    monkeypatch.setattr(job, "read_topics", then_one_is_deleted)
    config = replace(log.config(), older_than_ms=10**12)  # no message is that old
    assert run(spark, config).topics == []

    def deleted_first(_: Engine, __: Connection, names: Sequence[TopicName]) -> list[NotFound]:
        return [NotFound(f"{name.full} was deleted") for name in names]

    monkeypatch.setattr(topic_state, "read_topics", deleted_first)
    assert run(spark, log.config()).topics == []


def test_files_that_differ_from_the_messages_read_are_discarded(
    spark: SparkSession, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N8: no file stays."""
    log.set_archive(True)

    def lacking(*of: Any) -> Made:
        made = make(*of)
        return made._replace(read=made.read + Digest(2, 1, 1))

    monkeypatch.setattr(job, "make", lacking)
    with pytest.raises(StorageError, match="30 messages of 32, content"):
        run(spark, log.config())
    assert not log.archived()
    assert not [path for path in log.root.rglob("*") if path.is_file()]


def test_archive_on_another_file_system_is_written_and_read_by_spark(
    spark: SparkSession, log: Log, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """N8: any file system that Spark knows. Files that a task wrote twice are discarded."""
    log.set_archive(True)
    spark.conf.set("fs.viewfs.mounttable.elsewhere.link./mnt", tmp_path.as_uri())
    config = replace(log.config(), output="viewfs://elsewhere/mnt/an archive")
    root = tmp_path / "an archive"

    def doubled(spark: SparkSession, directory: str) -> dict[str, FoundFile]:
        # A task without messages may leave an empty file.
        (one,) = (path for path in root.rglob("*.txt") if path.stat().st_size)
        shutil.copy(one, one.with_name("part-twice.txt"))
        return read_back(spark, directory)

    with monkeypatch.context() as patch:
        patch.setattr(tasks, "read_back", doubled)
        with pytest.raises(StorageError, match="60 messages of 30, content"):
            run(spark, config)
    assert not log.archived()
    assert not [path for path in root.rglob("*") if path.is_file()]
    (done,) = run(spark, config).topics
    assert done.manifest.startswith("viewfs://elsewhere/mnt/an archive/_manifests/")
    (path,) = files(root)
    assert parquet.read_table(path).column("offset").to_pylist() == log.done == log.archived()
    log.forget_archives()


def test_completed_messages_are_archived_as_the_data_source_reads_them(
    spark: SparkSession, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N8, V15: acknowledged and cancelled messages, each once.

    The job takes two steps. The first covers offsets before the beginning of the log and finds no
    completed message.
    """
    monkeypatch.setattr(job, "_MESSAGES_AT_ONCE", 1)
    log.set_archive(True)
    live = spark.read.format("escapement").options(**log.source, topic=TOPIC).load()
    wanted = live.where("state IN ('acked', 'cancelled')").collect()
    shared: list[int] = []

    def then_a_task_is_tried_again(*of: Any) -> Made:
        directory = local_path(of[3])
        assert directory is not None
        directory.mkdir(parents=True)
        (directory / "part-00000-of-the-first-attempt.parquet").write_bytes(b"half of it")
        return make(*of)

    monkeypatch.setattr(job, "make", then_a_task_is_tried_again)
    config = ArchiveConfig(
        log.source, str(log.root), older_than_ms=0, show=lambda at: shared.append(at.messages)
    )
    (done,) = run(spark, config).topics
    assert (done.topic, done.messages, shared) == (TOPIC, 30, [0, 30])
    assert log.archived() == log.done == sorted(row.offset for row in wanted)
    plain = spark.read.parquet(str(log.root))
    found = plain.select(*READ_COLUMNS).collect()
    assert sorted(found, key=lambda row: row.offset) == sorted(wanted, key=lambda row: row.offset)
    assert {(row.namespace, str(row.day)) for row in plain.collect()} == {
        ("shop/eu", str(row.published_at.date())) for row in wanted
    }
    # The data source reads the same rows from the archive, after the log has deleted them.
    names = list(READ_COLUMNS)
    connection = log.engine.connect()
    none = np.zeros(0, np.int64)
    parts = archived_parts(connection, TOPIC, 1, Selection(), none, None)
    connection.close()
    schema = arrow_schema([(name, True) for name in names])
    kept = [batch for part in parts for batch in read_archived(part, schema)]
    ours = spark.createDataFrame(pa.Table.from_batches(kept)).collect()
    assert sorted(ours, key=lambda row: row.offset) == sorted(wanted, key=lambda row: row.offset)
    manifest = Manifest.decode(Path(urlsplit(done.manifest).path).read_bytes())
    connection = log.engine.connect()
    (record,) = archive_record.records(connection, 1)
    connection.close()
    assert Manifest.decode(record.manifest) == manifest
    (path,) = files(log.root)
    (file,) = manifest.files
    assert log.root / file.path == path
    assert (file.sha256, file.size_bytes) == (
        sha256(path.read_bytes()).hexdigest(),
        path.stat().st_size,
    )
    assert (file.messages, file.first_offset, file.last_offset) == (30, 200, 309)
    due_ms = [one.deliver_ms for one in log.expected if one.offset in log.done]
    assert (file.min_due_ms, file.max_due_ms) == (min(due_ms), max(due_ms))


def test_repeated_run_archives_no_message_twice(
    spark: SparkSession, log: Log, capsys: pytest.CaptureFixture[str]
) -> None:
    """N8: the command says that there is nothing to archive."""
    log.set_archive(True)
    words = ["pipeline", "archive", "--to", str(log.root), "--log", log.source["url"]]
    assert command([*words, "--older-than", "0s"]) == 0
    assert "there is nothing to archive" in capsys.readouterr().out
    assert len(files(log.root)) == 1
    assert log.archived() == log.done


def test_audit_checks_the_files_of_the_archive(spark: SparkSession, log: Log) -> None:
    """N8, B7: missing files, changed files, and messages that differ from the database."""
    config = audit.AuditConfig(log.source)
    found = audit.run(spark, config)
    assert found.findings == []
    assert (found.topics[0].archived, found.topics[0].forgotten) == (30, 198)
    connection = log.engine.connect()
    (part,) = RecordedArchive.look(connection, TOPIC, 1).parts
    (state,) = [read_topic(log.engine, connection, TopicName.parse(TOPIC))]
    recorded = RecordedArchive.look(connection, TOPIC, 1)
    connection.close()
    assert recorded.held_against(state, [count_files(part)]) == []
    recorded.archived.add_one(250)
    (finding,) = recorded.held_against(state, [count_files(part)])
    assert finding.startswith("the archive does not have the 31 messages")
    recorded.archived.add_one(10**6)
    assert "1 archived offsets are beyond the end of the log" in recorded.held_against(state, [])
    (path,) = files(log.root)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"x")
    (finding,) = count_files(part).findings
    assert finding.endswith("does not match its checksum")
    path.unlink()
    (missing,) = audit.run(spark, config).findings
    assert "pyarrow cannot open" in missing.what
    path.write_bytes(content)
