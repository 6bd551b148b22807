"""Topics as streams: start positions, batch limits and detection of lost messages."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructType

from escapement.errors import InvalidRequest, LogForgotten, NotFound
from escapement.names import TopicName
from escapement.pipeline.arrow import arrow_schema
from escapement.pipeline.options import Options
from escapement.pipeline.source.reading import read_part
from escapement.pipeline.source.source import EscapementSource
from escapement.pipeline.source.streaming import Position, StreamPlan, admit, from_json, to_json
from escapement.storage.engine.base import Engine
from escapement.storage.engine.sqlite import FILE_NAME, SqliteEngine
from support.storage.eventful_log import TOPIC, begin_relocated, delete, fill, more

NAME = TopicName.parse(TOPIC)
OTHER_NAMES = [TopicName.parse(name) for name in ("a", "b", "c")]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log on SQLite with restated, relocated and forgotten messages."""
    file = tmp_path_factory.mktemp("log") / FILE_NAME
    engine = SqliteEngine(file)
    fill(engine)
    engine.close()
    return file


@pytest.fixture
def engine(filled: Path, tmp_path: Path) -> Iterator[Engine]:
    """An engine on a copy of that log in the directory of the test."""
    shutil.copy(filled, tmp_path)
    opened = SqliteEngine(tmp_path / FILE_NAME)
    yield opened
    opened.close()


def plan(directory: Path, **options: str) -> StreamPlan:
    given = {"topic": TOPIC, "data": str(directory), **options}
    return StreamPlan(Options(given), ["offset"])


def read(engine: Engine, stream: StreamPlan, start: Any, end: Any) -> list[int]:
    """Return the offsets of a batch."""
    found: list[int] = []
    for part in stream.parts(start, end):
        for batch in read_part(engine, part, arrow_schema([("offset", True)])):
            found += batch["offset"].to_pylist()
    return sorted(found)


def test_stream_begins_where_its_options_say(engine: Engine, tmp_path: Path) -> None:
    """B7."""
    latest = plan(tmp_path).latest()
    assert plan(tmp_path).initial() == latest
    for options, first, count in (
        ({"startingOffsets": "earliest"}, 50, 302),
        ({"startingOffsets": json.dumps({TOPIC: -2})}, 50, 302),
        ({"startingOffsets": json.dumps({TOPIC: -1})}, 500, 0),
        ({"startingOffsets": "200"}, 200, 300),
        ({"startingOffsets": json.dumps({TOPIC: 480})}, 480, 20),
        ({"startingTimestamp": "0"}, 50, 302),
        ({"startingTimestamp": "1960-01-01T00:00:00Z"}, 50, 302),
        ({"startingTimestamp": "1"}, 50, 302),
        ({"startingTimestamp": str(round(time.time() - 43_200) * 1000)}, 200, 300),
        ({"startingTimestamp": str(1 << 50)}, 500, 0),
        ({"startingOffsets": "100", "failOnDataLoss": "false"}, 100, 301),
    ):
        stream = plan(tmp_path, **options)
        start = stream.initial()
        assert start[NAME].next_offset == first, options
        assert len(read(engine, stream, start, latest)) == count, options
    with pytest.raises(
        LogForgotten, match=r"begins at 200, not at 100.*as a batch.*failOnDataLoss"
    ):
        plan(tmp_path, startingOffsets="100").initial()
    with pytest.raises(InvalidRequest, match="unknown option 'endingoffsets'"):
        plan(tmp_path, endingOffsets="3")


def test_stream_from_a_timestamp_begins_with_a_relocated_message(
    tmp_path: Path,
) -> None:
    """B7: the log no longer has the row in which the message was published."""
    engine = SqliteEngine(tmp_path / FILE_NAME)
    published_ms = begin_relocated(engine, 7)
    assert plan(tmp_path).latest()[NAME][1:] == (70, 70)
    for index, at_ms in enumerate(published_ms):
        its, following = 10 * index + 9, min(10 * index + 19, 70)
        for since_ms, first in ((at_ms, its), (at_ms + 1, following)):
            stream = plan(tmp_path, startingTimestamp=str(since_ms))
            start = stream.initial()
            assert start[NAME].next_offset == first
            assert read(engine, stream, start, stream.latest()) == list(range(first, 70, 10))
    engine.close()


def test_batches_follow_each_other_without_gap_or_overlap(engine: Engine, tmp_path: Path) -> None:
    """B7."""
    stream = plan(tmp_path, startingOffsets="earliest")
    at, found, sizes = stream.initial(), [], []
    while (end := admit(at, stream.latest(), 70)) != at:
        batch = read(engine, stream, at, end)
        found += batch
        sizes.append(len(batch))
        at = from_json(json.loads(json.dumps(to_json(end))))
    assert found == [50, 150, *range(200, 500)]
    assert max(sizes) <= 70
    more(engine, 10)
    end = admit(at, stream.latest(), None)
    assert read(engine, stream, at, end) == list(range(500, 510))


