"""A reader of a part's messages from the log, as Arrow record batches; runs in a task.

The reader lists the log rows of its part, skips rows outside the selected ranges of times, and
turns the others into record batches of some megabytes. It does not need a running broker.

Each message is read once, with its published content and its current due time. It is read from the
row that first stated it or, if the log has forgotten that row, from the row that restated it last
(part.py explains both). Rows may vanish while the reader works. Their messages are then read from
the archive, or are lost to the read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

import numpy as np

from escapement.errors import LogForgotten, StorageError
from escapement.message import DEFAULT_PRIORITY, Bools, Int64s
from escapement.pipeline import arrow
from escapement.pipeline.maps import decode_maps
from escapement.pipeline.selection import Span
from escapement.pipeline.source.archived_reading import archived_parts, read_archived
from escapement.pipeline.source.message_status import NO_COUNT, STATES
from escapement.pipeline.source.part import Part
from escapement.pipeline.source.read_ahead import ReadAhead
from escapement.sorting import find_sorted
from escapement.storage import archive_record
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.log.log import Log
from escapement.storage.log.log_table import LogRow, RowHead, RowKey, bounded
from escapement.storage.log.published import Published
from escapement.storage.offsets import OffsetSet

# The size of a step: the log rows that are fetched together. It is so large that the fixed cost of
# a step does not matter.
_STEP_BYTES: Final = 8 << 20
# The number of connections that read, and the number of steps that they read ahead.
_READERS: Final = 2
_AHEAD: Final = 3


def read_part(engine: Engine, part: Part, schema: Any) -> Iterator[Any]:
    """Yield the part's messages, in record batches with the columns of ``schema``.

    Raises:
      LogForgotten: if the log has forgotten some of the messages since the query was planned, and
        no archive has them, unless ``failOnDataLoss`` is false.
      LogDamaged: if a row fails its checksum.
      StorageUnavailable: if the database cannot be reached.
    """
    with closing(engine.connect()) as connection:
        for published in _earlier(connection, part):
            yield from _batches(part, published, schema)
        forgotten: list[Span] = []
        with ReadAhead(engine, _READERS, _AHEAD) as ahead:
            for rows in _rows(connection, ahead, part, forgotten):
                yield from _batches(part, Published.first_stated(rows), schema)
        # A range may be in the list twice, because ``_rows`` lists the log again after an error.
        for span in Span.merged(forgotten):
            yield from _archived(connection, part, span & part.offsets, schema)


# -- selecting rows --------------------------------------------------------------


def _earlier(connection: Connection, part: Part) -> Iterator[Published]:
    """Yield the part's messages from before the log's beginning, read from restating rows.

    Each message comes from the row that restated it last.
    """
    moved = part.moved
    count = int(moved.offsets.searchsorted(min(part.offsets.high, part.begin_offset)))
    offsets, bases = moved.offsets[:count], moved.bases[:count]
    wanted = np.unique(bases)[::-1].tolist()
    log = Log.look(connection, part.bundle_id)
    while wanted:
        try:
            rows, looked = log.restatements(connection, part.topic_id, wanted, _STEP_BYTES)
        except StorageError as error:
            log = log.looked_again(connection, error, part.bundle_id)
            continue
        if len(rows) < looked:
            _lost(part, "rows that restate messages are gone")
        for row in rows:
            yield Published.of(row).of_these(offsets[bases == row.key.base_offset])
        wanted = wanted[looked:]


def _rows(
    connection: Connection, ahead: ReadAhead, part: Part, forgotten: list[Span]
) -> Iterator[list[LogRow]]:
    """Yield the rows that first stated the part's messages, in steps.

    If a generation, a set of tables of the log, is dropped meanwhile, the function lists the log
    again and goes on. Rows may also vanish one by one: rows of a deleted topic, and on SQLite all
    rows.

    Args:
      forgotten: a list to which the function adds the ranges of missing offsets.
    """
    at = max(part.offsets.low, part.begin_offset)
    log = Log.look(connection, part.bundle_id)
    while at < part.offsets.high:
        try:
            begin = log.first_offset(connection, part.topic_id)
            if begin is None or begin > at:
                end = part.offsets.high if begin is None else min(begin, part.offsets.high)
                forgotten.append(Span(at, end))
                at = end
                continue
            keys = bounded(_keys(log, connection, part, at, forgotten), _STEP_BYTES)
            for step, found in ahead.steps(log, keys):
                if len(found) < len(step):
                    there = {row.key for row in found}
                    gone = [key for key in step if key not in there]
                    forgotten += [
                        Span(key.base_offset, key.base_offset + key.message_count) for key in gone
                    ]
                if found:
                    yield found
                at = step[-1].base_offset + step[-1].message_count
            return
        except StorageError as error:
            log = log.looked_again(connection, error, part.bundle_id)


def _archived(connection: Connection, part: Part, span: Span, schema: Any) -> Iterator[Any]:
    """Yield the archived messages of a span that the log has forgotten since the planning.

    Raises:
      LogForgotten: if one of the messages is not archived, unless ``failOnDataLoss`` is false.
    """
    archived = OffsetSet()
    if part.with_archives:
        archived = archive_record.archived(connection, part.topic_id, span.low, span.high)
    if archived.first_missing(span.low) < span.high:
        _lost(part, f"messages from {span.low} on are gone")
    if not len(archived):
        return
    statuses = part.statuses if part.statuses is not None and part.statuses.one else None
    selection = replace(part.selection, offsets=span)
    none = np.zeros(0, np.int64)
    for some in archived_parts(connection, part.topic, part.topic_id, selection, none, statuses):
        yield from read_archived(some, schema)


def _keys(
    log: Log, connection: Connection, part: Part, start: int, forgotten: list[Span]
) -> Iterator[RowKey]:
    """Yield the keys of the part's rows that may have selected messages, from ``start`` on.

    Args:
      start: the first offset to look for.
      forgotten: a list to which the function adds the ranges of offsets that no row has.
    """
    at, high = start, part.offsets.high
    for head in log.heads(connection, part.topic_id, start, high):
        if head.key.base_offset > at:
            forgotten.append(Span(at, head.key.base_offset))
        at = head.key.base_offset + head.key.message_count
        if _wanted(part, head):
            yield head.key
    if at < high:
        forgotten.append(Span(at, high))


def _wanted(part: Part, head: RowHead) -> bool:
    """Return whether a row may have selected messages, by its key and its bounds of times."""
    if not part.selection.published.meets(head.accepted_at_ms, head.accepted_at_ms):
        return False
    if part.archived is not None:
        base = head.key.base_offset
        return part.archived.first_missing(base) < base + head.key.message_count
    if part.selection.due.meets(head.min_due_ms, head.max_due_ms):
        return True
    bounds = [head.key.base_offset, head.key.base_offset + head.key.message_count]
    low, high = part.moved.offsets.searchsorted(bounds).tolist()
    return bool(low < high)


def _lost(part: Part, what: str) -> None:
    if part.fail_on_loss:
        raise LogForgotten(
            f"topic {part.topic} has forgotten some of [{part.offsets.low}, {part.offsets.high})"
            f" since the query was planned: {what}. Run the query again, or set failOnDataLoss to"
            " false"
        )


# -- making columns --------------------------------------------------------------


def _batches(part: Part, published: Published, schema: Any) -> Iterator[Any]:
    """Yield one record batch with the selected messages, or nothing if none is selected."""
    due_ms = _current(part, published.offsets, published.due_ms)
    wanted = _selected(part, published, due_ms)
    if not wanted.all():
        rows = np.flatnonzero(wanted)
        if not len(rows):
            return
        low, high = int(rows[0]), int(rows[-1]) + 1
        # At the edges of a part, the selected messages are contiguous and need not be copied.
        whole = len(rows) == high - low
        published = published.part(low, high) if whole else published.take(rows)
        due_ms = due_ms[rows]
    if len(published.offsets):
        columns = {name: _COLUMNS[name] for name in schema.names if name in _COLUMNS}
        filled = {name: make(part, published) for name, make in columns.items()}
        if "deliver_at" in schema.names:
            filled["deliver_at"] = arrow.instants(due_ms)
        if part.statuses is not None:
            codes, counts = part.statuses.codes_and_counts(due_ms, published.offsets)
            filled["state"] = arrow.words(STATES, codes)
            filled["attempt"] = arrow.integers(counts, counts != NO_COUNT)
        yield arrow.record_batch(schema, filled)


def _current(part: Part, offsets: Int64s, due_ms: Int64s) -> Int64s:
    """Return the current due times of messages, given their due times when they were published."""
    at, there = find_sorted(part.moved.offsets, offsets)
    if not there.any():
        return due_ms
    due_ms = due_ms.copy()
    due_ms[there] = part.moved.due_ms[at[there]]
    return due_ms


def _selected(part: Part, published: Published, due_ms: Int64s) -> Bools:
    selection = part.selection
    wanted = np.ones(len(published.offsets), np.bool_)
    for column, span in (
        (published.offsets, part.offsets),
        (published.published_ms, selection.published),
        (due_ms, selection.due),
    ):
        # Usually the span covers all values. That check is faster than one for each value.
        if span != Span() and not span.covers(column):
            wanted &= (column >= span.low) & (column < span.high)
    if part.archived is not None:
        assert part.statuses is not None
        wanted &= ~part.archived.contains(published.offsets)
        wanted &= part.statuses.done(due_ms, published.offsets)
    return wanted


def _key(part: Part, published: Published) -> Any:
    keys = published.batch.keys
    count = len(published.offsets)
    return arrow.no_binaries(count) if keys is None else arrow.binaries(keys, empty_is_null=True)


def _properties(part: Part, published: Published) -> Any:
    packed = published.batch.properties
    if packed is None:
        return arrow.no_maps(len(published.offsets))
    return arrow.maps(decode_maps(packed))


def _priority(part: Part, published: Published) -> Any:
    priorities = published.batch.priorities
    if priorities is None:
        priorities = np.full(len(published.offsets), DEFAULT_PRIORITY, np.int16)
    return arrow.shorts(priorities)


_COLUMNS: Final[dict[str, Callable[[Part, Published], Any]]] = {
    "topic": lambda part, published: arrow.same(part.topic, len(published.offsets)),
    "offset": lambda part, published: arrow.longs(published.offsets),
    "published_at": lambda part, published: arrow.instants(published.published_ms),
    "key": _key,
    "properties": _properties,
    "priority": _priority,
    "payload": lambda part, published: arrow.binaries(published.batch.payloads),
}
