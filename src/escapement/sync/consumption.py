"""The context manager of a consumer of the blocking client."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from types import TracebackType

from escapement.client.consuming import inbox as inboxes
from escapement.client.unopened import Unopened
from escapement.errors import EscapementError
from escapement.sync.inbox import Inbox
from escapement.sync.loop import Loop
from escapement.sync.traced_inbox import TracedInbox


class Consumption(Unopened, AbstractContextManager[Inbox]):
    """The context manager of ``Broker.consumer``: it opens a consumer, and closes it.

    No task of the event loop waits for the end of the ``with`` block. So a block that never ends
    does not keep the client from closing.
    """

    _BEFORE = "before the consumer is opened: write `with broker.consumer(...) as inbox:`"

    def __init__(self, loop: Loop, context: AbstractAsyncContextManager[inboxes.Inbox]) -> None:
        self._loop = loop
        self._context = context

    def __enter__(self) -> Inbox:
        inbox_type = Inbox if self._loop.tracer is None else TracedInbox
        self._inbox = inbox_type(self._loop, self._loop.call(self._context.__aenter__))
        return self._inbox

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # If the client is closed, or this is a fork of its process, there is nothing to close.
        with suppress(EscapementError):
            self._inbox._release_rest()
            self._loop.call(self._context.__aexit__, kind, error, trace)
