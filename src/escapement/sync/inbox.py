"""The blocking facade of ``escapement.Inbox``, with its batches and messages.

Any number of threads may receive messages. Acknowledgements of single messages are collected
and passed to the event loop together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from threading import Lock
from types import TracebackType
from typing import Any, TypeVar

from escapement.client.consuming import inbox as inboxes
from escapement.client.delivery import DeliveredRow, Delivery
from escapement.client.delivery_times import Delay, Where
from escapement.client.message_ids import What
from escapement.sync.loop import Loop

T = TypeVar("T")


class Inbox:
    """A consumer of a subscription, created by ``Broker.consumer``.

    Several threads may iterate over it; each message goes to one of them.
    """

    def __init__(self, loop: Loop, inbox: inboxes.Inbox) -> None:
        self.topic = inbox.topic
        self.subscription = inbox.subscription
        self.loads = inbox.loads
        self._loop = loop
        self._inbox = inbox
        self._lock = Lock()  # guards _current and _row
        self._current: Batch | None = None
        self._row = 0
        # Acknowledged offsets not yet passed to the event loop. One call of hand_over takes all.
        self._done: deque[int] = deque()
        self._visit_planned = False

    @property
    def active(self) -> bool:
        """Whether this consumer of a failover subscription is the active one."""
        return self._inbox.active

    def __iter__(self) -> Iterator[Message]:
        """Wait for messages and yield them, until the consumer is closed."""
        while (message := self.receive()) is not None:
            yield message

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """Wait for the next message; see ``escapement.Inbox.receive``.

        Returns None if no message arrives within ``timeout_s`` or the consumer is closed.
        """
        with self._lock:
            if self._spent():
                self._current, self._row = self._fetch(timeout_s), 0
            if self._current is None:
                return None
            self._row += 1
            return Message(self._current, self._row - 1)

    def batches(self) -> Iterator[Batch]:
        """Wait for batches of columns and yield them, until the consumer is closed."""
        while (batch := self.next_batch()) is not None:
            yield batch

    def next_batch(self, timeout_s: float | None = None) -> Batch | None:
        """Wait for the next batch; see ``escapement.Inbox.next_batch``.

        Returns None if no batch arrives within ``timeout_s`` or the consumer is closed.
        """
        with self._lock:
            batch = None
            if self._current is not None and not self._spent():
                batch = self._current.rest(self._row)
            self._current = None
            return batch or self._fetch(timeout_s)

    def ack(self, what: What, *, durable: bool = False) -> int | None:
        """Acknowledge messages; see ``escapement.Inbox.ack``."""
        return self._call(self._inbox.ack, what, durable=durable)

    def ack_range(self, first: int, last: int, *, durable: bool = False) -> int | None:
        """Acknowledge the messages from offset ``first`` to ``last``, both included."""
        return self._call(self._inbox.ack_range, first, last, durable=durable)

    def nack(self, what: What, delay: Delay | None = None) -> None:
        """Nack messages: they are redelivered after ``delay``, or after the usual back-off."""
        self._call(self._inbox.nack, what, delay)

    def release(self, what: What, delay: Delay | None = None) -> None:
        """Release messages, without counting an attempt; see ``escapement.Inbox.release``."""
        self._call(self._inbox.release, what, delay)

    def extend(self, what: What, wait: Delay) -> int:
        """Extend the ack deadline of messages; see ``escapement.Inbox.extend``."""
        return self._call(self._inbox.extend, what, wait)

    def seek(self, position: Where) -> None:
        """Move the subscription to a position; see ``escapement.Inbox.seek``."""
        self._call(self._inbox.seek, position)

    def flush_acks(self) -> None:
        """Wait until all earlier acknowledgements are durable."""
        self._call(self._inbox.flush_acks)

    def _acknowledge(self, offset: int) -> None:
        """Queue the acknowledgement of one message, without waiting."""
        self._done.append(offset)
        if not self._visit_planned:
            self._visit_planned = True
            self._loop.start_task_soon(self._pass_acks)

    async def _pass_acks(self) -> None:
        """Pass the queued acknowledgements to the async consumer. Runs in the loop's thread."""
        # Reset first: an acknowledgement queued from now on plans another call.
        self._visit_planned = False
        while self._done:
            self._inbox._done(self._done.popleft())

    def _spent(self) -> bool:
        """Return whether the current batch has no messages left to receive."""
        current = self._current
        return (
            current is None
            or self._row == len(current)
            or current.rewinds != self._inbox.rewinds  # a seek made the batch void
        )

    def _fetch(self, timeout_s: float | None) -> Batch | None:
        async def fetch() -> Batch | None:
            await self._inbox._have_room()
            found = await self._inbox.next_batch(timeout_s)
            if found is None:
                return None
            batch = Batch(
                self,
                found.offsets,
                found.due_ms,
                found._attempts,
                found._redelivered,
                found.messages,
            )
            batch.rewinds = self._inbox.rewinds
            return batch

        return self._call(fetch)

    def _call(self, act: Callable[..., Awaitable[T]], *arguments: Any, **options: Any) -> T:
        async def called() -> T:
            await self._pass_acks()
            return await act(*arguments, **options)

        return self._loop.call(called)


class Batch(Delivery["Message"]):
    """A batch of delivered messages, in columns of equal height.

    ``offsets`` and ``due_ms`` are int64 columns. Iterate over the batch, or index it, for
    single messages.
    """

    __slots__ = ("rewinds",)

    _origin: Inbox
    rewinds: int  # the consumer's number of seeks at delivery

    def _view(self, row: int) -> Message:
        return Message(self, row)

    def ack(self, *, durable: bool = False) -> int | None:
        """Acknowledge all messages of the batch; see ``Inbox.ack``."""
        return self._origin.ack(self.offsets, durable=durable)

    def nack(self, delay: Delay | None = None) -> None:
        """Nack all messages of the batch; see ``Inbox.nack``."""
        self._origin.nack(self.offsets, delay)

    def release(self, delay: Delay | None = None) -> None:
        """Release all messages of the batch; see ``Inbox.release``."""
        self._origin.release(self.offsets, delay)

    def extend(self, wait: Delay) -> int:
        """Extend the ack deadline of all messages of the batch; see ``Inbox.extend``."""
        return self._origin.extend(self.offsets, wait)


class Message(DeliveredRow):
    """A delivered message.

    ``with message:`` acknowledges the message when the block ends without an error. If the
    block raises, the message is negatively acknowledged (``nack``) and the exception
    propagates.
    """

    __slots__ = ()

    _columns: Batch

    def ack(self, *, durable: bool = False) -> None:
        """Acknowledge the message.

        Args:
          durable: wait until the acknowledgement is durable, so that the message is never
            delivered again.
        """
        if durable:
            self._columns._origin.ack(self.offset, durable=True)
        else:
            self._columns._origin._acknowledge(self.offset)

    def nack(self, delay: Delay | None = None) -> None:
        """Nack the message: it is redelivered after ``delay``, or after the usual back-off."""
        self._columns._origin.nack(self.offset, delay)

    def release(self, delay: Delay | None = None) -> None:
        """Release the message: this delivery does not count as an attempt."""
        self._columns._origin.release(self.offset, delay)

    def extend(self, wait: Delay) -> bool:
        """Extend the ack deadline to at least ``wait`` from now.

        Returns:
          False if the message is no longer in flight at this consumer.
        """
        return bool(self._columns._origin.extend(self.offset, wait))

    def __enter__(self) -> Message:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.ack()
        else:
            self.nack()
