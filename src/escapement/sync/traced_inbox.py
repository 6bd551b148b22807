"""A consumer of the blocking client that traces the processing of messages.

The other spans are those of the async consumer (``escapement.client.consuming.traced_inbox``),
which works in the context of the calling thread.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from escapement.sync.inbox import Batch, Inbox, Message

if TYPE_CHECKING:
    from escapement.client.tracing.tracer import Operation


class TracedInbox(Inbox):
    """A consumer of a blocking client that traces."""

    def _batch_type(self) -> type[Batch]:
        return TracedBatch


class TracedBatch(Batch):
    """A delivered batch whose messages trace their processing."""

    __slots__ = ()

    def _row_type(self) -> type[Message]:
        return TracedMessage


class TracedMessage(Message):
    """A delivered message whose ``with`` block has a span."""

    __slots__ = ("_operation",)

    _operation: Operation

    def __enter__(self) -> Message:
        tracer = self._columns._origin._loop.tracer
        assert tracer is not None
        self._operation = tracer.process(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._operation.ending(error):
            super().__exit__(kind, error, trace)
