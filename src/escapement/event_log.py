"""Log events: each log line has a stable name and fields, besides a sentence for people.

    _log = EventLog(__name__)
    _log.warning("lease.renewal_failed", "cannot renew the lease: %s", error, retry_s=3)

It is the standard library's ``logging`` with two more attributes on each record: ``event``, the
name, and ``fields``, a dict of plain values. An application that uses the client sees the usual
records, and may format them as it likes. docs/guides/logs.md lists all events.

Fields that hold for all lines of a task are given once, by :func:`log_fields`. Child tasks and the
threads that they call inherit them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

FieldValue = str | int | float | bool | None

# The name of the event of a record that another package has logged.
OTHER: Final = "other"
# Keys of a log line in JSON that no field may have.
RESERVED: Final = frozenset({"time", "level", "event", "message", "logger", "traceback"})

_NAME: Final = re.compile(r"[a-z_]+\.[a-z_]+")
_NO_FIELDS: Final[Mapping[str, FieldValue]] = {}
_inherited: ContextVar[Mapping[str, FieldValue]] = ContextVar(
    "escapement.log_fields", default=_NO_FIELDS
)


@contextmanager
def log_fields(**fields: FieldValue) -> Iterator[None]:
    """Add fields to all events that are logged in the ``with`` block and in its child tasks."""
    token = _inherited.set({**_inherited.get(), **fields})
    try:
        yield
    finally:
        _inherited.reset(token)


class EventLog:
    """The logger of a module.

    Each method takes the name of the event, then a sentence with its arguments as ``logging`` takes
    them, then the fields.
    """

    def __init__(self, module: str) -> None:
        self._logger = logging.getLogger(module)

    def debug(self, event: str, text: str, /, *arguments: object, **fields: FieldValue) -> None:
        self._write(logging.DEBUG, event, text, arguments, fields)

    def info(self, event: str, text: str, /, *arguments: object, **fields: FieldValue) -> None:
        self._write(logging.INFO, event, text, arguments, fields)

    def warning(self, event: str, text: str, /, *arguments: object, **fields: FieldValue) -> None:
        self._write(logging.WARNING, event, text, arguments, fields)

    def error(self, event: str, text: str, /, *arguments: object, **fields: FieldValue) -> None:
        self._write(logging.ERROR, event, text, arguments, fields)

    def exception(self, event: str, text: str, /, *arguments: object, **fields: FieldValue) -> None:
        """Log an error with the traceback of the exception that is being handled."""
        self._write(logging.ERROR, event, text, arguments, fields, has_traceback=True)

    def log(
        self, level: int, event: str, text: str, /, *arguments: object, **fields: FieldValue
    ) -> None:
        """Log at a level that depends on the case."""
        self._write(level, event, text, arguments, fields)

    def _write(
        self,
        level: int,
        event: str,
        text: str,
        arguments: tuple[object, ...],
        fields: Mapping[str, FieldValue],
        *,
        has_traceback: bool = False,
    ) -> None:
        assert _NAME.fullmatch(event), event
        assert RESERVED.isdisjoint(fields), fields
        if self._logger.isEnabledFor(level):
            self._logger.log(
                level,
                text,
                *arguments,
                exc_info=has_traceback,
                extra={"event": event, "fields": {**_inherited.get(), **fields}},
                stacklevel=3,
            )
