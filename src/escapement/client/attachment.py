"""What producers and consumers share: being opened at the broker, again and again.

::

    WAITING ──open──▶ OPENING ──answer──▶ READY
       ▲                 │                  │
       └── link lost, refused for now ──────┘
                         │
                         └── refused for good, closed ──▶ FAILED

With each new link it is opened anew, under the same id. A refusal that time may heal is
tried again with back-off. What it was refused for good is raised to whoever waits, now
or later.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from copy import copy
from math import inf

import anyio

from escapement.client.line import Answer, Line
from escapement.client.promise import Promise
from escapement.client.retry import Retry
from escapement.errors import Disconnected, EscapementError, InvalidRequest
from escapement.protocol.commands import Command


class State(enum.Enum):
    """Where an attachment stands; see the module's docstring."""

    WAITING = enum.auto()
    OPENING = enum.auto()
    READY = enum.auto()
    FAILED = enum.auto()


class Attached(ABC):
    """The base of ``Producer`` and ``Inbox``."""

    def __init__(self, line: Line) -> None:
        self.id = line.new_id()
        self.error: EscapementError | None = None
        self._line = line
        self._state = State.WAITING
        self._opened = Promise()  # opened for the first time, or failed
        self._refusal: EscapementError | None = None
        self._retry = Retry()
        self._retry_at = -inf

    # -- what the two differ in ------------------------------------------------------

    @abstractmethod
    def _request(self, request_id: int) -> Command:
        """The command that opens it."""

    @abstractmethod
    def _closing(self, request_id: int) -> Command:
        """The command that closes it."""

    @abstractmethod
    def _ready(self, answer: Command) -> None:
        """It is open."""

    @abstractmethod
    def _work(self, now_s: float, ready: bool) -> float:
        """Send what is to be sent, if ``ready``; returns when to be asked again."""

    @abstractmethod
    def _lost(self) -> None:
        """It is open no more."""

    @abstractmethod
    def _fail(self, error: EscapementError) -> None:
        """It will never be open again."""

    @abstractmethod
    async def flush(self) -> None:
        """Wait until it has nothing under way."""

    @abstractmethod
    def heard(self, command: Command) -> None:
        """The broker said something to it that is no answer to a request."""

    # -- what the line calls ---------------------------------------------------------

    def linked(self) -> None:
        self._retry_at = -inf
        self._line.wake(self)

    def unlinked(self) -> None:
        if self._state is not State.FAILED:
            self._closed_for_now()

    def pump(self, now_s: float) -> float:
        if self._state is State.FAILED:
            return inf
        if self._state is State.WAITING and self._line.link is not None:
            if now_s < self._retry_at:
                return min(self._retry_at, self._work(now_s, False))
            self._state = State.OPENING
            self._line.request(self._request, self._answered)
        return self._work(now_s, self._state is State.READY)

    def failed(self, error: EscapementError) -> None:
        if self._state is not State.FAILED:
            self._state, self.error = State.FAILED, error
            self._line.detach(self)
            self._fail(error)
            self._opened.settle()

    # -- its way from state to state ---------------------------------------------------

    async def opened(self) -> None:
        """Wait until it is open for the first time.

        Raises:
          Disconnected: if that takes too long.
          EscapementError: if the broker refused it.
        """
        timeout_s = self._line.settings.request_timeout_s
        try:
            with anyio.move_on_after(timeout_s):
                await self._opened.wait()
        finally:
            if not self._opened.settled:
                last = self._refusal or self._unanswered()
                self.failed(type(last)(f"gave up after {timeout_s:g} s: {last}"))
        if self.error is not None:
            raise copy(self.error)

    def _unanswered(self) -> EscapementError:
        """Why nothing was heard of it, as far as this side can tell."""
        if self._line.link is None:
            return Disconnected("the broker cannot be reached")
        return Disconnected(
            "the broker is connected and does not answer. Its database may take no writes:"
            " see `database` in `escapement admin broker stats`"
        )

    def _answered(self, answer: Answer) -> None:
        if self._state is State.FAILED:
            # Closed before it was open: the broker must not keep it.
            if not isinstance(answer, EscapementError):
                self._line.request(self._closing, lambda _: None)
            return
        if self._state is State.WAITING:
            return  # the link was lost meanwhile
        if not isinstance(answer, EscapementError):
            self._state = State.READY
            self._retry.succeeded()
            self._ready(answer)
            self._opened.settle()
            self._line.wake(self)
        else:
            self._refused(answer)

    def _refused(self, error: EscapementError) -> None:
        """The broker does not have it, or no longer: open it again, or give up."""
        if error.retryable:
            self._refusal = error
            now_s = anyio.current_time()
            self._retry_at = now_s + self._retry.next_s(now_s)
            self._closed_for_now()
            self._line.wake(self)
        else:
            self.failed(error)

    def _close(self, reason: str) -> Promise:
        """Close it; what is returned is settled when the broker has done so too."""
        done = Promise()
        was, linked = self._state, self._line.link is not None
        self.failed(InvalidRequest(reason))
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
