"""A contradiction that an audit found, and its kind."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What is damaged. The values are names for people."""

    STATE = "topic state"  # stored sets of offsets, due times or attempts that do not decode
    LOG_ROWS = "log rows"  # a row does not decode, or contradicts its own columns
    LOG_ORDER = "log order"  # rows are missing, overlap, or lie beyond the end of the log
    RESCHEDULED = "rescheduled messages"
    CURSORS = "cursors"
    RETRIES = "retry state"
    INDEX = "index"  # other messages than the log and the cursors require
    INDEX_FILES = "index files"  # the manifest or a segment is damaged
    ARCHIVE = "archive"


@dataclass(frozen=True, slots=True)
class Finding:
    """A contradiction. ``topic`` is "" if it concerns no single topic."""

    topic: str
    what: str
    kind: Kind