def test_messages_lost_to_a_stream_are_detected(engine: Engine, tmp_path: Path) -> None:
    """B7: they were forgotten, or their topic was deleted and created again."""
    stream, lenient = plan(tmp_path), plan(tmp_path, failOnDataLoss="false")
    latest = stream.latest()
    at = latest[NAME]
    behind = {NAME: at._replace(next_offset=100, begin_offset=0)}
    with pytest.raises(LogForgotten, match="begins at 200, not at 100"):
        stream.parts(behind, latest)
    assert len(read(engine, lenient, behind, latest)) == 301
    # Messages that were forgotten before the stream began do not count as lost.
    assert stream.parts({NAME: at._replace(next_offset=100, begin_offset=200)}, latest)
    other = {NAME: Position(at.topic_id + 1, 100, 0)}
    with pytest.raises(LogForgotten, match="created again"):
        stream.parts(other, latest)
    assert len(read(engine, lenient, other, latest)) == 302
    assert read(engine, lenient, other, {NAME: Position(at.topic_id + 1, 200, 0)}) == []


def test_deleted_topic_ends_a_stream_unless_fail_on_data_loss_is_false(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """B7: also with a planned batch. If the topic is created again, it is read from its start."""
    stream, lenient = plan(tmp_path), plan(tmp_path, failOnDataLoss="false")
    latest = stream.latest()
    start = {NAME: latest[NAME]._replace(next_offset=400)}
    delete(engine)
    for ask in (stream.latest, lambda: stream.parts(start, latest)):
        with pytest.raises(NotFound, match=r"does not exist, or was deleted.*failOnDataLoss"):
            ask()
    for _ in range(2):
        assert lenient.latest() == {}
        assert lenient.reached(start, {}, None) == start
        assert lenient.parts(start, latest) == []
    said = capsys.readouterr().err
    assert said.count(TOPIC) == said.count("continues despite the loss") == 1
    with pytest.raises(NotFound):
        lenient.initial()
    more(engine, 5)
    end = lenient.reached(start, lenient.latest(), None)
    assert read(engine, lenient, start, end) == list(range(5))
    assert "deleted and created again" in capsys.readouterr().err


def test_log_that_ends_before_the_position_counts_as_data_loss(
    engine: Engine, tmp_path: Path
) -> None:
    """B7: a restored database gives the same offsets to other messages."""
    stream, lenient = plan(tmp_path), plan(tmp_path, failOnDataLoss="false")
    latest = stream.latest()
    ahead = {NAME: latest[NAME]._replace(next_offset=600)}
    with pytest.raises(LogForgotten, match="ends at 500, but was read up to 600"):
        stream.reached(ahead, latest, None)
    assert lenient.reached(ahead, latest, None) == latest
    assert lenient.parts(ahead, latest) == []
    # The log has grown since ``latest`` was read, so the position is valid and the query ends.
    more(engine, 200)
    assert stream.reached(ahead, latest, None) == ahead
    two = OTHER_NAMES[0]
    others = {NAME: ahead[NAME], two: Position(9, 0, 0)}
    wanted = {NAME: latest[NAME], two: Position(9, 30, 0)}
    assert admit(others, wanted, 20) == {NAME: ahead[NAME], two: Position(9, 20, 0)}


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=3),
    st.none() | st.integers(1, 60),
)
@example([(0, 1), (0, 50)], 20)
@example([(0, 50), (0, 1), (0, 1)], 3)
def test_batch_respects_its_limit_and_always_makes_progress(
    ranges: list[tuple[int, int]], most: int | None
) -> None:
    """B7."""
    topics = OTHER_NAMES[: len(ranges)]
    start = {t: Position(1, low, 0) for t, (low, _) in zip(topics, ranges, strict=True)}
    # The log begins later now. The position of a topic without new messages stays the same.
    latest = {t: Position(1, low + n, 7) for t, (low, n) in zip(topics, ranges, strict=True)}
    total = sum(n for _, n in ranges)
    reached = admit(start, latest, most)
    taken = {t: reached[t].next_offset - start[t].next_offset for t in topics}
    assert sum(taken.values()) == min(total, most or total)
    assert all(0 <= taken[t] <= n for t, (_, n) in zip(topics, ranges, strict=True))
    assert all(reached[t] == start[t] for t in topics if not taken[t])
    # Every topic with new messages gets a share of the batch.
    news = [t for t, (_, n) in zip(topics, ranges, strict=True) if n]
    assert (most or total) < len(news) or all(taken[t] for t in news)


def test_topic_added_to_a_stream_is_read_from_its_beginning() -> None:
    """B7."""
    one, two = OTHER_NAMES[:2]
    reached = admit({one: Position(1, 5, 0)}, {one: Position(1, 9, 0), two: Position(2, 6, 3)}, 5)
    assert reached == {one: Position(1, 7, 0), two: Position(2, 3, 3)}


def test_invalid_stream_options_are_refused_at_the_first_call_of_the_reader(
    tmp_path: Path,
) -> None:
    """Spark hides an error raised while it creates a reader behind an UnboundLocalError."""
    schema = StructType().add("offset", LongType())
    for options, wrong in (
        ({"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger"),
        ({"topick": TOPIC}, "topick"),
    ):
        source = EscapementSource({"data": str(tmp_path), "topic": TOPIC} | options)
        reader = source.streamReader(schema)
        with pytest.raises(InvalidRequest, match=wrong):
            reader.getDefaultReadLimit()
    wrong_type = StructType().add("offset", StringType())
    with pytest.raises(InvalidRequest, match="offset"):
        source.streamReader(wrong_type).getDefaultReadLimit()
