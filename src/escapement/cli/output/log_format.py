"""The log of a process on stderr: lines for people, or one JSON object for each event.

    2026-12-24T18:00:00.123Z WARNING lease.renewal_failed: cannot renew the lease: …
    {"time": "2026-12-24T18:00:00.123Z", "level": "warning", "event": "lease.renewal_failed", …}

Lines show all fields but ``broker``, which is the same in all lines of a process. Passwords of URLs
and tokens are hidden in both formats, also in tracebacks.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final, Literal

from escapement.cli.output.redaction import redacted
from escapement.event_log import OTHER, RESERVED

LogFormat = Literal["lines", "json"]
FORMATS: Final[tuple[LogFormat, ...]] = ("lines", "json")
LEVELS: Final = ("debug", "info", "warning", "error")

# The field that lines leave out.
_SAME_IN_ALL_LINES: Final = "broker"


def start_logging(level: str, form: LogFormat) -> None:
    """Log events of at least this level to stderr. Warnings of Python are events too."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else LineFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.captureWarnings(True)


class LineFormatter(logging.Formatter):
    """Formats an event as a line: time, level, name, sentence, fields. A traceback follows."""

    def format(self, record: logging.LogRecord) -> str:
        event, fields = _event_and_fields(record)
        shown = [f" {name}={_value(value)}" for name, value in fields.items()]
        line = f"{_time(record)} {record.levelname:<7} {event}: {_one_line(record.getMessage())}"
        traceback = _traceback(self, record)
        return redacted(line + "".join(shown) + (f"\n{traceback}" if traceback else ""))


class JsonFormatter(logging.Formatter):
    """Formats an event as a JSON object in one line."""

    def format(self, record: logging.LogRecord) -> str:
        event, fields = _event_and_fields(record, with_broker=True)
        found: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "event": event,
            "message": redacted(record.getMessage()),
        }
        found |= {k: redacted(v) if isinstance(v, str) else v for k, v in fields.items()}
        if traceback := _traceback(self, record):
            found["traceback"] = redacted(traceback)
        return json.dumps(found, ensure_ascii=False, default=str)


def _event_and_fields(
    record: logging.LogRecord, *, with_broker: bool = False
) -> tuple[str, dict[str, Any]]:
    """Return the name and the fields of an event. Fields that do not apply are None: left out."""
    event = getattr(record, "event", None)
    if event is None:
        return OTHER, {"logger": record.name}
    fields: dict[str, Any] = getattr(record, "fields", {})
    left_out = RESERVED if with_broker else RESERVED | {_SAME_IN_ALL_LINES}
    return event, {k: v for k, v in fields.items() if v is not None and k not in left_out}


def _time(record: logging.LogRecord) -> str:
    """Return the time of an event as RFC 3339 in UTC, with milliseconds."""
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info else ""


def _value(value: object) -> str:
    """Return the value of a field. Text with spaces, quotes or ``=`` is quoted as in JSON."""
    text = str(value)
    plain = text and text.isprintable() and not any(c in ' "=' for c in text)
    return text if plain else json.dumps(text, ensure_ascii=False)


def _one_line(text: str) -> str:
    """Return a text without control characters, so that a client cannot forge a line of the log."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
