"""The class ``Inbox`` of the blocking client, a consumer, with its batches and messages.

It is a facade of the async consumer, ``escapement.Inbox``, which runs in an event loop in another
thread. Any number of threads may receive messages. Acknowledgements of single messages are
collected, and posted to the event loop together, without a wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import TIMEOUT_MAX, RLock
from time import monotonic
from types import TracebackType
from typing import TypeVar

import numpy as np

from escapement.client.constructor import internal
from escapement.client.consuming import batch as received
from escapement.client.consuming import inbox as inboxes
from escapement.client.delivery import DeliveredRow, Delivery
from escapement.client.delivery_times import Delay, Where
from escapement.client.message_ids import What
from escapement.errors import EscapementError, InvalidRequest
from escapement.field import Field
from escapement.sync.loop import Loop

T = TypeVar("T")


class Inbox:
    """A consumer of a subscription, created by ``Broker.consumer``.

    Several threads may iterate over it to receive messages. Each message goes to one of them.

    Attributes:
      topic: the full name of the topic.
      subscription: the name of the subscription.
      name: the name of this consumer, or "".
    """

    @internal
    def __init__(self, loop: Loop, inbox: inboxes.Inbox) -> None:
        self.topic = inbox.topic
        self.subscription = inbox.subscription
        self.name = inbox.name
        self._loads = inbox._loads
        self._loop = loop
        self._inbox = inbox
        self._clock_s = inbox._clock_s
        # Guards the next four attributes. It is reentrant, so that a signal handler that interrupts
        # its holder does not wait forever; the handler finds that the thread is receiving already.
        self._lock = RLock()
        self._receiving = False
        self._current: Batch | None = None  # the batch from which messages are received
        self._row = 0  # the row of its next message
        self._rows: Iterator[Message] = iter(())  # its messages from there on
        self._ack_lock = RLock()  # guards _acked, also in signal handlers
        self._acked: list[int] = []  # offsets that _pass_acks, which is posted, will pass on

    @property
    def active(self) -> bool:
        """Whether this consumer is the one that a failover subscription delivers to.

        Always True for other subscriptions.
        """
        return self._inbox.active

    @property
    def fields(self) -> tuple[Field, ...] | None:
        """The names and types of the columns of a message table; see ``escapement.Inbox``."""
        return self._inbox.fields

    def __iter__(self) -> Iterator[Message]:
        """Wait for messages and yield them, until this consumer is closed."""
        while (message := self._at_once() or self.receive()) is not None:
            yield message

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """Wait for the next message and return it.

        Args:
          timeout_s: how long to wait, in seconds, also for another thread that is receiving; None
            waits without limit.

        Returns:
          The message, or None if none arrives in time or this consumer is closed.
        """

        def take(left_s: float | None) -> Message | None:
            if self._spent():
                self._begin(self._fetch(left_s))
            return None if self._current is None else self._pop()

        return self._in_turn(take, timeout_s)

    def _at_once(self) -> Message | None:
        """Return the next message of the current batch, as ``receive`` does, without a wait.

        Return None if there is none, or another thread is receiving.
        """
        if not self._lock.acquire(False):
            return None
        try:
            if self._receiving:
                return None
            self._receiving = True
            try:
                return None if self._spent() else self._pop()
            finally:
                self._receiving = False
        finally:
            self._lock.release()

    def batches(self) -> Iterator[Batch]:
        """Wait for batches of messages and yield them, until this consumer is closed."""
        while (batch := self.next_batch()) is not None:
            yield batch

    def next_batch(self, timeout_s: float | None = None) -> Batch | None:
        """Wait for the next batch of messages and return it.

        If ``receive`` has returned some messages of a batch, this returns the rest of that batch.

        Args:
          timeout_s: how long to wait, in seconds, also for another thread that is receiving; None
            waits without limit.

        Returns:
          The batch, or None if none arrives in time or this consumer is closed.
        """

        def take(left_s: float | None) -> Batch | None:
            batch = None
            if self._current is not None and not self._spent():
                batch = self._current._rest(self._row)
            self._begin(None)
            return batch or self._fetch(left_s)

        return self._in_turn(take, timeout_s)

    def pull(self, count: int, timeout_s: float | None = None) -> list[Batch]:
        """Pull messages: wait until there are any, and return at most ``count``.

        See ``escapement.Inbox.pull``. Only one thread may pull at a time.
        """
        self._loop.check_may_wait()
        return [self._own(found) for found in self._loop.call(self._inbox.pull, count, timeout_s)]

    def ack(self, what: What, *, durable: bool = False) -> int | None:
        """Acknowledge messages, so that they are not redelivered; see ``escapement.Inbox.ack``."""
        return self._loop.call(self._inbox.ack, what, durable=durable)

    def ack_range(self, first: int, last: int, *, durable: bool = False) -> int | None:
        """Acknowledge the messages with offsets from ``first`` to ``last``, both included."""
        return self._loop.call(self._inbox.ack_range, first, last, durable=durable)

    def nack(self, what: What, delay: Delay | None = None) -> None:
        """Negatively acknowledge messages, so that the broker redelivers them.

        See ``escapement.Inbox.nack``.
        """
        self._loop.call(self._inbox.nack, what, delay)

    def reject(self, what: What, detail: str = "") -> None:
        """Reject messages that can never be processed; see ``escapement.Inbox.reject``."""
        self._loop.call(self._inbox.reject, what, detail)

    def release(self, what: What, delay: Delay | None = None) -> None:
        """Release messages, so that this delivery does not count as an attempt.

        See ``escapement.Inbox.release``.
        """
        self._loop.call(self._inbox.release, what, delay)

    def extend(self, what: What, wait: Delay) -> int:
        """Extend the time to acknowledge messages to at least ``wait`` from now.

        See ``escapement.Inbox.extend``.
        """
        return self._loop.call(self._inbox.extend, what, wait)

    def seek(self, position: Where) -> None:
        """Move the subscription to another position; see ``escapement.Inbox.seek``."""
        self._loop.call(self._inbox.seek, position)

    def flush_acks(self) -> None:
        """Wait until all acknowledgements before this call are durable.

        Raises the errors of ``escapement.Inbox.flush_acks``.
        """
        self._loop.call(self._inbox.flush_acks)

    def close(self) -> None:
        """Wait until acknowledgements are answered, then leave the subscription.

        Threads that iterate over this consumer or wait for messages stop. The broker redelivers
        the messages that are not acknowledged. See ``escapement.Inbox.aclose``.
        """
        self._release_rest()
        self._loop.call(self._inbox.aclose)

    def _acknowledge(self, offset: int) -> None:
        """Queue the acknowledgement of the message at ``offset``, without waiting.

        Raises the error of a consumer that has failed or is closed.
        """
        self._loop.check_process()
        self._inbox._check()
        with self._ack_lock:
            if not self._acked:
                self._loop.post(self._pass_acks)
            self._acked.append(offset)

    def _pass_acks(self) -> None:
        """Pass the queued acknowledgements to the async consumer. Runs in the loop's thread."""
        with self._ack_lock:
            acked, self._acked = self._acked, []
        if acked:
            self._inbox._all_done(np.array(acked, np.int64))

    def _release_rest(self) -> None:
        """Release the messages that no thread has received, before this consumer is closed.

        If another thread is receiving, it waits for messages, so there are none.
        """
        if self._loop.is_here and self._lock.acquire(False):
            try:
                if not self._receiving and self._current is not None and not self._spent():
                    rest = self._current._rest(self._row)
                    self._begin(None)
                    self._loop.post(self._inbox._hand_back, rest.offsets, None)
            finally:
                self._lock.release()

    def _in_turn(
        self, take: Callable[[float | None], T | None], timeout_s: float | None
    ) -> T | None:
        """Call ``take`` with the time that is left when no other thread is receiving any more.

        Returns:
          The result of ``take``, or None if another thread is receiving for all of ``timeout_s``.

        Raises:
          InvalidRequest: if this thread is receiving already, and a signal has interrupted it.
        """
        self._loop.check_may_wait()
        if timeout_s is None:
            with self._lock:
                return self._take(take, None)
        until_s = monotonic() + timeout_s
        if not self._lock.acquire(timeout=min(max(timeout_s, 0), TIMEOUT_MAX)):
            return None
        try:
            return self._take(take, max(until_s - monotonic(), 0))
        finally:
            self._lock.release()

    def _take(self, take: Callable[[float | None], T | None], left_s: float | None) -> T | None:
        if self._receiving:
            raise InvalidRequest(
                "this thread is receiving a message already: a signal handler must not receive"
            )
        self._receiving = True
        try:
            return take(left_s)
        finally:
            self._receiving = False

    def _begin(self, batch: Batch | None) -> None:
        """Let ``receive`` return the messages of ``batch``, or fetch another batch for None."""
        self._current, self._rows, self._row = batch, iter(batch or ()), 0

    def _spent(self) -> bool:
        """Return whether ``receive`` needs another batch: the current one is used up or void.

        Discards the messages of the current one whose ack deadline has passed, because the broker
        has taken them back.
        """
        current = self._current
        if current is not None and self._clock_s() > current._deadlines.first_s:
            current = self._discard_late(current)
        return (
            current is None
            or self._row == len(current.offsets)
            or current._voided != self._inbox._voided  # by a seek or a lost connection
        )

    def _discard_late(self, current: Batch) -> Batch | None:
        rest = current._rest(self._row)
        left = rest._in_time(self._clock_s())
        if left is not None:
            left._voided = current._voided
        if late := len(rest) - len(left or ()):
            inboxes.warn_of_late(self.topic, self.subscription, late)
        self._begin(left)
        return left

    def _pop(self) -> Message:
        self._row += 1
        return next(self._rows)

    def _batch_type(self) -> type[Batch]:
        """Return the class of the batches that this consumer receives."""
        return Batch

    def _fetch(self, timeout_s: float | None) -> Batch | None:
        """Wait for the async consumer's next batch; None if none arrives in time or it closes."""

        async def fetch() -> Batch | None:
            try:
                await self._inbox._have_room()
            except EscapementError:
                if not self._inbox._closed:
                    raise
            found = await self._inbox.next_batch(timeout_s)
            return None if found is None else self._own(found)

        return self._loop.call(fetch)

    def _own(self, found: received.Batch) -> Batch:
        """Return a batch of the async consumer as one of this consumer."""
        batch = self._batch_type()(
            self,
            found.offsets,
            found.due_ms,
            found._attempts,
            found._redelivered,
            found.messages,
            found._source,
            found._deadlines,
        )
        batch._voided = self._inbox._voided
        return batch


