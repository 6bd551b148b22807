"""The blocking face of ``escapement.Inbox``, and what comes out of it.

Any number of threads may take messages out; what is acknowledged one by one is gathered here
and handed to the loop in one visit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from threading import Lock
from types import TracebackType
from typing import TypeVar

from escapement.client import batch as batches
from escapement.client import inbox as inboxes
from escapement.client.delivery import DeliveredRow, Delivery
from escapement.client.naming import What
from escapement.client.schedule import Delay, Where
from escapement.sync.loop import Loop

T = TypeVar("T")


class Inbox:
    """Made by ``Broker.consumer``; threads that iterate share what comes."""

    def __init__(self, loop: Loop, inbox: inboxes.Inbox) -> None:
        self.topic = inbox.topic
        self.subscription = inbox.subscription
        self._loop = loop
        self._inbox = inbox
        self._lock = Lock()  # over the batch that is being iterated
        self._current: Batch | None = None
        self._row = 0
        # What was acknowledged and is not yet told to the loop; one visit takes it all.
        self._done: deque[int] = deque()
        self._visit_planned = False

    @property
    def active(self) -> bool:
        """Of a failover subscription: whether this consumer is the one that receives."""
        return self._inbox.active

    def __iter__(self) -> Iterator[Message]:
        """The messages; waits for them, until the inbox is closed."""
        while (message := self.receive()) is not None:
            yield message

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """The next message, or None if none comes within ``timeout_s`` or ever."""
        with self._lock:
            if self._spent():
                self._current, self._row = self._fetch(timeout_s), 0
            if self._current is None:
                return None
            self._row += 1
            return Message(self._current, self._row - 1)

    def batches(self) -> Iterator[Batch]:
        """The messages in columns, as they were delivered; waits for them."""
        while (batch := self.next_batch()) is not None:
            yield batch

    def next_batch(self, timeout_s: float | None = None) -> Batch | None:
        """What is left of the batch begun, or the next; None if none comes in time or ever."""
        with self._lock:
            batch = None
            if self._current is not None and not self._spent():
                batch = self._current.rest(self._row)
            self._current = None
            return batch or self._fetch(timeout_s)

    def ack(self, what: What, *, durable: bool = False) -> int | None:
        """Be done with messages; see ``escapement.Inbox.ack``."""
        return self._call(partial(self._inbox.ack, what, durable=durable))

    def ack_range(self, first: int, last: int, *, durable: bool = False) -> int | None:
        """Be done with the messages from offset ``first`` to ``last``, both included."""
        return self._call(partial(self._inbox.ack_range, first, last, durable=durable))

    def nack(self, what: What, delay: Delay | None = None) -> None:
        """Give messages back, to be delivered again after ``delay`` or the usual back-off."""
        self._call(partial(self._inbox.nack, what, delay))

    def release(self, what: What, delay: Delay | None = None) -> None:
        """Hand messages back untried; see ``escapement.Inbox.release``."""
        self._call(partial(self._inbox.release, what, delay))

    def extend(self, what: What, wait: Delay) -> int:
        """Need longer for messages; see ``escapement.Inbox.extend``."""
        return self._call(partial(self._inbox.extend, what, wait))

    def seek(self, position: Where) -> None:
        """Have the subscription begin again elsewhere; see ``escapement.Inbox.seek``."""
        self._call(partial(self._inbox.seek, position))

    def flush_acks(self) -> None:
        """Wait until every acknowledgement so far is durable."""
        self._call(self._inbox.flush_acks)

    def done(self, offset: int) -> None:
        """Acknowledge one message, some time soon; never waits."""
        self._done.append(offset)
        if not self._visit_planned:
            self._visit_planned = True
            self._loop.start_task_soon(self.hand_over)

    def hand_over(self) -> None:
        """Tell the inbox what was acknowledged. Runs in the loop's thread."""
        self._visit_planned = False  # before taking, so that nothing is left lying
        while self._done:
            self._inbox.done(self._done.popleft())

    def _spent(self) -> bool:
        """Whether nothing of the batch begun is to be given out any more."""
        current = self._current
        return (
            current is None
            or self._row == len(current)
            or current.rewinds != self._inbox.rewinds  # it was taken back: a seek
        )

    def _fetch(self, timeout_s: float | None) -> Batch | None:
        async def fetch() -> Batch | None:
            await self._inbox.have_room()
            found = await self._inbox.next_batch(timeout_s)
            return None if found is None else Batch(self, found)

        return self._call(fetch)

    def _call(self, act: Callable[[], Awaitable[T]]) -> T:
        async def called() -> T:
            self.hand_over()
            return await act()

        return self._loop.call(called)


class Batch(Delivery):
    """Messages as they were delivered, in columns of equal height; see ``Delivery``."""

    __slots__ = ("_batch", "_inbox", "rewinds")

    def __init__(self, inbox: Inbox, batch: batches.Batch) -> None:
        super().__init__(
            batch._origin,
            batch.offsets,
            batch.due_ms,
            batch._attempts,
            batch._redelivered,
            batch.messages,
        )
        self._batch = batch
        self._inbox = inbox
        self.rewinds = inbox._inbox.rewinds  # how often what was delivered had been taken back

    def __getitem__(self, row: int) -> Message:
        if not -len(self) <= row < len(self):
            raise IndexError(row)
        return Message(self, row % len(self))

    def __iter__(self) -> Iterator[Message]:
        return (Message(self, row) for row in range(len(self)))

    def ack(self, *, durable: bool = False) -> int | None:
        """Acknowledge them all; see ``Inbox.ack``."""
        return self._inbox.ack(self.offsets, durable=durable)

    def nack(self, delay: Delay | None = None) -> None:
        """Give them all back; see ``Inbox.nack``."""
        self._inbox.nack(self.offsets, delay)

    def release(self, delay: Delay | None = None) -> None:
        """Hand them all back untried; see ``Inbox.release``."""
        self._inbox.release(self.offsets, delay)

    def extend(self, wait: Delay) -> int:
        """Need longer for them all; see ``Inbox.extend``."""
        return self._inbox.extend(self.offsets, wait)

    def rest(self, row: int) -> Batch:
        """The messages from ``row`` on."""
        return Batch(self._inbox, self._batch.rest(row))


class Message(DeliveredRow):
    """One message, delivered.

    ``with message:`` acknowledges it when the block ends well; when it ends with an
    exception, the message is given back (``nack``) and the exception goes on its way.
    """

    __slots__ = ("_inbox",)

    def __init__(self, batch: Batch, row: int) -> None:
        super().__init__(batch, row)
        self._inbox = batch._inbox

    def ack(self, *, durable: bool = False) -> None:
        """Be done with it. With ``durable``, return when it will never come again."""
        if durable:
            self._inbox.ack(self.offset, durable=True)
        else:
            self._inbox.done(self.offset)

    def nack(self, delay: Delay | None = None) -> None:
        """Give it back, to be delivered again after ``delay`` or the usual back-off."""
        self._inbox.nack(self.offset, delay)

    def release(self, delay: Delay | None = None) -> None:
        """Hand it back untried: this delivery does not count."""
        self._inbox.release(self.offset, delay)

    def extend(self, wait: Delay) -> bool:
        """Need up to ``wait`` from now; False if it was taken back."""
        return bool(self._inbox.extend(self.offset, wait))

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
