"""The plan of the job ``archive`` for one topic: parts, each of which one task archives."""

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

# The target size of a file, estimated from the log's first rows, and its minimum of messages.
_FILE_BYTES: Final = 32 << 20
_FEWEST: Final = 1_000
_SAMPLE: Final = 256


def unarchived(
    connection: Connection, state: TopicState, before_ms: int, since: int = 0
) -> list[Part]:
    """Return parts with the topic's finished messages that are not archived, in arrival order.

    A message is finished when no subscription will receive it any more. Only messages published
    before ``before_ms``, from the offset ``since`` on.

    Raises:
      StorageUnavailable: if the database cannot be reached.
    """
    end = accepted_before(connection, state.record.id, before_ms, state.end_offset)
    done = Selection(Span(since, end), Span(0, before_ms))
    archived = archive_record.archived(connection, state.record.id, 0, end)
    return cut_unarchived(state, done, archived, _file_messages(connection, state))


def accepted_before(connection: Connection, topic_id: int, before_ms: int, end: int) -> int:
    """Return the first offset accepted at ``before_ms`` or later, or ``end`` if there is none."""
    return Log.reading(
        connection, lambda log: log.first_accepted(connection, topic_id, before_ms, end)
    )


def _file_messages(connection: Connection, state: TopicState) -> int:
    """Return how many messages of the topic make a file of about the target size."""

    def first(log: Log) -> list[RowKey]:
        heads = log.heads(connection, state.record.id, state.begin_offset, state.end_offset)
        return [head.key for head in islice(heads, _SAMPLE)]

    keys = Log.reading(connection, first)
    size = max(sum(key.size_bytes for key in keys), 1)
    messages = _FILE_BYTES * sum(key.message_count for key in keys) // size
    return min(max(messages, _FEWEST), MOST_RECORDS)