class Batch(Delivery["Message"]):
    """A batch of delivered messages, in columns with one row per message.

    ``offsets`` and ``due_ms`` (Unix milliseconds) are int64 columns. Iterate over the batch, or
    index it, to get single messages.
    """

    __slots__ = ("_voided",)

    _origin: Inbox
    _voided: int  # ``_voided`` of the async consumer when the batch was received

    def _row_type(self) -> type[Message]:
        return Message

    def ack(self, *, durable: bool = False) -> int | None:
        """Acknowledge all messages of the batch.

        Args, the result and errors are as for ``escapement.Inbox.ack``.
        """
        return self._origin.ack(self.offsets, durable=durable)

    def nack(self, delay: Delay | None = None) -> None:
        """Negatively acknowledge all messages of the batch, so that the broker redelivers them.

        Args:
          delay: the broker redelivers them after this delay; None selects the back-off of the
            subscription.
        """
        self._origin.nack(self.offsets, delay)

    def reject(self, detail: str = "") -> None:
        """Reject all messages of the batch: they become dead letters.

        See ``escapement.Inbox.reject``.
        """
        self._origin.reject(self.offsets, detail)

    def release(self, delay: Delay | None = None) -> None:
        """Release all messages of the batch, so that this delivery does not count as an attempt.

        Args:
          delay: the broker redelivers them after this delay; None means at once.
        """
        self._origin.release(self.offsets, delay)

    def extend(self, wait: Delay) -> int:
        """Extend the time to acknowledge all messages of the batch to at least ``wait`` from now.

        The result and errors are as for ``escapement.Inbox.extend``.
        """
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
        """Negatively acknowledge the message, so that the broker redelivers it.

        Args:
          delay: the broker redelivers it after this delay; None selects the back-off of the
            subscription.
        """
        self._columns._origin.nack(self.offset, delay)

    def reject(self, detail: str = "") -> None:
        """Reject the message, because it can never be processed: it becomes a dead letter.

        Args:
          detail: why, in at most 200 characters, such as "HTTP 410". The dead letter has it.
        """
        self._columns._origin.reject(self.offset, detail)

    def release(self, delay: Delay | None = None) -> None:
        """Release the message, so that this delivery does not count as an attempt.

        Args:
          delay: the broker redelivers it after this delay; None means at once.
        """
        self._columns._origin.release(self.offset, delay)

    def extend(self, wait: Delay) -> bool:
        """Extend the time to acknowledge the message to at least ``wait`` from now.

        Returns:
          Whether the message is still in flight at this consumer. If not, the broker may have
          delivered it to another consumer.
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
            with suppress(EscapementError):  # the error of the block propagates
                self.nack()
