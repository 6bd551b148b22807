"""The base class of producers and consumers, which opens them on every connection.

::

    WAITING ──open──▶ OPENING ──answer──▶ READY
       ▲                 │                  │
       └── link lost, retryable refusal ────┘
                         │
                         └── permanent refusal, closed ──▶ FAILED

The object is opened on each new link, under the same id. After a retryable refusal it is
opened again with back-off. A permanent refusal is raised in all current and later calls.
"""

from __future__ import annotations

import enum
from abc import abstractmethod
from copy import copy
from math import inf

import anyio

from escapement.client.connection.line import Answer, Attachment, Line
from escapement.client.connection.promise import Promise
from escapement.client.connection.retry import Retry
from escapement.errors import Disconnected, EscapementError, InvalidRequest
from escapement.protocol.commands import Command


class State(enum.Enum):
    """The state of a producer or consumer, as drawn in the docstring of this module."""

    WAITING = enum.auto()
    OPENING = enum.auto()
    READY = enum.auto()
    FAILED = enum.auto()


class Attached(Attachment):
    """The base class of ``Producer`` and ``Inbox``."""

    def __init__(self, line: Line) -> None:
        self.id = line.new_id()
        self.error: EscapementError | None = None
        self._line = line
        self._state = State.WAITING
        self._opened = Promise()  # opened for the first time, or failed
        self._room = Promise()  # no longer full, or failed
        self._refusal: EscapementError | None = None
        self._retry = Retry()

    # -- for subclasses --------------------------------------------------------------

    @abstractmethod
    def _request(self, request_id: int) -> Command:
        """Return the command that opens this object."""

    @abstractmethod
    def _closing(self, request_id: int) -> Command:
        """Return the command that closes this object."""

    @abstractmethod
    def _ready(self, answer: Command) -> None:
        """Handle that the broker has opened this object."""

    @abstractmethod
    def _work(self, now_s: float, ready: bool) -> float:
        """Send pending commands if ``ready``; return the time for the next call."""

    @abstractmethod
    def _lost(self) -> None:
        """Handle that this object is no longer open."""

    @abstractmethod
    def _fail(self, error: EscapementError) -> None:
        """Handle that this object will never be open again."""

    @property
    @abstractmethod
    def _full(self) -> bool:
        """Whether too many requests are unanswered."""

    async def _have_room(self) -> None:
        """Wait while too many requests are unanswered."""
        self._check()
        while self._full:
            if self._room.settled:
                self._room = Promise()
            await self._room.wait()
            self._check()

    def _made_room(self) -> None:
        """Let waiting callers continue if requests were answered."""
        if not self._room.settled and not self._full:
            self._room.settle()

    # -- called by the line ----------------------------------------------------------

    def _linked(self) -> None:
        self._retry.at_s = -inf
        self._line.wake(self)

    def _unlinked(self) -> None:
        if self._state is not State.FAILED:
            self._closed_for_now()

    def _pump(self, now_s: float) -> float:
        if self._state is State.FAILED:
            return inf
        if self._state is State.WAITING and self._line.link is not None:
            if now_s < self._retry.at_s:
                return min(self._retry.at_s, self._work(now_s, False))
            self._state = State.OPENING
            self._line.request(self._request, self._answered)
        return self._work(now_s, self._state is State.READY)

    def _failed(self, error: EscapementError) -> None:
        if self._state is not State.FAILED:
            self._state, self.error = State.FAILED, error
            self._line.detach(self)
            self._fail(error)
            self._opened.settle()
            self._room.settle()

    # -- state changes -----------------------------------------------------------------

    async def _wait_opened(self) -> None:
        """Wait until this object is open for the first time.

        Raises:
          Disconnected: if the broker does not answer in time.
          EscapementError: if the broker refuses.
        """
        timeout_s = self._line.settings.request_timeout_s
        try:
            with anyio.move_on_after(timeout_s):
                await self._opened.wait()
        finally:
            if not self._opened.settled:
                last = self._refusal or self._unanswered()
                self._failed(type(last)(f"gave up after {timeout_s:g} s: {last}"))
        self._check()

    def _unanswered(self) -> EscapementError:
        """Return an error with the likely reason why the broker has not answered."""
        if self._line.link is None:
            return Disconnected("the broker cannot be reached")
        return Disconnected(
            "the broker is connected and does not answer. Its database may not accept writes:"
            " see `database` in `escapement admin broker stats`"
        )

    def _answered(self, answer: Answer) -> None:
        if self._state is State.FAILED:
            # It was closed before it was open. The broker must close it too.
            if not isinstance(answer, EscapementError):
                self._line.request(self._closing, lambda _: None)
            return
        if self._state is State.WAITING:
            return  # the link was lost in the meantime
        if not isinstance(answer, EscapementError):
            self._state = State.READY
            self._retry.succeeded()
            self._ready(answer)
            self._opened.settle()
            self._line.wake(self)
        else:
            self._refused(answer)

    def _refused(self, error: EscapementError) -> None:
        """Open this object again later if the refusal is retryable, otherwise fail."""
        if error.retryable:
            self._refusal = error
            self._retry.failed(anyio.current_time())
            self._closed_for_now()
            self._line.wake(self)
        else:
            self._failed(error)

    def _close(self, reason: str) -> Promise:
        """Close this object; return a promise that settles when the broker has closed it too."""
        done = Promise()
        was, linked = self._state, self._line.link is not None
        self._failed(InvalidRequest(reason))
        if was is State.READY and linked:
            self._line.request(self._closing, lambda _: done.settle())
        else:
            done.settle()
        return done

    def _closed_for_now(self) -> None:
        was, self._state = self._state, State.WAITING
        if was is State.READY:
            self._lost()

    def _check(self) -> None:
        if self.error is not None:
            raise copy(self.error)
