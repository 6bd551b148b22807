"""What there is to archive of a topic: parts of it, each of which a task makes into files."""

from __future__ import annotations

from itertools import islice
from typing import Final

from escapement.names import TopicName
from escapement.pipeline.part import MOST_RECORDS, Part, cut_unarchived
from escapement.pipeline.selection import Selection, Span
from escapement.storage import archive
from escapement.storage.engine.base import Connection
from escapement.storage.log.log import Log
from escapement.storage.log.logtable import RowKey
from escapement.storage.topicstate import TopicState

# Files are about so large, by what the log's first rows say, and have no fewer messages.
_FILE_BYTES: Final = 32 << 20
_FEWEST: Final = 1_000
_SAMPLE: Final = 256


def unarchived(
    connection: Connection, topic: TopicName, state: TopicState, before_ms: int, since: int = 0
) -> list[Part]:
    """Of what was published before then, what nobody is to get any more, and is not archived.

    From the offset ``since`` on, in the order of offsets.

    Raises:
      StorageUnavailable: when the database cannot be reached.
    """
    end = accepted_before(connection, state.record.id, before_ms, state.end_offset)
    done = Selection(Span(since, end), Span(0, before_ms))
    archived = archive.archived(connection, state.record.id, 0, end)
    return cut_unarchived(topic.full, state, done, archived, _file_messages(connection, state))


def accepted_before(connection: Connection, topic_id: int, before_ms: int, end: int) -> int:
    """The end of what was accepted before then, of a topic whose log ends there."""
    return Log.reading(
        connection, lambda log: log.first_accepted(connection, topic_id, before_ms, end)
    )


def _file_messages(connection: Connection, state: TopicState) -> int:
    """How many messages of the topic make a file of a good size."""

    def first(log: Log) -> list[RowKey]:
        heads = log.heads(connection, state.record.id, state.begin_offset, state.end_offset)
        return [head.key for head in islice(heads, _SAMPLE)]

    keys = Log.reading(connection, first)
    size = max(sum(key.size_bytes for key in keys), 1)
    messages = _FILE_BYTES * sum(key.message_count for key in keys) // size
    return min(max(messages, _FEWEST), MOST_RECORDS)
