"""The INSERTs that cancel and reschedule messages when a transaction of the application commits.

Such a row of the outbox is a *request* about messages of its topic. It applies to messages that are
in the topic already, and to those whose rows were inserted before it. All arguments are checked
before the statement is made.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from escapement.client.delivery_times import Delay
from escapement.errors import InvalidRequest
from escapement.message import MessageId
from escapement.names import TopicName, read_message_id
from escapement.sql.cursors import executor
from escapement.sql.insertion import checked_dedup, checked_key, due_expression
from escapement.storage.outbox.tables import CANCEL, OUTBOX, RESCHEDULE

_COLUMNS: Final = "topic, action, `key`, dedup_key, payload, due_at"


def cancel(
    cursor: Any,
    topic: str,
    *,
    key: str | None = None,
    dedup: str | None = None,
    id: MessageId | str | int | None = None,
) -> None:
    """Cancel messages if and when the transaction of ``cursor`` commits. Executes one INSERT.

    The request applies to the messages that are in the topic already, and to those that
    ``schedule`` has inserted before. A message that a subscription has got already is not changed
    for this subscription. If there is no such message, nothing happens. Give exactly one of
    ``key``, ``dedup`` and ``id``.

    Args:
      cursor: see ``schedule``.
      topic: the name of the topic.
      key: the key of the messages: all pending messages with it are cancelled. The broker searches
        the pending messages of the topic, which takes a quarter of a second for each million.
      dedup: the dedup key of a message. The broker knows it for the length of the topic's dedup
        window (``dedup_window_ms``, ten minutes by default).
      id: the id of a message, ``TOPIC@OFFSET``, or its offset.

    Raises:
      InvalidRequest: if an argument is not valid, or the cursor is asynchronous. No statement was
        executed.
    """
    execute = executor(cursor, "cancellation")
    execute(*cancellation(topic, key=key, dedup=dedup, id=id))


def reschedule(
    cursor: Any,
    topic: str,
    *,
    key: str | None = None,
    dedup: str | None = None,
    id: MessageId | str | int | None = None,
    delay: Delay | None = None,
    at: datetime | None = None,
) -> None:
    """Give messages a new due time if and when the transaction of ``cursor`` commits.

    Executes one INSERT. The messages are those that ``cancel`` would cancel. A cancelled message
    stays cancelled.

    Args:
      cursor, topic, key, dedup, id: see ``cancel``.
      delay: the new delay, counted from this INSERT by the clock of the database.
      at: the new due time, instead of ``delay``: an aware datetime. A time in the past means now.

    Raises:
      InvalidRequest: if an argument is not valid, or the cursor is asynchronous. No statement was
        executed.
    """
    execute = executor(cursor, "rescheduling")
    execute(*rescheduling(topic, key=key, dedup=dedup, id=id, delay=delay, at=at))


def cancellation(
    topic: str,
    *,
    key: str | None = None,
    dedup: str | None = None,
    id: MessageId | str | int | None = None,
) -> tuple[str, tuple[Any, ...]]:
    """Return the INSERT of ``cancel`` and its parameters, for any other driver.

    Raises:
      InvalidRequest: if an argument is not valid.
    """
    return _insertion(CANCEL, topic, key, dedup, id, ("NULL", ()))


def rescheduling(
    topic: str,
    *,
    key: str | None = None,
    dedup: str | None = None,
    id: MessageId | str | int | None = None,
    delay: Delay | None = None,
    at: datetime | None = None,
) -> tuple[str, tuple[Any, ...]]:
    """Return the INSERT of ``reschedule`` and its parameters, for any other driver.

    Raises:
      InvalidRequest: if an argument is not valid.
    """
    if delay is None and at is None:
        raise InvalidRequest("no time was given: pass delay= or at=")
    return _insertion(RESCHEDULE, topic, key, dedup, id, due_expression(delay, at))


def _insertion(
    action: str,
    topic: str,
    key: str | None,
    dedup: str | None,
    id: MessageId | str | int | None,
    due: tuple[str, tuple[Any, ...]],
) -> tuple[str, tuple[Any, ...]]:
    named = TopicName.parse(topic).full
    if sum(value is not None for value in (key, dedup, id)) != 1 or key == "":
        raise InvalidRequest("name the messages in one way: pass key=, dedup= or id=")
    statement = f"INSERT INTO {OUTBOX} ({_COLUMNS}) VALUES (%s, %s, %s, %s, %s, {due[0]})"
    message = "" if id is None else _offset(named, id)
    return statement, (named, action, checked_key(key), checked_dedup(dedup), message, *due[1])


def _offset(topic: str, id: MessageId | str | int) -> str:
    if isinstance(id, bool) or not isinstance(id, MessageId | str | int):
        raise InvalidRequest(f"{id!r} is not a message: pass its id or its offset")
    return str(read_message_id(str(id), topic)[1])
