"""The checks of messages, and the statement that acknowledges them in another database."""

from __future__ import annotations

from base64 import b64decode
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pymysql
import pytest
from django.db.utils import IntegrityError

from escapement import AlreadyProcessed, Blobs, InvalidRequest, Message, sql
from escapement.client.consuming.batch import Batch, Holder
from escapement.client.delivery import Source
from escapement.clock import SystemClock
from escapement.message import MessageBatch
from escapement.storage.outbox.ack_table import MAX_ACKED, AckKey

LOG = bytes(range(16))
LOG_TEXT = "AAECAwQFBgcICQoLDA0ODw=="
DUPLICATE = 1062, "Duplicate entry 'x' for key 'PRIMARY'"


def batch_of(*offsets: int, topic: str = "public/default/t", id: int = 7) -> Batch:
    column = np.array(offsets, np.int64)
    holder = cast("Holder", SimpleNamespace(topic=topic))
    messages = MessageBatch(
        Blobs.of([b"payload %d" % n for n in offsets]), Blobs.of([b"k"] * len(offsets))
    )
    source = Source(LOG, id, "s", SystemClock().now_ms())
    return Batch(holder, column, column, None, None, messages, source)


class Cursor:
    """Executes nothing, and raises an error of a driver if it has one."""

    def __init__(self, error: Exception | None = None) -> None:
        self.executed: list[tuple[Any, ...]] = []
        self._error = error

    def execute(self, *given: Any) -> None:
        self.executed.append(given)
        if self._error is not None:
            raise self._error

    def fetchone(self) -> None: ...


def test_statement_has_one_placeholder_for_each_parameter() -> None:
    batch = batch_of(5, 3)
    statement, parameters = sql.acknowledgement(batch)
    assert statement == (
        "INSERT INTO escapement_acks"
        " (message, log, topic, subscription, message_offset, acked_at) VALUES"
        " (FROM_BASE64(%s), FROM_BASE64(%s), %s, %s, %s, UTC_TIMESTAMP(3)),"
        " (FROM_BASE64(%s), FROM_BASE64(%s), %s, %s, %s, UTC_TIMESTAMP(3))"
    )
    assert parameters[1:5] == (LOG_TEXT, "public/default/t", "s", 3)  # in the order of the keys
    assert parameters[6:] == (LOG_TEXT, "public/default/t", "s", 5)
    keys = [AckKey.unpack(b64decode(parameters[at])) for at in (0, 5)]
    assert [key[:3] for key in keys] == [(LOG, 7, 3), (LOG, 7, 5)]
    cursor = Cursor()
    sql.ack(cursor, batch)
    assert cursor.executed == [(statement, parameters)]
    assert sql.acknowledgement(list(batch) + list(batch)) == (statement, parameters)
    other = sql.acknowledgement([*batch, *batch_of(3, topic="public/default/u", id=8)])
    assert other[1][10:] == (*other[1][10:12], "public/default/u", "s", 3)


def test_keys_sort_by_subscription_and_offset() -> None:
    keys = [AckKey(LOG, id, offset, bytes(8)) for id in (1, 300) for offset in (0, 9, 1 << 40)]
    packed = [key.pack() for key in keys]
    assert packed == sorted(packed)
    assert [AckKey.unpack(key) for key in packed] == keys


def test_fingerprint_tells_contents_apart() -> None:
    def fingerprint(payload: bytes, key: bytes, properties: bytes) -> bytes:
        batch = batch_of(1)
        batch.messages = MessageBatch(Blobs.of([payload]), Blobs.of([key]), Blobs.of([properties]))
        return AckKey.unpack(b64decode(sql.acknowledgement(batch)[1][0])).fingerprint

    contents = [(b"ab", b"c", b""), (b"a", b"bc", b""), (b"ab", b"", b"c"), (b"abc", b"", b"")]
    assert len({fingerprint(*content) for content in contents}) == len(contents)
    assert fingerprint(b"ab", b"c", b"") == fingerprint(b"ab", b"c", b"")


@pytest.mark.parametrize(
    ("messages", "part"),
    [
        ([], "pass 1 to 4,096 messages, not 0"),
        (batch_of(*range(MAX_ACKED + 1)), "not 4,097"),
        ([5], "not int"),
        ([batch_of(1)[0].id], "not MessageId"),
    ],
)
def test_messages_that_are_not_valid_are_refused(messages: Any, part: str) -> None:
    cursor = Cursor()
    with pytest.raises(InvalidRequest, match=part):
        sql.ack(cursor, messages)
    assert cursor.executed == []


def wrapped(error: Exception, cause: Exception | None = None, **fields: Any) -> Exception:
    """Return an error with the attributes that a driver or a framework gives it."""
    error.__cause__ = cause
    for name, value in fields.items():
        setattr(error, name, value)
    return error


@pytest.mark.parametrize(
    "error",
    [
        pymysql.err.IntegrityError(*DUPLICATE),
        wrapped(IntegrityError("x"), pymysql.err.IntegrityError(*DUPLICATE)),  # Django
        wrapped(Exception("x"), orig=pymysql.err.IntegrityError(*DUPLICATE)),  # SQLAlchemy
        wrapped(Exception(-1, "x"), errno=1062),  # MySQL Connector
    ],
)
def test_duplicate_key_of_every_driver_means_processed(error: Exception) -> None:
    with pytest.raises(AlreadyProcessed, match="t@1 of the subscription s was") as found:
        sql.ack(Cursor(error), batch_of(1)[0])
    assert found.value.code == "already_processed"
    assert found.value.__cause__ is error


def test_other_errors_of_the_driver_are_raised_as_they_are() -> None:
    for number in (1205, 1213, 1048):
        error = pymysql.err.OperationalError(number, "x")
        with pytest.raises(pymysql.err.OperationalError) as found:
            sql.ack(Cursor(error), cast(Message, batch_of(1)[0]))
        assert found.value is error


def test_asynchronous_cursor_is_pointed_to_the_statement() -> None:
    class AsyncCursor(Cursor):
        async def execute(self, *given: Any) -> None:  # type: ignore[override]
            self.executed.append(given)

    cursor = AsyncCursor()
    with pytest.raises(InvalidRequest, match=r"escapement\.sql\.acknowledgement\("):
        sql.ack(cursor, batch_of(1))
    assert cursor.executed == []
