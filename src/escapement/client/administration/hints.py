"""Hints: short commands that make the broker look for rows that an application has committed.

The broker finds the rows without hints too. So a hint that cannot be sent is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from escapement.client.administration.row_acks import topic_of
from escapement.client.connection.line import Answer
from escapement.client.connection.lines import Lines
from escapement.errors import Disconnected, EscapementError
from escapement.event_log import EventLog
from escapement.protocol import commands as wire

_log = EventLog(__name__)


def hint(lines: Lines, tables: Sequence[str]) -> None:
    """Send a hint for each of the tables, or one for outboxes. The arguments are checked first.

    With several bundles of topics, the broker of bundle 0 serves the tables. Every broker gets the
    hint for outboxes.
    """
    topics = [topic_of(table) for table in tables]
    for topic in topics:
        _send(lines, 0, "tables.poll", topic=topic)
    if not topics:
        for bundle in range(lines.count):
            _send(lines, bundle, "outboxes.poll")


def _send(lines: Lines, bundle: int, verb: str, **arguments: Any) -> None:
    lines.of_bundle(bundle).request(partial(wire.Admin, verb=verb, arguments=arguments), _noted)


def _noted(answer: Answer) -> None:
    """Log an answer that shows a mistake of the application, such as a table that is not served."""
    if isinstance(answer, EscapementError) and not isinstance(answer, Disconnected):
        _log.warning("client.hint_refused", "a hint was refused: %s", answer, code=answer.code)
