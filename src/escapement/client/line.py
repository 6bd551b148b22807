"""The line to a broker: it outlives its links, and everything of a client hangs on it.

Two tasks live as long as the line. One keeps a link up: it connects, hands what comes in
to whom it concerns, and connects again. The other, the *pump*, asks each attachment
(producer or consumer) that has something to do to do it, when it is time: all that
lingers, backs off or times out does so here, without a task of its own.

A request is answered by a callback, exactly once: with the broker's answer, or with an
error, which is ``Disconnected`` if the link ended first.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from itertools import count
from math import inf
from typing import Protocol

import anyio

from escapement.client.link import Link, StreamFactory
from escapement.client.promise import Promise
from escapement.client.retry import Retry
from escapement.client.settings import Settings
from escapement.errors import Disconnected, EscapementError
from escapement.protocol import commands as wire
from escapement.protocol.commands import Command

Answer = Command | EscapementError


class Attachment(Protocol):
    """What hangs on a line: it is told of links, of time, and of what concerns it."""

    @property
    def id(self) -> int: ...

    def linked(self) -> None:
        """There is a link."""

    def unlinked(self) -> None:
        """The link is gone."""

    def pump(self, now_s: float) -> float:
        """Do what is due; returns when to be asked again."""

    def heard(self, command: Command) -> None:
        """The broker said something to it that is no answer to a request."""

    async def flush(self) -> None:
        """Wait until it has nothing under way."""

    def failed(self, error: EscapementError) -> None:
        """The line is closed: nothing more can be done."""


class Line:
    """See the module's docstring."""

    def __init__(self, factory: StreamFactory, name: str, settings: Settings) -> None:
        self.name = name
        self.settings = settings
        self.link: Link | None = None
        self.closed: EscapementError | None = None
        self._factory = factory
        self._linked = Promise()  # of the next link, while there is none
        self._attachments: dict[int, Attachment] = {}
        self._answers: dict[int, Callable[[Answer], None]] = {}
        self._ids = count(1)
        self._requests = count(1)
        self._dirty: set[Attachment] = set()
        self._agenda: dict[Attachment, float] = {}
        self._bell = anyio.Event()
        self._retry = Retry(settings.reconnect_first_s, settings.reconnect_longest_s)

    # -- for attachments -----------------------------------------------------------

    def new_id(self) -> int:
        """An id for an attachment, never used twice on this line."""
        return next(self._ids)

    def attach(self, attachment: Attachment) -> None:
        """From now on it is told of links and of what concerns it.

        Raises:
          Disconnected: this side has closed the connection.
        """
        if self.closed is not None:
            raise copy(self.closed)
        self._attachments[attachment.id] = attachment
        if self.link is not None:
            attachment.linked()

    def detach(self, attachment: Attachment) -> None:
        """It is told nothing more; a second time changes nothing."""
        self._attachments.pop(attachment.id, None)
        self._dirty.discard(attachment)
        self._agenda.pop(attachment, None)

    def wake(self, attachment: Attachment) -> None:
        """Have it pumped soon. O(1)."""
        if attachment not in self._dirty and attachment.id in self._attachments:
            self._dirty.add(attachment)
            self._bell.set()

    def send(self, command: Command) -> None:
        """Queue a command on the link, which is there."""
        assert self.link is not None
        self.link.send(command)

    def request(self, make: Callable[[int], Command], answer: Callable[[Answer], None]) -> None:
        """Send the request that ``make`` makes of an id, and have it answered."""
        if self.link is None:
            answer(Disconnected("there is no connection to the broker"))
            return
        number = next(self._requests)
        self._answers[number] = answer
        try:
            self.link.send(make(number))
        except EscapementError as error:
            del self._answers[number]
            answer(error)

    async def ask(self, make: Callable[[int], Command], until_s: float = inf) -> Command:
        """Send a request and wait for its answer; without a link, wait for one first.

        At most as long as the settings say, and no longer than ``until_s`` of the loop's clock.

        Raises:
          Disconnected: if no answer came in time or the link ended; what became of the
            request is not known.
          EscapementError: if the broker refused.
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
                raise self.closed
            self.request(make, take)
            await settled.wait()
        if not answers:
            raise Disconnected(f"the broker did not answer within {timeout_s:g} s")
        if isinstance(answers[0], EscapementError):
            raise answers[0]
        return answers[0]

    # -- its life ------------------------------------------------------------------

    async def connect(self) -> Link:
        """A new link, by one attempt; see ``Link.open``."""
        return await Link.open(self._factory, self.name, self.settings.connect_timeout_s)

    async def keep(self, link: Link) -> None:
        """Run this link, which is up, and the next, and so on, until cancelled."""
        while True:
            try:
                await link.run(
                    self._dispatch,
                    self.settings.heartbeat_s,
                    self.settings.heartbeat_timeout_s,
                )
            finally:
                self._down(link)
            link = await self._reconnect()
            self.up(link)

    async def _reconnect(self) -> Link:
        while True:
            await anyio.sleep(self._retry.next_s(anyio.current_time()))
            try:
                return await self.connect()
            except EscapementError:
                continue  # whoever waits for it has a time limit of its own

    async def pump(self) -> None:
        """Ask attachments to do what is due, until cancelled."""
        while True:
            self._bell = anyio.Event()
            now_s = anyio.current_time()
            due = [a for a, at_s in self._agenda.items() if at_s <= now_s]
            turn, self._dirty = self._dirty.union(due), set()
            for attachment in turn:
                at_s = attachment.pump(now_s)
                if at_s < inf and attachment.id in self._attachments:
                    self._agenda[attachment] = at_s
                else:
                    self._agenda.pop(attachment, None)
            if self._dirty:
                await anyio.lowlevel.checkpoint()
                continue
            with anyio.CancelScope(deadline=min(self._agenda.values(), default=inf)):
                await self._bell.wait()

    async def drain(self) -> None:
        """Wait until no attachment has anything under way."""
        for attachment in list(self._attachments.values()):
            await attachment.flush()

    async def say_goodbye(self) -> None:
        """Tell the broker that we leave, once all that was sent is written."""
        if self.link is not None:
            self.link.send(wire.Goodbye("done"))
            await self.link.written()

    def close(self, error: EscapementError) -> None:
        """Fail whatever still waits."""
        self.closed = error
        for attachment in list(self._attachments.values()):
            attachment.failed(error)
        self._attachments.clear()
        self._linked.settle()

    def up(self, link: Link) -> None:
        """There is a link: tell everybody."""
        self.link = link
        self._retry.succeeded()
        self._linked.settle()
        for attachment in list(self._attachments.values()):
            attachment.linked()

    def _down(self, link: Link) -> None:
        self.link = None
        self._linked = Promise()
        answers, self._answers = self._answers, {}
        for attachment in list(self._attachments.values()):
            attachment.unlinked()
        for answer in answers.values():
            answer(Disconnected(f"{link.error}; what became of the request is not known"))

    # -- what comes in -------------------------------------------------------------

    def _dispatch(self, command: Command) -> None:
        match command:
            case wire.Refused(request_id=0, producer_id=0):
                assert self.link is not None
                self.link.end(command.error())
            case wire.Refused(request_id=number) if number:
                self._answer(number, command.error())
            case (
                wire.ProducerReady(request_id=number)
                | wire.ConsumerReady(request_id=number)
                | wire.Acked(request_id=number)
                | wire.Amended(request_id=number)
                | wire.Done(request_id=number)
                | wire.AdminReply(request_id=number)
                | wire.Page(request_id=number)
                | wire.Found(request_id=number)
            ):
                self._answer(number, command)
            case (
                wire.Refused(producer_id=id)
                | wire.Receipt(producer_id=id)
                | wire.ProducerClosed(producer_id=id)
                | wire.Deliver(consumer_id=id)
                | wire.ConsumerActive(consumer_id=id)
                | wire.ConsumerRewound(consumer_id=id)
                | wire.ConsumerClosed(consumer_id=id)
            ):
                # What came for one that we have closed meanwhile is for nobody.
                if (attachment := self._attachments.get(id)) is not None:
                    attachment.heard(command)

    def _answer(self, number: int, answer: Answer) -> None:
        take = self._answers.pop(number, None)
        if take is not None:
            take(answer)
