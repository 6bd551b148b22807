"""Hints: short commands that make the broker look for rows that an application has committed.

The broker finds the rows without hints too. So a hint that cannot be sent is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from escapement.client.administration.row_acks import topic_of
from escapement.client.connection.line import Answer, Line
from escapement.errors import Disconnected, EscapementError
from escapement.event_log import EventLog
from escapement.protocol import commands as wire

_log = EventLog(__name__)


def hint(line: Line, tables: Sequence[str]) -> None:
    """Send a hint for each of the tables, or one for outboxes. The arguments are checked first."""
    topics = [topic_of(table) for table in tables]
    for topic in topics:
        _send(line, "tables.poll", topic=topic)
    if not topics:
        _send(line, "outboxes.poll")


def _send(line: Line, verb: str, **arguments: Any) -> None:
    line.request(partial(wire.Admin, verb=verb, arguments=arguments), _noted)


def _noted(answer: Answer) -> None:
    """Log an answer that shows a mistake of the application, such as a table that is not served."""
    if isinstance(answer, EscapementError) and not isinstance(answer, Disconnected):
        _log.warning("client.hint_refused", "a hint was refused: %s", answer, code=answer.code)
