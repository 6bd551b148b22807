"""The log on stderr: lines for people, and JSON for programs. Neither shows secrets."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
import trio

from escapement.cli.output.log_format import JsonFormatter, LineFormatter
from escapement.cli.output.redaction import redacted
from escapement.event_log import EventLog, log_fields

SECRET = "s3cr3t"


class Lines(logging.Handler):
    """A handler that keeps what a formatter writes."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        record.created = 1_798_138_800.123
        self.lines.append(self.format(record))


@pytest.fixture
def log() -> Any:
    """A log with its own handlers: ``log("json")`` and ``log("lines")`` return the last event."""
    logger = logging.getLogger("escapement.test")
    logger.propagate, logger.level = False, logging.DEBUG
    handlers = {"json": Lines(JsonFormatter()), "lines": Lines(LineFormatter())}
    for handler in handlers.values():
        logger.addHandler(handler)
    yield lambda form: handlers[form].lines[-1]
    for handler in handlers.values():
        logger.removeHandler(handler)
    logger.propagate = True


def test_event_is_one_json_object_with_time_level_event_message_and_fields(log: Any) -> None:
    """O6"""
    with log_fields(broker="b1", connection="10.0.0.1:5"):
        EventLog("escapement.test").warning(
            "lease.lost", "lost to %s", "x", topic="a/b/c", rows=3, table=None
        )
    assert json.loads(log("json")) == {
        "time": "2026-12-24T19:00:00.123Z",
        "level": "warning",
        "event": "lease.lost",
        "message": "lost to x",
        "broker": "b1",
        "connection": "10.0.0.1:5",
        "topic": "a/b/c",
        "rows": 3,
    }


def test_event_is_a_line_with_its_name_and_its_fields_but_the_broker(log: Any) -> None:
    with log_fields(broker="b1"):
        EventLog("escapement.test").info("broker.ready", "ready", at="here and now", port=1)
    assert (
        log("lines")
        == '2026-12-24T19:00:00.123Z INFO    broker.ready: ready at="here and now" port=1'
    )


def test_traceback_is_a_field(log: Any) -> None:
    try:
        raise ValueError("no")
    except ValueError:
        EventLog("escapement.test").exception("connection.failed", "a bug")
    found = json.loads(log("json"))
    assert found["traceback"].endswith("ValueError: no")
    assert found["level"] == "error"
    assert log("lines").splitlines()[0].endswith("connection.failed: a bug")
    assert log("lines").endswith("ValueError: no")


def test_event_of_another_package_has_its_logger(log: Any) -> None:
    logging.getLogger("escapement.test").warning("plain")
    assert json.loads(log("json"))["event"] == "other"
    assert json.loads(log("json"))["logger"] == "escapement.test"


def test_control_characters_forge_no_line(log: Any) -> None:
    EventLog("escapement.test").info("broker.ready", "%s", "a\nb\x1b[2J", name="c\nd")
    assert log("lines").endswith(r'broker.ready: a\nb\x1b[2J name="c\nd"')
    assert "\n" not in log("json")


@pytest.mark.parametrize(
    "text",
    [
        f"mysql://user:{SECRET}@host/db",
        f"mysql://user:{SECRET}@x@host/db",
        f"mysql://:{SECRET}@host/db",
        f"'escapements://u:{SECRET}@[::1]:7650'",
        f"esc_4fz_{SECRET}_9a8b",
    ],
)
def test_secrets_appear_in_no_part_of_an_event(log: Any, text: str) -> None:
    """O6"""
    try:
        raise ValueError(text)
    except ValueError:
        EventLog("escapement.test").exception("broker.failed", "%s", text, database=text)
    assert SECRET not in log("json") + log("lines")
    assert "***" in log("lines")


@pytest.mark.parametrize("text", ["mysql://user@host:3306/db", "a: b@c", "esc", "http://h:80/a@b"])
def test_text_without_secrets_stays_the_same(text: str) -> None:
    assert redacted(text) == text


async def test_fields_of_a_task_are_those_of_its_threads_and_end_with_it(log: Any) -> None:
    event_log = EventLog("escapement.test")
    with log_fields(connection="c"):
        await trio.to_thread.run_sync(lambda: event_log.info("broker.ready", "ready"))
        assert json.loads(log("json"))["connection"] == "c"
    event_log.info("broker.ready", "ready")
    assert "connection" not in json.loads(log("json"))
