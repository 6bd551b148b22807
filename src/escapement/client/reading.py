"""Reading a topic by offset: pages of its log, one asked for after the other.

The broker remembers nothing of it. So when a link is lost, the page under way is simply
asked for again, and reading the same range again gives the same messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from escapement.client.asking import ask_again
from escapement.client.delivery import Columns, Origin, Row
from escapement.client.line import Line
from escapement.client.schedule import moment
from escapement.client.serializers import SerializerLike, serializer
from escapement.errors import InvalidRequest
from escapement.message import Int64s, MessageBatch
from escapement.names import TopicName
from escapement.protocol import commands as wire
from escapement.protocol.limits import MAX_BATCH_MESSAGES


class Reading:
    """Made by ``Broker.read``: ``async for page in ...``."""

    def __init__(
        self,
        line: Line,
        topic: str,
        start: int,
        stop: int | None,
        choice: SerializerLike,
        page_messages: int,
    ) -> None:
        if start < 0 or (stop is not None and stop < start):
            raise InvalidRequest(f"{start} to {stop} is no range of offsets")
        if not 1 <= page_messages <= MAX_BATCH_MESSAGES:
            raise InvalidRequest(f"a page has 1 to {MAX_BATCH_MESSAGES} messages")
        self.topic = TopicName.parse(topic).full
        self.loads = serializer(choice).loads
        self._line = line
        self._next = start
        self._stop = stop
        self._page_messages = page_messages

    def __aiter__(self) -> Reading:
        return self

    async def __anext__(self) -> Page:
        while self._stop is None or self._next < self._stop:
            answer = await self._ask()
            # Without a stop: to the end as it was when the reading began.
            end = answer.end_offset
            self._stop = end if self._stop is None else min(self._stop, end)
            self._next = answer.next_offset
            if len(answer.offsets):
                return Page(
                    self, answer.offsets, answer.due_ms, answer.published_ms, answer.decode()
                )
        raise StopAsyncIteration

    async def _ask(self) -> wire.Page:
        start, stop = self._next, -1 if self._stop is None else self._stop
        answer = await ask_again(
            self._line,
            lambda number: wire.Read(number, self.topic, start, stop, self._page_messages),
        )
        assert isinstance(answer, wire.Page)
        return answer


class Page(Columns):
    """Messages as they were published, in columns of equal height, by offset.

    ``published_ms`` (int64) is when each was accepted, Unix milliseconds.
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

    def __getitem__(self, row: int) -> Entry:
        if not -len(self) <= row < len(self):
            raise IndexError(row)
        return Entry(self, row % len(self))

    def __iter__(self) -> Iterator[Entry]:
        return (Entry(self, row) for row in range(len(self)))


class Entry(Row):
    """One message of a topic, as it was published."""

    __slots__ = ()

    _columns: Page

    @property
    def published_ms(self) -> int:
        """When it was accepted, Unix milliseconds."""
        return self._columns.published_ms.item(self._row)

    @property
    def published_at(self) -> datetime:
        """When it was accepted, in UTC."""
        return moment(self.published_ms)
