"""The acknowledgement of rows of a message table by their ids."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import date, timedelta
from decimal import Decimal
from operator import index
from typing import Any, Final
from uuid import UUID

from escapement.client.connection.retried_request import Ask
from escapement.client.content import several
from escapement.errors import InvalidRequest
from escapement.tables.fields import time_text

# The types of an id in a request. The broker converts it to the type of the column.
RowId = int | str | bytes

# A request has at most this many ids, and their size is at most this. Both are about half of what a
# frame without columns may have.
_MOST_IDS: Final = 10_000
_MOST_BYTES: Final = 512 * 1024
_SCHEME: Final = "table://"


async def ack_rows(ask: Ask, table: str, ids: Collection[Any]) -> int:
    """Acknowledge rows, and return how many were not acknowledged before.

    The ids are sent in several requests if they are many. The arguments and errors are those of
    ``Broker.ack_rows``.
    """
    topic = topic_of(table)
    checked = [_checked(id) for id in several("ids", ids)]
    total = 0
    for part in _parts(checked):
        answer = await ask("tables.ack", topic=topic, ids=part)
        total += answer["acknowledged"]
    return total


def topic_of(table: str) -> str:
    """Return the topic of a table that is named as a topic, or as in SQL."""
    if isinstance(table, str):
        if table.startswith(_SCHEME):
            return table
        database, dot, name = table.partition(".")
        if dot and database and name and "." not in name:
            return f"{_SCHEME}{database}/{name}"
    raise InvalidRequest(
        f"{table!r} does not name a message table. Write it like shop.my_message or"
        " table://shop/my_message."
    )


def _checked(id: Any) -> RowId:
    """Return an id as it is sent: an integer, bytes, or the text that MySQL writes for it."""
    if isinstance(id, str | bytes):
        return id
    if isinstance(id, bytearray | memoryview):
        return bytes(id)
    if isinstance(id, Decimal | float | date | UUID):
        return format(id, "f") if isinstance(id, Decimal) else str(id)
    if isinstance(id, timedelta):
        return time_text(id)
    try:
        if isinstance(id, bool):
            raise TypeError
        number = index(id)
    except TypeError:
        raise InvalidRequest(
            f"{id!r:.80} cannot be the id of a row. Pass the values of the column id, such as"
            ' message.row["id"].'
        ) from None
    return number if -(1 << 63) <= number < 1 << 64 else str(number)


def _parts(ids: list[RowId]) -> Iterator[list[RowId]]:
    """Divide ids into requests."""
    part: list[RowId] = []
    size_bytes = 0
    for id in ids:
        # A character has at most 4 bytes.
        more_bytes = 8 if isinstance(id, int) else len(id) * (4 if isinstance(id, str) else 1)
        if part and (len(part) == _MOST_IDS or size_bytes + more_bytes > _MOST_BYTES):
            yield part
            part, size_bytes = [], 0
        part.append(id)
        size_bytes += more_bytes
    if part:
        yield part
