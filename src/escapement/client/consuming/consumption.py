"""The context manager of a consumer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from escapement.client.connection.line import Line
from escapement.client.connection.lines import Lines
from escapement.client.consuming.inbox import Inbox
from escapement.client.unopened import Unopened


class Consumption(Unopened, AbstractAsyncContextManager[Inbox]):
    """The context manager of ``Broker.consumer``: it opens a consumer, and closes it."""

    _BEFORE = "before the consumer is opened: write `async with broker.consumer(...) as inbox:`"

    def __init__(self, lines: Lines, topic: str, make: Callable[[Line], Inbox]) -> None:
        self._context = _consuming(lines, topic, make)

    async def __aenter__(self) -> Inbox:
        return await self._context.__aenter__()

    async def __aexit__(self, *error: Any) -> bool | None:
        return await self._context.__aexit__(*error)


@asynccontextmanager
async def _consuming(
    lines: Lines, topic: str, make: Callable[[Line], Inbox]
) -> AsyncIterator[Inbox]:
    line = await lines.of_topic(topic)
    inbox = make(line)
    line.attach(inbox)
    await inbox._wait_opened()
    try:
        yield inbox
    finally:
        await inbox.aclose()
