"""Reading the messages of a topic by offset, page by page, without a subscription.

The broker keeps no state for a reader. If the connection is lost, the reader requests the same page
again on the next connection. Reading a range of offsets twice gives the same messages.
"""

from __future__ import annotations

from datetime import datetime

from escapement.client.connection.lines import Lines
from escapement.client.connection.retried_request import ask_again
from escapement.client.delivery import Columns, Origin, Row
from escapement.client.serializers import SerializerLike, serializer
from escapement.clock import moment
from escapement.errors import InvalidRequest
from escapement.message import Int64s, MessageBatch
from escapement.names import TopicName
from escapement.protocol import commands as wire
from escapement.protocol.limits import MAX_BATCH_MESSAGES


class Reading:
    """An async iterator over the messages of a topic in pages, created by ``Broker.read``."""

    def __init__(
        self,
        lines: Lines,
        topic: str,
        start: int,
        stop: int | None,
        choice: SerializerLike,
        page_messages: int,
    ) -> None:
        if start < 0 or (stop is not None and stop < start):
            raise InvalidRequest(f"{start} to {stop} is not a range of offsets")
        if not 1 <= page_messages <= MAX_BATCH_MESSAGES:
            raise InvalidRequest(f"page_messages must be from 1 to {MAX_BATCH_MESSAGES}")
        self.topic = TopicName.parse(topic).full
        self._loads = serializer(choice).loads
        self._lines = lines
        self._next = start
        self._stop = stop
        self._page_messages = page_messages

    def __aiter__(self) -> Reading:
        return self

    async def __anext__(self) -> Page:
        while self._stop is None or self._next < self._stop:
            answer = await ask_again(self._lines, self.topic, self._request)
            assert isinstance(answer, wire.Page)
            # Without ``stop``, read to the end that the log had at the time of the first page.
            end = answer.end_offset
            self._stop = end if self._stop is None else min(self._stop, end)
            self._next = answer.next_offset
            if len(answer.offsets):
                return Page(
                    self, answer.offsets, answer.due_ms, answer.published_ms, answer.decode()
                )
        raise StopAsyncIteration

    def _request(self, number: int) -> wire.Read:
        stop = -1 if self._stop is None else self._stop
        return wire.Read(number, self.topic, self._next, stop, self._page_messages)


class Page(Columns["PublishedMessage"]):
    """Messages of a topic as they were published, in columns, ordered by offset.

    ``published_ms`` (int64) has the time at which the broker accepted each message, in Unix
    milliseconds. Iterate over the page, or index it, to get single messages.
    """

    __slots__ = ("published_ms",)

    def __init__(
        self,
        origin: Origin,
        offsets: Int64s,
        due_ms: Int64s,
        published_ms: Int64s,
        messages: MessageBatch,
    ) -> None:
        super().__init__(origin, offsets, due_ms, messages)
        self.published_ms = published_ms

    def _row_type(self) -> type[PublishedMessage]:
        return PublishedMessage


class PublishedMessage(Row):
    """One message of a ``Page``, as it was published."""

    __slots__ = ()

    _columns: Page

    @property
    def published_ms(self) -> int:
        """The time at which the broker accepted the message, in Unix milliseconds."""
        return self._columns.published_ms.item(self._row)

    @property
    def published_at(self) -> datetime:
        """The time at which the broker accepted the message, as a datetime in UTC."""
        return moment(self.published_ms)
