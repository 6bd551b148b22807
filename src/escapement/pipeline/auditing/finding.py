"""A contradiction that an audit found, and its kind."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What is damaged. The values are names for people."""

    STATE = "topic state"  # stored offsets, due times, attempts or keys that do not decode
    LOG_ROWS = "log rows"  # a row does not decode, or contradicts its own columns
    LOG_ORDER = "log order"  # rows are missing or overlap
    TOPIC_END = "topic end"  # the catalog has another end of the log than its rows
    RESCHEDULED = "rescheduled messages"
    CURSORS = "cursors"
    RETRIES = "retry state"
    INDEX = "index"  # other messages than the log and the cursors require
    STALE_INDEX = "stale index"  # a broker would discard the index
    INDEX_FILES = "index files"  # the manifest or a segment is damaged
    ARCHIVE = "archive"


@dataclass(frozen=True, slots=True)
class Finding:
    """A contradiction. ``topic`` is "" if it concerns no single topic."""

    topic: str
    what: str
    kind: Kind
