"""The consumers that pull messages for requests.

A message belongs to the consumer that has pulled it, until it is acknowledged or its ack wait is
over. So a consumer stays open between requests. Each pull in progress needs a consumer of its own;
later pulls use it again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import trio

from escapement.client.broker import Broker
from escapement.client.consuming.batch import Batch
from escapement.client.consuming.inbox import Inbox
from escapement.errors import Busy, EscapementError

# The most consumers of one client.
MOST_CONSUMERS: Final = 1000


class Source(NamedTuple):
    """Where a consumer pulls from."""

    topic: str
    subscription: str


@dataclass(slots=True)
class _Puller:
    """A consumer of a source.

    Attributes:
      ack_wait: the ack wait that the consumer asks for; None for that of the subscription.
      busy: whether it pulls.
      used_s: when a request used it last.
    """

    source: Source
    ack_wait: str | None
    context: AbstractAsyncContextManager[Inbox]
    inbox: Inbox
    busy: bool = False
    used_s: float = field(default_factory=trio.current_time)


class PullConsumers:
    """The pulling consumers of one client.

    Args:
      idle_s: how long a consumer stays open without a request.
    """

    def __init__(self, broker: Broker, idle_s: float) -> None:
        self._broker = broker
        self._idle_s = idle_s
        self._pullers: list[_Puller] = []
        self._opening = 0

    async def pull(
        self, source: Source, count: int, wait_s: float, ack_wait: str | None
    ) -> list[Batch]:
        """Wait for messages of a subscription, and return at most ``count``.

        Args:
          wait_s: how long to wait for the first message.
          ack_wait: how long they may stay unacknowledged; None for the subscription's own.

        Raises:
          Busy: if too many consumers are open.
          EscapementError: if the broker refuses.
        """
        puller = next(
            (one for one in self._of(source) if not one.busy and one.ack_wait == ack_wait), None
        )
        if puller is None:
            puller = await self._open(source, ack_wait)
        puller.busy = True
        try:
            return await puller.inbox.pull(count, wait_s)
        except EscapementError:
            await self._close(puller)  # the broker has closed it
            raise
        finally:
            puller.busy = False
            puller.used_s = trio.current_time()

    async def inboxes(self, source: Source) -> list[Inbox]:
        """Return the open consumers of a source: those that may have its messages."""
        for puller in self._of(source):
            if puller.inbox._error is not None:
                await self._close(puller)  # the broker has closed it
        pullers = self._of(source)
        for puller in pullers:
            puller.used_s = trio.current_time()
        return [puller.inbox for puller in pullers]

    async def any_inbox(self, source: Source) -> Inbox:
        """Return a consumer of a source, which is opened if there is none."""
        inboxes = await self.inboxes(source)
        return inboxes[0] if inboxes else (await self._open(source, None)).inbox

    async def close_idle(self) -> None:
        """Close the consumers without requests. Their messages go back to their subscriptions."""
        before_s = trio.current_time() - self._idle_s
        await self._close_if(lambda puller: not puller.busy and puller.used_s <= before_s)

    async def close_all(self) -> None:
        """Close all consumers."""
        await self._close_if(lambda puller: True)

    def _of(self, source: Source) -> list[_Puller]:
        return [puller for puller in self._pullers if puller.source == source]

    async def _open(self, source: Source, ack_wait: str | None) -> _Puller:
        if len(self._pullers) + self._opening >= MOST_CONSUMERS:
            raise Busy(f"This token has {MOST_CONSUMERS} consumers open already. Try again later.")
        context = self._broker.consumer(*source, permits=0, ack_wait=ack_wait)
        self._opening += 1
        try:
            inbox = await context.__aenter__()
        finally:
            self._opening -= 1
        puller = _Puller(source, ack_wait, context, inbox)
        self._pullers.append(puller)
        return puller

    async def _close_if(self, is_over: Callable[[_Puller], bool]) -> None:
        for puller in list(self._pullers):
            if is_over(puller):  # not if a request uses it by now
                await self._close(puller)

    async def _close(self, puller: _Puller) -> None:
        if puller in self._pullers:
            self._pullers.remove(puller)
            with suppress(EscapementError):
                await puller.context.__aexit__(None, None, None)
