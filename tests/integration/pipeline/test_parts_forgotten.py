"""Tasks that read a part of the log while the log forgets messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from escapement.errors import LogForgotten
from escapement.pipeline.arrow import arrow_schema
from escapement.pipeline.options import Options
from escapement.pipeline.source import reading
from escapement.pipeline.source.planning import BatchPlan
from escapement.pipeline.source.reading import read_part
from escapement.storage.engine.base import Connection
from escapement.storage.engine.sqlite import FILE_NAME, SqliteEngine
from escapement.storage.log.log import Log
from support.storage.eventful_log import CONFIG, TOPIC, begin_anew, fill


def test_generation_dropped_before_it_is_read_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B7: it has no requested messages. This holds for restated rows and for all others."""
    engine = SqliteEngine(tmp_path / FILE_NAME)
    expected = fill(engine)
    look = Log.look
    looks: list[Log] = []

    def look_at_a_log_that_loses_its_oldest(connection: Connection, bundle_id: int) -> Log:
        found = look(connection, bundle_id)
        looks.append(found)
        if len(looks) % 2:  # the next look does not find it
            oldest = found.generations[0]
            return Log([replace(oldest, id=oldest.id - 1), *found.generations])
        return found

    (part,) = BatchPlan(Options({"topic": TOPIC, "data": str(tmp_path)}), ["offset"]).parts()
    monkeypatch.setattr(Log, "look", staticmethod(look_at_a_log_that_loses_its_oldest))
    batches = list(read_part(engine, part, arrow_schema([("offset", True)])))
    found = [n for batch in batches for n in batch["offset"].to_pylist()]
    assert (found, len(looks)) == ([one.offset for one in expected], 4)
    engine.close()


@pytest.mark.parametrize("fail", [True, False])
def test_generation_dropped_during_a_task_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: bool
) -> None:
    """B7: earlier batches stay valid, and without ``failOnDataLoss`` the other rows follow."""
    engine = SqliteEngine(tmp_path / FILE_NAME)
    begin_anew(engine, [10] * 9, [10, 10])
    address = {"data": str(tmp_path), "topic": TOPIC, "failOnDataLoss": str(fail)}
    monkeypatch.setattr(reading, "_STEP_BYTES", 1)
    monkeypatch.setattr(reading, "_AHEAD", 3)
    (part,) = BatchPlan(Options(address), ["offset"]).parts()
    batches = read_part(engine, part, arrow_schema([("offset", True)]))
    found = next(batches)["offset"].to_pylist()
    connection = engine.connect()
    for shard in range(CONFIG.table_parallelism):
        connection.execute(f"DROP TABLE log_1_{shard}")
    connection.execute("DELETE FROM generations WHERE id = 1")
    connection.close()
    if fail:
        with pytest.raises(LogForgotten, match=r"messages from [1-4]0 on"):
            list(batches)
    else:
        for batch in batches:
            found += batch["offset"].to_pylist()
        # Some rows were read ahead before the generation was dropped.
        assert 10 <= len(found) - 20 <= 40
        assert found == [*range(len(found) - 20), *range(90, 110)]
    engine.close()


@pytest.mark.parametrize(
    ("gone", "left"),
    [
        ((30, 49), [*range(30), *range(50, 110)]),
        ((70, 89), [*range(70), *range(90, 110)]),
        ((40, 999), [*range(40)]),
    ],
)
def test_rows_deleted_one_by_one_during_a_task_are_detected(
    tmp_path: Path, gone: tuple[int, int], left: list[int]
) -> None:
    """B7: topic deletion, and forgetting on SQLite, delete rows this way."""
    engine = SqliteEngine(tmp_path / FILE_NAME)
    begin_anew(engine, [10] * 9, [10, 10])
    connection = engine.connect()
    address = {"data": str(tmp_path), "topic": TOPIC}
    schema = arrow_schema([("offset", True)])
    (part,) = BatchPlan(Options(address), ["offset"]).parts()
    for generation in (1, 2):
        for shard in range(CONFIG.table_parallelism):
            between = f"DELETE FROM log_{generation}_{shard} WHERE base_offset BETWEEN ? AND ?"
            connection.execute(between, gone)
    connection.close()
    with pytest.raises(LogForgotten, match=f"messages from {gone[0]} on"):
        list(read_part(engine, part, schema))
    batches = read_part(engine, replace(part, fail_on_loss=False), schema)
    assert [n for batch in batches for n in batch["offset"].to_pylist()] == left
    engine.close()
