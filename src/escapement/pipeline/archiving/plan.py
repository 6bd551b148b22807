"""The plan of the job ``archive`` for one topic: parts of its log, each for one Spark task."""

from __future__ import annotations

from itertools import islice
from typing import Final

from escapement.pipeline.selection import Selection, Span
from escapement.pipeline.source.part import MOST_RECORDS, Part, cut_unarchived
from escapement.storage import archive_record
from escapement.storage.engine.base import Connection
from escapement.storage.log.log import Log
from escapement.storage.log.log_table import RowKey
from escapement.storage.state.topic_state import TopicState

# The target size of a file, and the least number of messages of a part. The size of a message is
# estimated from the first ``_SAMPLE`` rows of the topic's log.
_FILE_BYTES: Final = 32 << 20
_FEWEST: Final = 1_000
_SAMPLE: Final = 256


def unarchived(
    connection: Connection, state: TopicState, before_ms: int, since: int = 0
) -> list[Part]:
    """Return the parts that cover the topic's finished, unarchived messages, in arrival order.

    A message is finished when no subscription will receive it any more. The parts leave out
    messages published at ``before_ms`` or later, and messages with offsets below ``since``.

    Raises:
      StorageUnavailable: if the database cannot be reached.
    """
    end = accepted_before(connection, state.record.id, before_ms, state.end_offset)
    done = Selection(Span(since, end), Span(0, before_ms))
    archived = archive_record.archived(connection, state.record.id, 0, end)
    return cut_unarchived(state, done, archived, _file_messages(connection, state))


def accepted_before(connection: Connection, topic_id: int, before_ms: int, end: int) -> int:
    """Return the first offset published at ``before_ms`` or later, or ``end`` if there is none."""
    return Log.reading(
        connection, lambda log: log.first_accepted(connection, topic_id, before_ms, end)
    )


def _file_messages(connection: Connection, state: TopicState) -> int:
    """Return the number of messages of the topic that make a file of about the target size."""

    def first(log: Log) -> list[RowKey]:
        heads = log.heads(connection, state.record.id, state.begin_offset, state.end_offset)
        return [head.key for head in islice(heads, _SAMPLE)]

    keys = Log.reading(connection, first, state.record.bundle_id)
    size = max(sum(key.size_bytes for key in keys), 1)
    messages = _FILE_BYTES * sum(key.message_count for key in keys) // size
    return min(max(messages, _FEWEST), MOST_RECORDS)
