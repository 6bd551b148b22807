"""The INSERT that acknowledges messages in the transaction of an application.

The table ``escapement_acks`` has at most one row for each message of a subscription. So of two
consumers that hold the same message, only one can commit. The other waits for the first at this
INSERT, and learns whether the first has committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final

from escapement.client.delivery import DeliveredRow
from escapement.clock import SystemClock
from escapement.errors import AlreadyProcessed, InvalidRequest
from escapement.sql.cursors import executor
from escapement.storage.outbox.ack_table import (
    ACKS,
    FINGERPRINT_BYTES,
    MAX_ACKED,
    MAX_AGE_MS,
    AckKey,
)

_CLOCK: Final = SystemClock()
_DAY_MS: Final = 86_400_000
# The error number of MySQL and MariaDB for a row whose key exists.
_DUPLICATE_KEY: Final = 1062

_INSERT: Final = (
    f"INSERT INTO {ACKS} (message, log, topic, subscription, message_offset, acked_at) VALUES "
)
_ROW: Final = "(%s, %s, %s, %s, %s, UTC_TIMESTAMP(3))"


def ack(cursor: Any, messages: DeliveredRow | Iterable[DeliveredRow]) -> None:
    """Acknowledge messages if and when the transaction of ``cursor`` commits. Executes one INSERT.

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

    The statement has a ``%s`` for each parameter. If it fails because the key exists (error 1062),
    a message was processed before.

    Raises:
      InvalidRequest: if the messages are not valid, or a delivery is more than half a week old.
    """
    messages = [messages] if isinstance(messages, DeliveredRow) else list(messages)
    if not 1 <= len(messages) <= MAX_ACKED:
        raise InvalidRequest(f"pass 1 to {MAX_ACKED:,} messages, not {len(messages):,}")
    for message in messages:
        if not isinstance(message, DeliveredRow):
            raise InvalidRequest(f"pass messages of a consumer, not {type(message).__name__}")
    now_ms = _CLOCK.now_ms()
    rows = {row[0]: row for row in [_values(message, now_ms) for message in messages]}
    # Two consumers with the same messages insert them in the same order. So one waits for the other
    # instead of a deadlock.
    values = [value for key in sorted(rows) for value in rows[key]]
    return _INSERT + ", ".join([_ROW] * len(rows)), tuple(values)


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
