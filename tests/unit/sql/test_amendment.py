"""The checks of arguments, and the statements that cancel and reschedule messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from escapement import InvalidRequest, MessageId, sql

INTO = "INSERT INTO escapement_outbox (topic, action, `key`, dedup_key, payload, due_at) VALUES "
TOPIC = "public/default/t"


@pytest.mark.parametrize(
    ("named", "parameters"),
    [
        ({"key": "k"}, ("k", None, "")),
        ({"dedup": "d"}, (None, "d", "")),
        ({"id": 17}, (None, None, "17")),
        ({"id": "17"}, (None, None, "17")),
        ({"id": "t@17"}, (None, None, "17")),
        ({"id": MessageId(TOPIC, 17)}, (None, None, "17")),
    ],
)
def test_request_is_one_insert(named: dict[str, Any], parameters: tuple[Any, ...]) -> None:
    assert sql.cancellation("t", **named) == (
        INTO + "(%s, %s, %s, %s, %s, NULL)",
        (TOPIC, "cancel", *parameters),
    )
    assert sql.rescheduling("t", delay="3m", **named) == (
        INTO + "(%s, %s, %s, %s, %s, UTC_TIMESTAMP(3) + INTERVAL %s MICROSECOND)",
        (TOPIC, "reschedule", *parameters, 180_000_000),
    )
    assert sql.rescheduling("t", at=datetime(2026, 1, 2, 3, tzinfo=UTC), **named) == (
        INTO + "(%s, %s, %s, %s, %s, %s)",
        (TOPIC, "reschedule", *parameters, "2026-01-02 03:00:00.000"),
    )


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ({}, "in one way"),
        ({"key": "k", "dedup": "d"}, "in one way"),
        ({"key": "k", "id": 1}, "in one way"),
        ({"key": ""}, "in one way"),
        ({"dedup": ""}, "dedup key"),
        ({"key": "k" * 1025}, "key has 1025 characters"),
        ({"dedup": "d" * 256}, "dedup has 256 characters"),
        ({"id": -1}, "is not a message id"),
        ({"id": True}, "is not a message"),
        ({"id": 1.5}, "is not a message"),
        ({"id": "u@1"}, "another topic"),
        ({"id": "t@"}, "is not a message id"),
    ],
)
def test_wrong_names_of_messages_are_refused(named: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        sql.cancellation("t", **named)
    with pytest.raises(InvalidRequest, match=reason):
        sql.rescheduling("t", delay="1h", **named)


def test_wrong_times_and_topics_are_refused() -> None:
    for times in ({}, {"delay": "1h", "at": datetime(2026, 1, 1, tzinfo=UTC)}, {"delay": "-1h"}):
        with pytest.raises(InvalidRequest):
            sql.rescheduling("t", key="k", **times)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        sql.cancellation("t//", key="k")


def test_cursor_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="cursor must be"):
        sql.cancel(None, "t", key="k")
    with pytest.raises(InvalidRequest, match="cursor must be"):
        sql.reschedule(None, "t", key="k", delay="1h")
