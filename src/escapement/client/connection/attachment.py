"""The base class of producers and consumers, which opens them again after each reconnect.

A client has a *line* for each bundle of topics: its lasting connection to the broker of the bundle.
A *link* is a single connection of the line, and the next link follows when it is lost. A producer
or consumer is an *attachment* of the line of its topic. It must be opened on each link: the client
sends a request, and the broker answers.

::

    WAITING ──open──▶ OPENING ──answer──▶ READY
       ▲                 │                  │
       └── link lost, retryable refusal ────┘
                         │
                         └── permanent refusal, closed ──▶ FAILED

The attachment has the same id on every link. If the broker refuses to open it with a retryable
error, the client tries again after a back-off. A subclass may name further refusals that pass. If
the broker answers that another bundle has the topic, the attachment moves to the line of this
bundle first. Any other refusal is final: all current and later calls of the producer or consumer
raise it.
"""

from __future__ import annotations

import enum
from abc import abstractmethod
from copy import copy
from math import inf
from typing import TYPE_CHECKING

import anyio

from escapement.client.connection.line import Answer, Attachment, Line
from escapement.client.connection.promise import Promise
from escapement.client.connection.retry import Retry
from escapement.errors import Disconnected, EscapementError, InvalidRequest, WrongBundle
from escapement.protocol.commands import Command

if TYPE_CHECKING:
    from escapement.client.tracing.tracer import Tracer


class State(enum.Enum):
    """The state of a producer or consumer. The docstring of this module draws the transitions."""

    WAITING = enum.auto()
    OPENING = enum.auto()
    READY = enum.auto()
    FAILED = enum.auto()


class Attached(Attachment):
    """The base class of ``Producer`` and ``Inbox`` (a consumer), which keeps them open."""

    def __init__(self, line: Line) -> None:
        self._id = line.new_id()
        self._error: EscapementError | None = None
        self._line = line
        self._state = State.WAITING
        self._opened = Promise()  # settles when first opened, or when it fails for good
        self._room = Promise()  # settles when ``_full`` becomes False, or when it fails for good
        self._refusal: EscapementError | None = None  # the last retryable refusal
        self._retry = Retry()

    @property
    def _tracer(self) -> Tracer:
        """The tracer of the client. Only producers and consumers that trace use it."""
        assert self._line.tracer is not None
        return self._line.tracer

    # -- for subclasses --------------------------------------------------------------

    @abstractmethod
    def _request(self, request_id: int) -> Command:
        """Return the command that opens this producer or consumer at the broker."""

    @abstractmethod
    def _closing(self, request_id: int) -> Command:
        """Return the command that closes this producer or consumer at the broker."""

    @abstractmethod
    def _ready(self, answer: Command) -> None:
        """Start work on a new link: the broker has opened this object with ``answer``."""

    @abstractmethod
    def _work(self, now_s: float, ready: bool) -> float:
        """Do the work that is due at ``now_s``, on the clock of the event loop.

        Args:
          ready: whether the broker has this object open, so that commands may be sent.

        Returns:
          When this method must be called next, on the same clock; infinity for never.
        """

    @abstractmethod
    def _lost(self) -> None:
        """Prepare to be opened again: the link was lost, or the broker closed this object."""

    @abstractmethod
    def _fail(self, error: EscapementError) -> None:
        """Let all waiting calls raise ``error``, because this object has failed for good."""

    @property
    @abstractmethod
    def _full(self) -> bool:
        """Whether callers must wait, because too many messages or acks are unanswered."""

    async def _have_room(self) -> None:
        """Wait until ``_full`` is False. Raises the error of an object that has failed."""
        self._check()
        while self._full:
            if self._room.settled:
                self._room = Promise()
            await self._room.wait()
            self._check()

    def _made_room(self) -> None:
        """Let callers that wait in ``_have_room`` continue if ``_full`` is now False."""
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
            self._state, self._error = State.FAILED, error
            self._line.detach(self)
            self._fail(error)
            self._opened.settle()
            self._room.settle()

    # -- state changes -----------------------------------------------------------------

    async def _wait_opened(self) -> None:
        """Wait until the broker has opened this object for the first time.

        Raises:
          Disconnected: if the broker does not answer within ``request_timeout_s``.
          EscapementError: if the broker refuses to open it.
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
        """Return the error for a broker that did not answer in time, with the likely reason."""
        if self._line.link is None:
            return self._line.unreachable()
        return Disconnected(
            "the broker is connected and does not answer. Its database may not accept writes:"
            " see `database` in `escapement admin broker stats`"
        )

    def _answered(self, answer: Answer) -> None:
        if self._state is State.FAILED:
            # This object was closed while it was being opened. The broker must close it, too.
            if not isinstance(answer, EscapementError):
                self._line.request(self._closing, lambda _: None)
            return
        if self._state is State.WAITING:
            return  # the link was lost before the answer arrived
        if not isinstance(answer, EscapementError):
            self._state = State.READY
            self._retry.succeeded()
            self._ready(answer)
            self._opened.settle()
            self._line.wake(self)
        else:
            self._refused(answer)

    def _may_open_later(self, error: EscapementError) -> bool:
        """Return whether the broker may open this object later, after it refused with ``error``."""
        return error.retryable

    def _refused(self, error: EscapementError) -> None:
        """Open this object again after a back-off, or fail it if the refusal is permanent."""
        if self._may_open_later(error):
            self._refusal = error
            self._closed_for_now()
            if isinstance(error, WrongBundle) and error.bundle is not None:
                self._move(self._line.other(error.bundle))
            self._retry.failed(anyio.current_time())
            self._line.wake(self)
        else:
            self._failed(error)

    def _move(self, line: Line) -> None:
        """Become an attachment of another line. It is open on neither."""
        self._line.detach(self)
        self._line = line
        try:
            line.attach(self)
        except EscapementError as error:
            self._failed(error)

    def _close(self, reason: str) -> Promise:
        """Close this object for good; later calls raise ``InvalidRequest`` with ``reason``.

        Returns:
          A promise that settles when the broker has closed it, too, or the link is lost. It is
          settled already if the object was not READY. If the object was being opened, the broker is
          asked to close it after the broker's answer.
        """
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
        if self._error is not None:
            raise copy(self._error)
