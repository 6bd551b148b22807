"""What a consumer gets: batches of columns, and messages, which are views of one row."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import TracebackType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from escapement.client.ackbox import Slip
from escapement.client.delivery import DeliveredRow, Delivery, Origin
from escapement.client.schedule import Delay
from escapement.message import Int64s, MessageBatch


class Holder(Origin, Protocol):
    """Who delivered it, and takes it back: the inbox."""

    def done(self, offset: int) -> Slip:
        """Acknowledge one message, some time soon."""

    def give_back(self, offsets: Int64s, delay: Delay | None) -> None:
        """Nack messages."""

    def hand_back(self, offsets: Int64s, delay: Delay | None) -> None:
        """Release messages."""

    async def extend(self, offsets: Int64s, wait: Delay) -> int: ...

    async def ack(self, offsets: Int64s, *, durable: bool = False) -> int | None: ...

    async def have_room(self) -> None: ...

    async def until_durable(self, slips: Sequence[Slip]) -> None:
        """Wait until these are durable."""


class Batch(Delivery):
    """Messages as they were delivered, in columns of equal height; see ``Delivery``."""

    __slots__ = ("_holder",)

    def __init__(
        self,
        holder: Holder,
        offsets: Int64s,
        due_ms: Int64s,
        attempts: npt.NDArray[np.uint16] | None,
        redelivered: npt.NDArray[np.uint8] | None,
        messages: MessageBatch,
    ) -> None:
        super().__init__(holder, offsets, due_ms, attempts, redelivered, messages)
        self._holder = holder

    def __getitem__(self, row: int) -> Message:
        if not -len(self) <= row < len(self):
            raise IndexError(row)
        return Message(self, row % len(self))

    def __iter__(self) -> Iterator[Message]:
        return (Message(self, row) for row in range(len(self)))

    async def ack(self, *, durable: bool = False) -> int | None:
        """Acknowledge them all; see ``Inbox.ack``."""
        return await self._holder.ack(self.offsets, durable=durable)

    async def nack(self, delay: Delay | None = None) -> None:
        """Give them all back; see ``Inbox.nack``."""
        self._holder.give_back(self.offsets, delay)

    async def release(self, delay: Delay | None = None) -> None:
        """Hand them all back untried; see ``Inbox.release``."""
        self._holder.hand_back(self.offsets, delay)

    async def extend(self, wait: Delay) -> int:
        """Need longer for them all; see ``Inbox.extend``."""
        return await self._holder.extend(self.offsets, wait)

    def rest(self, row: int) -> Batch:
        """The messages from ``row`` on."""
        if row == 0:
            return self
        return Batch(
            self._holder,
            self.offsets[row:],
            self.due_ms[row:],
            None if self._attempts is None else self._attempts[row:],
            None if self._redelivered is None else self._redelivered[row:],
            self.messages.take(np.arange(row, len(self))),
        )


class Batches:
    """Iterates over what is delivered, batch by batch. Made by ``Inbox.batches``."""

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
    """One message, delivered.

    ``async with message:`` acknowledges it when the block ends well; when it ends with an
    exception, the message is given back (``nack``) and the exception goes on its way.
    """

    __slots__ = ("_holder",)

    def __init__(self, batch: Batch, row: int) -> None:
        self._columns = batch
        self._row = row
        self._holder = batch._holder

    async def ack(self, *, durable: bool = False) -> None:
        """Be done with it. With ``durable``, return when it will never come again."""
        holder = self._holder
        await holder.have_room()
        slip = holder.done(self.offset)
        if durable:
            await holder.until_durable([slip])

    async def nack(self, delay: Delay | None = None) -> None:
        """Give it back, to be delivered again after ``delay`` or the usual back-off."""
        self._holder.give_back(np.array([self.offset], np.int64), delay)

    async def release(self, delay: Delay | None = None) -> None:
        """Hand it back untried: this delivery does not count. See ``Inbox.release``."""
        self._holder.hand_back(np.array([self.offset], np.int64), delay)

    async def extend(self, wait: Delay) -> bool:
        """Need up to ``wait`` from now; False if it was taken back. See ``Inbox.extend``."""
        return bool(await self._holder.extend(np.array([self.offset], np.int64), wait))

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
            # No checkpoint here: it has to happen in a cancelled scope as well.
            self._holder.give_back(np.array([self.offset], np.int64), None)
