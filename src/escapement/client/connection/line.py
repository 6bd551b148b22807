"""The line of a client: its lasting connection to the broker of a bundle, across reconnects.

A client has one line for each *bundle* of topics that it uses (see ``lines``). A *link* is a single
connection of the line: it is *up* until it is lost, and then the line opens the next link.
Producers and consumers are *attachments* of the line. Two tasks run as long as the line. The first
keeps a link up: it connects, passes incoming commands to the attachments, and reconnects. The
second, the *pump*, calls each attachment when the attachment has work to do: when it was woken, or
at the time that it returned from its last call. So collecting messages for a batch, back-off and
timeouts need no tasks of their own.

A request is a command with an id, which the broker answers. The callback of each request is called
exactly once: with the answer of the broker, or with an error. The error is ``Disconnected`` if the
link ended before the answer arrived.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from copy import copy
from itertools import count
from math import inf
from typing import TYPE_CHECKING

import anyio

from escapement.client.connection.link import Link
from escapement.client.connection.promise import Promise
from escapement.client.connection.retry import Retry
from escapement.client.connection.route import Route
from escapement.client.connection.token_source import TokenSource
from escapement.client.settings import Settings
from escapement.errors import (
    Disconnected,
    EscapementError,
    OtherDatabase,
    Unauthenticated,
    WrongBundle,
)
from escapement.protocol import commands as wire
from escapement.protocol.commands import Command

if TYPE_CHECKING:
    from escapement.client.tracing.tracer import Tracer

Answer = Command | EscapementError


class Attachment(ABC):
    """The methods of a producer or consumer that the line calls."""

    _id: int

    @abstractmethod
    def _linked(self) -> None:
        """Begin to use the line's new link."""

    @abstractmethod
    def _unlinked(self) -> None:
        """Stop using the link, which has ended."""

    @abstractmethod
    def _pump(self, now_s: float) -> float:
        """Do the work that is due, and return when to call again (infinity: when woken).

        Both times are on the clock of the event loop, in seconds.
        """

    @abstractmethod
    def _heard(self, command: Command) -> None:
        """Handle a command from the broker that is for this attachment and answers no request."""

    @abstractmethod
    async def _drain(self) -> None:
        """Wait until the broker has answered all publishes or acks of this attachment."""

    @abstractmethod
    def _failed(self, error: EscapementError) -> None:
        """Fail this attachment for good with ``error``, for example when the line is closed."""


