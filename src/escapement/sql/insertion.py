"""The INSERT that puts a message into the outbox of an application's database.

All arguments are checked before the statement is made, as ``Producer.send`` checks them. A delay
counts by the clock of the database, so the clock of the application does not matter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from escapement.client import content, delivery_times
from escapement.client.delivery_times import Delay
from escapement.client.serializers import SerializerLike, serializer
from escapement.clock import moment
from escapement.dedup import digest
from escapement.durations import format as duration_text
from escapement.errors import InvalidRequest
from escapement.message import DEFAULT_PRIORITY, NO_TIME
from escapement.names import TopicName
from escapement.sql import binary
from escapement.sql.cursors import executor
from escapement.storage.outbox.tables import (
    MAX_DEDUP_CHARS,
    MAX_KEY_CHARS,
    MAX_MESSAGE_BYTES,
    OUTBOX,
)

# A longer delay could exceed the range of the database's times, which would make it NULL.
_MAX_DELAY_MS: Final = 100 * 366 * 86_400_000
# The last time that the database can store.
_LAST_MS: Final = 253_402_300_799_999
_COLUMNS: Final = "topic, `key`, payload, headers, dedup_key, priority, due_at"


def schedule(
    cursor: Any,
    topic: str,
    payload: Any,
    *,
    delay: Delay | None = None,
    at: datetime | None = None,
    key: str | None = None,
    properties: Mapping[str, Any] | None = None,
    priority: int = DEFAULT_PRIORITY,
    dedup: str | None = None,
    serializer: SerializerLike = bytes,
) -> None:
    """Send a message if and when the transaction of ``cursor`` commits. Executes one INSERT.

    Args:
      cursor: a cursor of PyMySQL, mysqlclient, MySQL Connector or Django, or a connection of
        SQLAlchemy.
      topic: the name of the topic.
      payload: a value that the serializer accepts.
      delay: the delay before delivery, counted from this INSERT by the clock of the database: a
        timedelta, ``(3, "minutes")``, or ``"3m"``.
      at: the time of delivery, instead of ``delay``: an aware datetime.
      key: a text for the application. Subscriptions may deliver the messages of a key in order.
      properties: a small map from str to values that JSON has, for the application.
      priority: 0 to 255. Of several due messages, a shared subscription delivers the one with the
        lowest number first.
      dedup: a dedup key; see ``Producer.send``.
      serializer: converts ``payload`` to bytes; see ``Broker.producer``.

    Raises:
      InvalidRequest: if an argument is not valid, or the cursor is asynchronous. No statement was
        executed.
    """
    execute = executor(cursor, "insertion")
    statement, parameters = insertion(
        topic,
        payload,
        delay=delay,
        at=at,
        key=key,
        properties=properties,
        priority=priority,
        dedup=dedup,
        serializer=serializer,
    )
    execute(statement, parameters)


def insertion(
    topic: str,
    payload: Any,
    *,
    delay: Delay | None = None,
    at: datetime | None = None,
    key: str | None = None,
    properties: Mapping[str, Any] | None = None,
    priority: int = DEFAULT_PRIORITY,
    dedup: str | None = None,
    serializer: SerializerLike = bytes,
) -> tuple[str, tuple[Any, ...]]:
    """Return the INSERT of ``schedule`` and its parameters, for any other driver.

    The statement has a ``%s`` for each parameter. No parameter is bytes, because some drivers
    cannot pass them on. The arguments are those of ``schedule``.

    Raises:
      InvalidRequest: if an argument is not valid.
    """
    data = _dumps(serializer, payload)
    headers = _headers(properties)
    size_bytes = len(data) + len((headers or "").encode())
    if size_bytes > MAX_MESSAGE_BYTES:
        raise InvalidRequest(
            f"payload and properties have {size_bytes:,} bytes; at most {MAX_MESSAGE_BYTES:,} fit"
        )
    due = due_expression(delay, at)
    content.check_priority(priority)
    values = f"%s, %s, {binary.PLACEHOLDER}, %s, %s, %s, {due[0]}"
    statement = f"INSERT INTO {OUTBOX} ({_COLUMNS}) VALUES ({values})"
    named = TopicName.parse(topic).full
    return statement, (
        named,
        checked_key(key),
        binary.encoded(data),
        headers,
        checked_dedup(dedup),
        priority,
        *due[1],
    )


def due_expression(delay: Delay | None, at: datetime | None) -> tuple[str, tuple[Any, ...]]:
    """Return an SQL expression for a due time, and its parameters.

    Raises:
      InvalidRequest: if the time is not valid.
    """
    delay_ms, at_ms = delivery_times.one(delay, at)
    if delay_ms > _MAX_DELAY_MS:
        raise InvalidRequest(f"delay must be at most {duration_text(_MAX_DELAY_MS)}")
    if at_ms > _LAST_MS:
        raise InvalidRequest("at must be before the year 10000")
    if delay_ms > 0:
        return "UTC_TIMESTAMP(3) + INTERVAL %s MICROSECOND", (1000 * delay_ms,)
    if at_ms != NO_TIME:
        return "%s", (_utc(at_ms),)
    return "NULL", ()


def _dumps(choice: SerializerLike, payload: Any) -> bytes:
    data = serializer(choice).dumps(payload)
    if not isinstance(data, bytes):
        raise InvalidRequest(f"serializer made a {type(data).__name__}, not bytes")
    return data


def checked_key(key: str | None) -> str | None:
    content.key(key)
    if key is not None and len(key) > MAX_KEY_CHARS:
        raise InvalidRequest(f"key has {len(key)} characters; at most {MAX_KEY_CHARS} fit")
    return key or None


def checked_dedup(dedup: str | None) -> str | None:
    if dedup is not None:
        digest(dedup)  # checks it
        if len(dedup) > MAX_DEDUP_CHARS:
            raise InvalidRequest(
                f"dedup has {len(dedup)} characters; at most {MAX_DEDUP_CHARS} fit"
            )
    return dedup


def _headers(properties: Mapping[str, Any] | None) -> str | None:
    """Return properties as JSON; None if there are none."""
    if not content.properties(properties):
        return None
    named = content.as_map(properties)
    for name, value in named.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(
                f"property {name!r} of type {type(value).__name__} cannot be stored as JSON: "
                f"{error}"
            ) from None
    return json.dumps(named, separators=(",", ":"))


def _utc(at_ms: int) -> str:
    at = moment(at_ms).astimezone(UTC).replace(tzinfo=None)
    return at.isoformat(sep=" ", timespec="milliseconds")
