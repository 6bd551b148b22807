"""The statements that acknowledge messages in the transaction of an application.

A row of a message table is acknowledged by an UPDATE of the row itself. Several rows are locked
first. So if one of them cannot be acknowledged, or its lock times out, no row has changed. Each
statement finds one row by its id, because a server may scan a table for a list of ids. A scan waits
for locks on other rows.

For messages of a topic, an INSERT notes them. The table ``escapement_acks`` has at most one row for
each message of a subscription. So of two consumers that hold the same message, only one can commit.
The other waits for the first at this INSERT, and learns whether the first has committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from hashlib import blake2b
from typing import Any, Final

from escapement.client.delivery import DeliveredRow
from escapement.clock import SystemClock
from escapement.errors import AlreadyProcessed, InvalidRequest
from escapement.identifier import quoted
from escapement.names import TableName
from escapement.sql import binary
from escapement.sql.cursors import Execute, executor
from escapement.storage.outbox.ack_table import (
    ACKS,
    FINGERPRINT_BYTES,
    MAX_ACKED,
    MAX_AGE_MS,
    AckKey,
)
from escapement.tables.fields import time_text

_CLOCK: Final = SystemClock()
_DAY_MS: Final = 86_400_000
# The error number of MySQL and MariaDB for a row whose key exists.
_DUPLICATE_KEY: Final = 1062

_INSERT: Final = (
    f"INSERT INTO {ACKS} (message, log, topic, subscription, message_offset, acked_at) VALUES "
)
_ROW: Final = f"({binary.PLACEHOLDER}, {binary.PLACEHOLDER}, %s, %s, %s, UTC_TIMESTAMP(3))"


def ack(cursor: Any, messages: DeliveredRow | Iterable[DeliveredRow]) -> None:
    """Acknowledge messages if and when the transaction of ``cursor`` commits.

    Executes one INSERT. For rows of message tables, it executes one UPDATE for each row, and before
    that one locking SELECT for each if there are several.

    Call it before the other statements of the transaction. If another transaction has inserted the
    same messages and is open, this call waits for its end. If the transaction of ``cursor`` rolls
    back, the broker delivers the messages again.

    Args:
      cursor: a cursor of PyMySQL, mysqlclient, MySQL Connector or Django, or a connection of
        SQLAlchemy, on a database with the tables of ``escapement sql install``.
      messages: a delivered message, a batch, or several messages.

    Raises:
      AlreadyProcessed: if another transaction has acknowledged one of the messages and committed.
        The transaction of ``cursor`` is still open, and none of the messages is acknowledged in it.
        Roll it back, and acknowledge the message with ``Message.ack``.
      InvalidRequest: if an argument is not valid, or the cursor is asynchronous, or a delivery is
        more than half a week old. No statement was executed.
    """
    execute = executor(cursor, "acknowledgement")
    messages = _checked(messages)
    if _is_row(messages[0]):
        _ack_rows(execute, messages)
        return
    statement, parameters = acknowledgement(messages)
    try:
        execute(statement, parameters)
    except Exception as error:
        if not _is_duplicate_key(error):
            raise
        topic, subscription, offset = parameters[2:5]
        which = f"{topic}@{offset} of the subscription {subscription}"
        if len(parameters) > 5:
            which = "one of these messages"
        raise AlreadyProcessed(
            f"{which} was processed before: roll the transaction back, and acknowledge the message "
            "with its method ack()"
        ) from error


def acknowledgement(
    messages: DeliveredRow | Iterable[DeliveredRow],
) -> tuple[str, tuple[Any, ...]]:
    """Return the INSERT of ``ack`` and its parameters, for any other driver.

    The statement has a ``%s`` for each parameter. No parameter is bytes. If the statement fails
    because the key exists (error 1062), a message was processed before.

    Raises:
      InvalidRequest: if the messages are not valid, or a delivery is more than half a week old.
    """
    messages = _checked(messages)
    if _is_row(messages[0]):
        raise InvalidRequest(
            "rows of message tables have no INSERT: execute UPDATE ... SET time_acked = ...,"
            " time_next = NULL WHERE id = ... AND time_acked IS NULL; if it changes no row, the"
            " message was processed before"
        )
    now_ms = _CLOCK.now_ms()
    rows = {row[0]: row for row in [_values(message, now_ms) for message in messages]}
    # Two consumers with the same messages insert them in the same order. So one waits for the other
    # instead of a deadlock.
    values: list[object] = []
    for key in sorted(rows):
        _, log, *named = rows[key]
        values += [binary.encoded(key), binary.encoded(log), *named]
    return _INSERT + ", ".join([_ROW] * len(rows)), tuple(values)


def _checked(messages: DeliveredRow | Iterable[DeliveredRow]) -> list[DeliveredRow]:
    checked = [messages] if isinstance(messages, DeliveredRow) else list(messages)
    if not 1 <= len(checked) <= MAX_ACKED:
        raise InvalidRequest(f"pass 1 to {MAX_ACKED:,} messages, not {len(checked):,}")
    for message in checked:
        if not isinstance(message, DeliveredRow):
            raise InvalidRequest(f"pass messages of a consumer, not {type(message).__name__}")
    if len({_is_row(message) for message in checked}) > 1:
        raise InvalidRequest("pass either rows of message tables or messages of topics")
    return checked


def _is_row(message: DeliveredRow) -> bool:
    return message._columns.messages.fields is not None


def _ack_rows(execute: Execute, messages: Sequence[DeliveredRow]) -> None:
    """Acknowledge rows of message tables, in an order that two holders have in common."""
    named = {}
    for message in messages:
        table, row = TableName.parse(message._columns.topic), message.row
        if "id" not in row:
            raise InvalidRequest(
                f"{message.id} has no id, because message_cols of {table.full} leaves it out"
            )
        named[table.full, repr(row["id"])] = table, row["id"]
    rows = [row for _, row in sorted(named.items())]
    if len(rows) > 1:
        for table, id in rows:
            _run_for_row(execute, "SELECT 1 FROM {} WHERE {} FOR UPDATE", (), table, id)
    at_ns = _CLOCK.now_ms() * 1_000_000
    for table, id in rows:
        update = "UPDATE {} SET time_acked = %s, time_next = NULL WHERE {}"
        _run_for_row(execute, update, (at_ns,), table, id)


def _run_for_row(
    execute: Execute, statement: str, parameters: tuple[Any, ...], table: TableName, id: Any
) -> None:
    """Execute a statement for a row that is not acknowledged. Raises AlreadyProcessed if it is."""
    name = f"{quoted(table.database)}.{quoted(table.name)}"
    sql = statement.format(name, "id = %s AND time_acked IS NULL")
    # Some drivers write a negative timedelta as another time.
    text = time_text(id) if isinstance(id, timedelta) else id
    if execute(sql, (*parameters, text)) == 0:
        raise AlreadyProcessed(
            f"row {id!r} of {table.full} was processed before, or deleted: roll the transaction"
            " back, and acknowledge the message with its method ack()"
        )


def _values(row: DeliveredRow, now_ms: int) -> tuple[bytes, bytes, str, str, int]:
    source = row._columns._source
    age_ms = now_ms - source.sent_after_ms
    if age_ms > MAX_AGE_MS:
        raise InvalidRequest(
            f"the delivery of {row.id} is {age_ms / _DAY_MS:.1f} days old; at most "
            f"{MAX_AGE_MS / _DAY_MS:.1f} days are allowed, because the database remembers "
            "processed messages for a limited time. The broker delivers the message again"
        )
    key = AckKey(source.log, source.subscription_id, row.offset, _fingerprint(row))
    return key.pack(), source.log, row._columns.topic, source.subscription, row.offset


def _fingerprint(row: DeliveredRow) -> bytes:
    """Return a digest of the content, which is the same in every delivery of the message."""
    found = blake2b(digest_size=FINGERPRINT_BYTES)
    for name in ("keys", "properties", "payloads"):
        part = row._columns._strings(name)[row._row]
        found.update(len(part).to_bytes(8, "big") + part)
    return found.digest()


def _is_duplicate_key(error: BaseException | None) -> bool:
    """Return whether the error of any driver, perhaps wrapped, is about an existing key."""
    while error is not None:
        if _DUPLICATE_KEY in (getattr(error, "errno", None), *error.args[:1]):
            return True
        error = getattr(error, "orig", None) or error.__cause__
    return False
