"""Peeking: reading the pending messages of a topic in the delivery order, page by page.

The delivery order is by due time, then by offset. Peeking does not consume messages.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from escapement.client.connection.retried_request import Ask
from escapement.clock import moment
from escapement.errors import InvalidRequest
from escapement.message import MessageId
from escapement.names import TopicName

# The most messages that the broker returns in one page.
_PAGE_MESSAGES: Final = 1_000


@dataclass(frozen=True, slots=True)
class Upcoming:
    """A pending message of a topic.

    ``payload`` has the first 512 bytes of the payload, and ``size_bytes`` is the size of the whole
    payload.
    """

    id: MessageId
    due_at: datetime
    key: str | None
    properties: dict[str, Any]
    size_bytes: int
    payload: bytes


class Peeking:
    """An async iterator over the pending messages of a topic, created by ``Broker.peek``.

    ``looked`` counts the messages that the broker has examined, whether or not they matched.
    """

    def __init__(self, ask: Ask, topic: str, sought: dict[str, Any], count: int | None) -> None:
        if count is not None and (type(count) is not int or count < 1):
            raise InvalidRequest(f"count must be an integer of at least 1, not {count!r}")
        self.topic = TopicName.parse(topic).full
        self.looked = 0
        self._ask = ask
        self._left = count
        self._sought = sought
        self._page: deque[Upcoming] = deque()
        self._after: list[int] | None = None
        self._over = False

    def __aiter__(self) -> Peeking:
        return self

    async def __anext__(self) -> Upcoming:
        while not self._page:
            if self._over or self._left == 0:
                raise StopAsyncIteration
            await self._next_page()
        return self._page.popleft()

    async def _next_page(self) -> None:
        count = _PAGE_MESSAGES if self._left is None else min(self._left, _PAGE_MESSAGES)
        answer = await self._ask(
            "topics.peek", topic=self.topic, count=count, after=self._after, **self._sought
        )
        for one in answer["messages"]:
            self._page.append(
                Upcoming(
                    MessageId(self.topic, one["offset"]),
                    moment(one["due_at_ms"]),
                    one["key"],
                    one["properties"],
                    one["size_bytes"],
                    one["payload"],
                )
            )
        if self._left is not None:
            self._left -= len(answer["messages"])
        self.looked += answer["looked"]
        self._after = answer["next"]
        self._over = self._after is None
