"""A consumer that traces: its spans link to the contexts that the messages carry.

A *receive* span is for the messages that the application takes. If it takes single messages, the
span is for the whole batch that the broker delivered, from its first message on, unless each
message shall have a span (``Tracing.each_message``). A *process* span is for the ``async with``
block of a message. A *settle* span is for a call that acknowledges messages or returns them. For a
single message it exists only if each message shall have a span.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from time import time_ns
from types import TracebackType
from typing import TYPE_CHECKING

from escapement.client.consuming.ack_queue import PendingAck
from escapement.client.consuming.batch import Batch, Message
from escapement.client.consuming.inbox import Inbox
from escapement.client.consuming.return_queue import ReturnKind
from escapement.client.delivery_times import Delay
from escapement.errors import EscapementError
from escapement.message import Int64s

if TYPE_CHECKING:
    from escapement.client.message_ids import What
    from escapement.client.tracing.tracer import Operation


class TracedInbox(Inbox):
    """A consumer of a client that traces."""

    # The delivered batch of which the application has taken a message last.
    _begun: object = None

    def _batch_type(self) -> type[Batch]:
        return TracedBatch

    # -- receiving -------------------------------------------------------------------

    def _at_once(self) -> Message | None:
        message = super()._at_once()
        if message is not None:
            self._took(message, time_ns())
        return message

    async def _receive(self, timeout_s: float | None) -> Message | None:
        begun_ns = time_ns()
        try:
            message = await super()._receive(timeout_s)
        except EscapementError as error:
            self._tracer.receive_failed(self, begun_ns, error)
            raise
        if message is not None:
            self._took(message, begun_ns)
        return message

    def _took(self, message: Message, begun_ns: int) -> None:
        if self._tracer.each_message:
            self._tracer.received(self, begun_ns, message)
        elif message._columns is not self._begun:
            self._begun = message._columns
            self._tracer.received(self, begun_ns, message._columns)

    async def next_batch(self, timeout_s: float | None = None) -> Batch | None:
        begun_ns = time_ns()
        try:
            batch = await super().next_batch(timeout_s)
        except EscapementError as error:
            self._tracer.receive_failed(self, begun_ns, error)
            raise
        if batch is not None:
            self._tracer.received(self, begun_ns, batch)
        return batch

    # -- acknowledging ---------------------------------------------------------------

    async def ack(self, what: What, *, durable: bool = False) -> int | None:
        offsets = self._named(what)
        with self._settling("ack", len(offsets)) as traced:
            return await super().ack(offsets if traced else what, durable=durable)

    async def ack_range(self, first: int, last: int, *, durable: bool = False) -> int | None:
        with self._settling("ack", max(last - first + 1, 0)):
            return await super().ack_range(first, last, durable=durable)

    def _done(self, offset: int) -> PendingAck:
        with self._settling("ack", 1):
            return super()._done(offset)

    def _all_done(self, offsets: Int64s) -> None:
        # These are acknowledgements of single messages, which the blocking client has gathered.
        with self._settling("ack", len(offsets) if self._tracer.each_message else 1):
            super()._all_done(offsets)

    def _give_back(self, offsets: Int64s, delay: Delay | None) -> None:
        with self._settling("nack", len(offsets)):
            super()._give_back(offsets, delay)

    def _give_up(self, offsets: Int64s, detail: str) -> None:
        with self._settling("reject", len(offsets)):
            super()._give_up(offsets, detail)

    def _hand_back(self, offsets: Int64s, delay: Delay | None) -> None:
        with self._settling("release", len(offsets)):
            super()._hand_back(offsets, delay)

    async def _return_counted(
        self, kind: ReturnKind, what: What, delay: Delay | None = None, detail: str = ""
    ) -> int:
        offsets = self._named(what)
        with self._settling(kind.__name__.lower(), len(offsets)):
            return await super()._return_counted(kind, offsets, delay, detail)

    def _settling(self, name: str, count: int) -> AbstractContextManager[Operation | None]:
        """Return the span of a call that settles messages, or None for a single message."""
        if count == 1 and not self._tracer.each_message:
            return nullcontext()
        return self._tracer.settle(name, self, count)


class TracedBatch(Batch):
    """A delivered batch whose messages trace their processing."""

    __slots__ = ()

    def _row_type(self) -> type[Message]:
        return TracedMessage


class TracedMessage(Message):
    """A delivered message whose ``async with`` block has a span."""

    __slots__ = ("_operation",)

    _operation: Operation

    async def __aenter__(self) -> Message:
        consumer = self._columns._origin
        assert isinstance(consumer, TracedInbox)
        self._operation = consumer._tracer.process(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._operation.ending(error):
            await super().__aexit__(kind, error, trace)
