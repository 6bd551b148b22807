"""Delivered batches in columns, and delivered messages, each of which is a view of one row.

To *nack* a message (negative acknowledgement) reports a failure: the broker redelivers the message
after a back-off, and the delivery counts as an attempt. To *release* a message returns it without
counting the delivery as an attempt. The *ack deadline* is the time at which the broker redelivers
a message that the consumer has not acknowledged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Protocol

import numpy as np

from escapement.client.consuming.ack_queue import PendingAck
from escapement.client.delivery import DeliveredRow, Delivery, Origin
from escapement.client.delivery_times import Delay
from escapement.message import Int64s


class Holder(Origin, Protocol):
    """The methods of the consumer that received a batch, by which its messages are acknowledged."""

    def _done(self, offset: int) -> PendingAck:
        """Queue the acknowledgement of the message at ``offset``, without waiting."""

    def _give_back(self, offsets: Int64s, delay: Delay | None) -> None:
        """Queue the negative acknowledgement of the messages at ``offsets``, without waiting."""

    def _give_up(self, offsets: Int64s, detail: str) -> None:
        """Queue the rejection of the messages at ``offsets``, without waiting."""

    def _hand_back(self, offsets: Int64s, delay: Delay | None) -> None:
        """Queue the release of the messages at ``offsets``, without waiting."""

    async def extend(self, offsets: Int64s, wait: Delay) -> int: ...

    async def ack(self, offsets: Int64s, *, durable: bool = False) -> int | None: ...

    async def _have_room(self) -> None: ...

    async def _until_durable(self, pending_acks: Sequence[PendingAck]) -> None:
        """Wait until the given acknowledgements are durable. Raises the error of a failed one."""


class Batch(Delivery["Message"]):
    """A batch of delivered messages, in columns with one row per message.

    ``offsets`` and ``due_ms`` (Unix milliseconds) are int64 columns. Iterate over the batch, or
    index it, to get single messages.
    """

    __slots__ = ()

    _origin: Holder

    def _row_type(self) -> type[Message]:
        return Message

    async def ack(self, *, durable: bool = False) -> int | None:
        """Acknowledge all messages of the batch.

        Args, the result and errors are as for ``Inbox.ack``.
        """
        return await self._origin.ack(self.offsets, durable=durable)

    async def nack(self, delay: Delay | None = None) -> None:
        """Negatively acknowledge all messages of the batch, so that the broker redelivers them.

        Args:
          delay: the broker redelivers them after this delay; None selects the back-off of the
            subscription.
        """
        self._origin._give_back(self.offsets, delay)

    async def reject(self, detail: str = "") -> None:
        """Reject all messages of the batch: they become dead letters. See ``Inbox.reject``."""
        self._origin._give_up(self.offsets, detail)

    async def release(self, delay: Delay | None = None) -> None:
        """Release all messages of the batch, so that this delivery does not count as an attempt.

        Args:
          delay: the broker redelivers them after this delay; None means at once.
        """
        self._origin._hand_back(self.offsets, delay)

    async def extend(self, wait: Delay) -> int:
        """Extend the ack deadline of all messages of the batch to at least ``wait`` from now.

        The result and errors are as for ``Inbox.extend``.
        """
        return await self._origin.extend(self.offsets, wait)


class Batches:
    """An async iterator over a consumer's delivered batches, created by ``Inbox.batches``."""

    def __init__(self, next_batch: Callable[[], Awaitable[Batch | None]]) -> None:
        self._next_batch = next_batch

    def __aiter__(self) -> Batches:
        return self

    async def __anext__(self) -> Batch:
        batch = await self._next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch


class Message(DeliveredRow):
    """A delivered message.

    ``async with message:`` acknowledges the message when the block ends without an error. If
    the block raises, the message is negatively acknowledged (``nack``) and the exception
    propagates.
    """

    __slots__ = ()

    _columns: Batch

    async def ack(self, *, durable: bool = False) -> None:
        """Acknowledge the message.

        Args:
          durable: wait until the acknowledgement is durable, so that the message is never
            delivered again.
        """
        holder = self._columns._origin
        await holder._have_room()
        pending_ack = holder._done(self.offset)
        if durable:
            await holder._until_durable([pending_ack])

    async def nack(self, delay: Delay | None = None) -> None:
        """Negatively acknowledge the message, so that the broker redelivers it.

        Args:
          delay: the broker redelivers it after this delay; None selects the back-off of the
            subscription.
        """
        self._columns._origin._give_back(np.array([self.offset], np.int64), delay)

    async def reject(self, detail: str = "") -> None:
        """Reject the message, because it can never be processed: it becomes a dead letter.

        See ``Inbox.reject``.

        Args:
          detail: why, in at most 200 characters, such as "HTTP 410". The dead letter has it.
        """
        self._columns._origin._give_up(np.array([self.offset], np.int64), detail)

    async def release(self, delay: Delay | None = None) -> None:
        """Release the message, so that this delivery does not count as an attempt.

        Args:
          delay: the broker redelivers it after this delay; None means at once.
        """
        self._columns._origin._hand_back(np.array([self.offset], np.int64), delay)

    async def extend(self, wait: Delay) -> bool:
        """Extend the ack deadline of the message to at least ``wait`` from now.

        Returns:
          Whether the message is still in flight at this consumer. If not, the broker may have
          delivered it to another consumer.
        """
        return bool(await self._columns._origin.extend(np.array([self.offset], np.int64), wait))

    async def __aenter__(self) -> Message:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.ack()
        else:
            # The nack is queued without a checkpoint, so that it also works in a cancelled scope.
            self._columns._origin._give_back(np.array([self.offset], np.int64), None)