class Line:
    """The lasting connection of a client to the broker of a bundle, across reconnects.

    Args:
      route: finds the broker.
      ids: the source of ids for attachments, which all lines of a client share.
      other: returns the client's line of another bundle.
      clock_s: the clock that tells how long messages have waited; see ``connect``.
    """

    def __init__(
        self,
        route: Route,
        settings: Settings,
        token_source: TokenSource,
        tracer: Tracer | None,
        ids: Iterator[int],
        other: Callable[[int], Line],
        clock_s: Callable[[], float],
    ) -> None:
        self.other = other
        self.clock_s = clock_s
        self.settings = settings
        self.tracer = tracer  # None if the client does not trace
        self.link: Link | None = None
        self.closed: EscapementError | None = None
        self._route = route
        self._token_source = token_source
        self._scope: anyio.CancelScope | None = None  # of ``run``
        self._linked = Promise()  # settles when the next link is up
        self._refusal: EscapementError | None = None  # of the last attempt to reconnect
        self._attachments: dict[int, Attachment] = {}
        self._answers: dict[int, Callable[[Answer], None]] = {}
        self._ids = ids
        self._requests = count(1)
        self._dirty: dict[Attachment, None] = {}  # in the order in which they woke
        self._agenda: dict[Attachment, float] = {}
        self._bell = anyio.Event()
        self._retry = Retry(settings.reconnect_first_s, settings.reconnect_longest_s)

    # -- for attachments -----------------------------------------------------------

    @property
    def bundle(self) -> int | None:
        """The bundle of this line; None before the first connection of a client."""
        return self._route.bundle

    def new_id(self) -> int:
        """Return an id for an attachment, unique on all lines of the client."""
        return next(self._ids)

    def attach(self, attachment: Attachment) -> None:
        """Add a producer or consumer, which begins to use the current link.

        Raises:
          Disconnected: if the application has closed the line.
        """
        if self.closed is not None:
            raise copy(self.closed)
        self._attachments[attachment._id] = attachment
        if self.link is not None:
            attachment._linked()

    def detach(self, attachment: Attachment) -> None:
        """Remove a producer or consumer; does nothing if it was removed before."""
        self._attachments.pop(attachment._id, None)
        self._dirty.pop(attachment, None)
        self._agenda.pop(attachment, None)

    def wake(self, attachment: Attachment) -> None:
        """Let the pump call ``_pump`` of an attachment in its next turn; O(1)."""
        if attachment not in self._dirty and attachment._id in self._attachments:
            self._dirty[attachment] = None
            self._bell.set()

    def send(self, command: Command) -> None:
        """Queue a command for sending. The caller must know that a link is up."""
        assert self.link is not None
        self.link.send(command)
        self._bell.set()

    def request(self, make: Callable[[int], Command], answer: Callable[[Answer], None]) -> int:
        """Send a request, and call ``answer`` with the broker's answer or with an error.

        Args:
          make: creates the command for a request id.
          answer: called exactly once. Without a link, it is called at once.

        Returns:
          The request id.
        """
        number = next(self._requests)
        if self.link is None:
            answer(Disconnected("there is no connection to the broker"))
            return number
        self._answers[number] = answer
        try:
            self.send(make(number))
        except EscapementError as error:
            del self._answers[number]
            answer(error)
        return number

    def unreachable(self) -> EscapementError:
        """Return an error that says why no link is up."""
        return self._refusal or Disconnected("there is no connection to the broker")

    async def ask(self, make: Callable[[int], Command], until_s: float = inf) -> Command:
        """Send a request and wait for its answer. If no link is up, wait for one first.

        Args:
          make: creates the command for a request id.
          until_s: when the wait ends, on the clock of the event loop. It ends after
            ``request_timeout_s`` of the settings in any case.

        Raises:
          Disconnected: if no answer arrives in time, or the link ends first. The request may
            or may not have taken effect.
          EscapementError: if the broker refuses.
        """
        settled = Promise()
        answers: list[Answer] = []

        def take(answer: Answer) -> None:
            answers.append(answer)
            settled.settle()

        timeout_s = self.settings.request_timeout_s
        with anyio.CancelScope(deadline=min(until_s, anyio.current_time() + timeout_s)):
            while self.link is None and self.closed is None:
                await self._linked.wait()
            if self.closed is not None:
                raise copy(self.closed)
            number = self.request(make, take)
            try:
                await settled.wait()
            finally:
                self._answers.pop(number, None)  # an answer that arrives later is ignored
        if not answers and self.link is None:
            reason = self.unreachable()
            kind = type(reason) if isinstance(reason, Disconnected) else Disconnected
            raise kind(f"gave up after {timeout_s:g} s: {reason}")
        if not answers:
            raise Disconnected(
                f"the broker did not answer within {timeout_s:g} s. The request may still take"
                " effect."
            )
        if isinstance(answers[0], EscapementError):
            raise answers[0]
        return answers[0]

    # -- connecting and closing ----------------------------------------------------

    async def run(self, link: Link | None) -> None:
        """Keep a link up and run the pump, until the line is closed.

        Args:
          link: the link that is up; None to connect first.
        """
        with anyio.CancelScope() as self._scope:
            if self.closed is not None:
                self._scope.cancel()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._pump)
                await self._keep(link)

    async def connect(self) -> Link:
        """Open a new link in one attempt. Raises the errors of ``Route.open``."""
        return await self._route.open(self._token_source.read())

    async def _keep(self, link: Link | None) -> None:
        """Run ``link`` until it ends, then reconnect and run the next link, until cancelled.

        It also ends, and closes the line for good, if the broker refuses the client's token, or if
        only brokers of another database answer.
        """
        pause_s = 0.0
        while True:
            if link is not None:
                try:
                    await link.run(
                        self._dispatch,
                        self.settings.heartbeat_s,
                        self.settings.heartbeat_timeout_s,
                    )
                finally:
                    self._down(link)
                if link.silent:
                    self._route.fell_silent()
                pause_s = self._retry.next_s(anyio.current_time())
            try:
                link = await self._reconnect(pause_s)
            except (OtherDatabase, Unauthenticated) as error:
                self.close(error)
                return
            self.up(link)

    async def _reconnect(self, pause_s: float) -> Link:
        # Until then, brokers of the right database that do not answer have time to come back.
        until_s = anyio.current_time() + self.settings.request_timeout_s
        while True:
            await anyio.sleep(pause_s)
            try:
                token = self._token_source.read()
            except Unauthenticated as error:
                self._refusal = error  # the file may be about to be replaced
            else:
                try:
                    return await self._route.open(token)
                except Unauthenticated:
                    raise
                except OtherDatabase as error:
                    if self._route.misled or anyio.current_time() >= until_s:
                        raise
                    self._refusal = error
                except EscapementError as error:
                    self._refusal = error  # callers that wait for a link have their own timeouts
            pause_s = self._retry.next_s(anyio.current_time())

    async def _pump(self) -> None:
        """Call ``_pump`` of attachments that were woken or whose time has come, until cancelled.

        Each turn ends with one write of all commands that were sent since the last one.
        """
        while True:
            with anyio.CancelScope(deadline=self._turn()) as sleep:
                while True:
                    await self._bell.wait()
                    self._bell = anyio.Event()
                    next_s = self._turn()
                    if next_s != sleep.deadline:
                        sleep.deadline = next_s

    def _turn(self) -> float:
        """Do one turn of the pump, and return the time of the next one."""
        now_s = anyio.current_time()
        turn, self._dirty = self._dirty, {}
        turn.update(dict.fromkeys(a for a, at_s in self._agenda.items() if at_s <= now_s))
        for attachment in turn:
            at_s = attachment._pump(now_s)
            if at_s < inf and attachment._id in self._attachments:
                self._agenda[attachment] = at_s
            else:
                self._agenda.pop(attachment, None)
        if self.link is not None:
            self.link.flush()
        return min(self._agenda.values(), default=inf)

    async def drain(self) -> None:
        """Wait until the broker has answered all publishes and acks of all attachments."""
        for attachment in list(self._attachments.values()):
            await attachment._drain()

    async def say_goodbye(self) -> None:
        """Send the command Goodbye, and wait until all queued commands are written."""
        if self.link is not None:
            self.link.send(wire.Goodbye("done"))
            await self.link.written()

    def close(self, error: EscapementError) -> None:
        """Close the line for good: attachments, and callers waiting for a link, get ``error``."""
        self.closed = error
        for attachment in list(self._attachments.values()):
            attachment._failed(error)
        self._attachments.clear()
        self._linked.settle()
        if self._scope is not None:
            self._scope.cancel()

    def up(self, link: Link) -> None:
        """Make ``link`` the current link, and let all attachments begin to use it."""
        self.link = link
        self._retry.succeeded()
        self._linked.settle()
        for attachment in list(self._attachments.values()):
            attachment._linked()

    def _down(self, link: Link) -> None:
        self.link = None
        self._linked, self._refusal = Promise(), None
        answers, self._answers = self._answers, {}
        for attachment in list(self._attachments.values()):
            attachment._unlinked()
        for answer in answers.values():
            answer(Disconnected(f"{link.error}; whether the request took effect is not known"))

    # -- incoming commands ---------------------------------------------------------

    def _dispatch(self, command: Command) -> None:
        """Pass a received command to the callback of its request, or to its attachment."""
        number = getattr(command, "request_id", 0)
        id = getattr(command, "producer_id", 0) or getattr(command, "consumer_id", 0)
        if number:
            if (answer := self._answers.pop(number, None)) is not None:
                answer(self._answer_of(command))
        elif id:
            # Commands for a producer or consumer that the application has closed are ignored.
            if (attachment := self._attachments.get(id)) is not None:
                attachment._heard(command)
        elif isinstance(command, wire.Refused):
            assert self.link is not None
            self.link.end(command.error())
        elif isinstance(command, wire.Moved):
            self._route.learn(command)  # Goodbye follows

    def _answer_of(self, command: Command) -> Answer:
        """Return the answer to a request as its caller gets it."""
        if isinstance(command, wire.Refused):
            return command.error()
        if isinstance(command, wire.Moved):
            self._route.learn(command)
            return WrongBundle(
                f"bundle {command.bundle} has the topic, not bundle {self.bundle}", command.bundle
            )
        if isinstance(command, wire.Owner):
            self._route.learn(command)
        return command
