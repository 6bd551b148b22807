"""The lines of a client: one for each bundle of topics that it uses.

A *bundle* is a set of topics, and a connection serves one bundle. Most databases have one bundle,
and then a client has one line and looks nothing up. With several bundles, the client asks any
broker for the bundle of a topic, once, and makes the line of that bundle when it first needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

import anyio
from anyio.abc import TaskGroup

from escapement.client.connection.address import Address
from escapement.client.connection.line import Answer, Line
from escapement.client.connection.link import Link
from escapement.client.connection.places import Places
from escapement.client.connection.promise import Promise
from escapement.client.connection.retry import Retry
from escapement.client.connection.route import Dial, Route
from escapement.client.connection.token_source import TokenSource
from escapement.client.settings import Settings
from escapement.clock import elapsed_s
from escapement.errors import Disconnected, EscapementError, NoOwner
from escapement.names import full_name
from escapement.protocol import commands as wire

if TYPE_CHECKING:
    from escapement.client.tracing.tracer import Tracer

# The topics whose bundles a client remembers. When there are more, it forgets the oldest.
MOST_TOPICS: Final = 10_000


class Lines:
    """The lines of a client. ``connect`` opens the first one, ``begin`` runs it.

    Args:
      dial: opens a byte stream to an address.
      addresses: the addresses of brokers, which are tried in turn.
      name: the name of the client.
      described: what errors call the addresses; None for the addresses themselves.
      clock_s: the clock that tells how long messages have waited; see ``connect``.

    Attributes:
      first: the line of the first connection. Its bundle is any one.
    """

    def __init__(
        self,
        dial: Dial,
        addresses: Sequence[Address],
        name: str,
        settings: Settings,
        token_source: TokenSource,
        tracer: Tracer | None = None,
        described: str | None = None,
        clock_s: Callable[[], float] = elapsed_s,
    ) -> None:
        self.settings = settings
        self.tracer = tracer  # None if the client does not trace
        self.closed: EscapementError | None = None
        self._dial = dial
        self._places = Places(addresses)
        self._name = name
        self._token_source = token_source
        self._described = described
        self._clock_s = clock_s
        self._ids = count(1)
        self._tasks: TaskGroup | None = None
        self._bundles: dict[str, int] = {}  # of topics, by full name
        self._connecting = anyio.Lock()  # held by the lookup that connects to any broker
        self.first = self._make(None)
        self._lines: dict[int, Line] = {}

    def __iter__(self) -> Iterator[Line]:
        """Iterate over the lines that exist."""
        return iter(self._lines.values())

    @property
    def count(self) -> int:
        """The number of bundles, as far as the client knows."""
        return self._places.count

    @property
    def connected(self) -> bool:
        """Whether the links of all lines are up."""
        return all(line.link is not None for line in self._lines.values())

    # -- which line ------------------------------------------------------------------

    async def of_topic(self, topic: str) -> Line:
        """Return the line for requests about a topic. Look its bundle up if it is not known.

        Raises:
          InvalidRequest: if ``topic`` is not the name of a topic.
          Disconnected: if no broker answers within ``request_timeout_s``.
        """
        if self.count == 1:
            return self.of_bundle(0)
        return self.of_bundle((await self.bundles_of([topic]))[0])

    def of_bundle(self, bundle: int) -> Line:
        """Return the line of a bundle. A new line begins to connect, and does not wait.

        With several bundles, a line that ended because its broker refused the token is replaced:
        that broker may know a new token later than the others do.
        """
        line = self._lines.get(bundle)
        if line is None or (line.closed is not None and self.closed is None and self.count > 1):
            line = self._lines[bundle] = self._make(bundle)
            line.closed = self.closed
            if self._tasks is not None and self.closed is None:
                self._tasks.start_soon(line.run, None)
        return line

    async def bundles_of(self, topics: Sequence[str]) -> list[int]:
        """Return the bundles of topics. Raises the errors of ``of_topic``."""
        names = [full_name(topic) for topic in topics]
        found = {name: self._bundles[name] for name in names if name in self._bundles}
        missing = [name for name in dict.fromkeys(names) if name not in found]
        if missing:
            found |= zip(missing, await self.look_up(missing), strict=True)
        return [found[name] for name in names]

    def note_bundle(self, topic: str, bundle: int) -> None:
        """Note the bundle of a topic, because a broker has told it."""
        name = full_name(topic)
        self._bundles.pop(name, None)
        self._bundles[name] = bundle
        if len(self._bundles) > MOST_TOPICS:
            del self._bundles[next(iter(self._bundles))]

    async def look_up(self, names: list[str]) -> list[int]:
        """Ask a broker for the bundles of topics, all together, until it answers.

        The answer also has the number of bundles.
        """
        deadline_s = anyio.current_time() + self.settings.request_timeout_s
        retry = Retry(self.settings.reconnect_first_s, self.settings.reconnect_longest_s)
        while True:
            try:
                owners = await self._ask_any(names, deadline_s)
            except EscapementError as error:
                again_s = anyio.current_time() + retry.next_s(anyio.current_time())
                if self.closed is not None or again_s >= deadline_s or not error.retryable:
                    raise
            else:
                for name, owner in zip(names, owners, strict=True):
                    self.note_bundle(name, owner.bundle)
                return [owner.bundle for owner in owners]
            await anyio.sleep_until(again_s)

    async def _ask_any(self, names: list[str], until_s: float) -> list[wire.Owner]:
        """Look up topics at a broker with a link; if none has one, at any that answers."""
        async with self._connecting:
            if (line := self._linked()) is None:
                return await self._ask_other(names, until_s)
        return await _ask_all(line, names, until_s)

    async def _ask_other(self, names: list[str], until_s: float) -> list[wire.Owner]:
        """Look up topics through a connection of its own, to the first broker that answers."""
        if self.closed is not None:
            raise copy(self.closed)
        assert self._tasks is not None, "a lookup before the first connection"
        line = self._make(None)
        with anyio.CancelScope(deadline=until_s) as scope:
            link = await line.connect()
        if scope.cancelled_caught:
            raise Disconnected("no broker answered in time")
        line.up(link)
        self._tasks.start_soon(line.run, link)
        try:
            return await _ask_all(line, names, until_s)
        finally:
            assert line.bundle is not None
            self.of_bundle(line.bundle)  # begins to connect, for later lookups
            line.close(Disconnected("the lookup has ended"))

    def _linked(self) -> Line | None:
        return next((line for line in self if line.link is not None), None)

    # -- connecting and closing --------------------------------------------------------

    async def connect(self) -> Link:
        """Open the first link. Raises the errors of ``Route.open``.

        There is one attempt, unless a broker answers that the bundle has no owner at the moment.
        Then this waits for an owner, for up to ``request_timeout_s``.
        """
        deadline_s = anyio.current_time() + self.settings.request_timeout_s
        retry = Retry(self.settings.reconnect_first_s, self.settings.reconnect_longest_s)
        while True:
            try:
                return await self.first.connect()
            except NoOwner:
                if anyio.current_time() >= deadline_s:
                    raise
            await anyio.sleep(retry.next_s(anyio.current_time()))

    def begin(self, tasks: TaskGroup, link: Link) -> None:
        """Run the first line, which has this link, and the later ones, in a task group."""
        assert self.first.bundle is not None
        self._lines[self.first.bundle] = self.first
        self._tasks = tasks
        self.first.up(link)
        tasks.start_soon(self.first.run, link)

    async def drain(self) -> None:
        """Wait until the brokers have answered all publishes and acks of all attachments."""
        for line in list(self):
            await line.drain()

    async def say_goodbye(self) -> None:
        """Send the command Goodbye on all links, and wait until all commands are written."""
        for line in list(self):
            await line.say_goodbye()

    def close(self, error: EscapementError) -> None:
        """Close all lines for good with ``error``."""
        self.closed = error
        for line in list(self):
            line.close(error)

    def _make(self, bundle: int | None) -> Line:
        route = Route(self._dial, self._places, self._name, self.settings, bundle, self._described)
        return Line(
            route,
            self.settings,
            self._token_source,
            self.tracer,
            self._ids,
            self.of_bundle,
            self._clock_s,
        )


async def _ask_all(line: Line, names: list[str], until_s: float) -> list[wire.Owner]:
    """Look up topics in requests that are sent together. Raises the errors of ``Line.ask``."""
    owners = [await line.ask(partial(wire.Lookup, topic=names[0]), until_s)]
    if len(names) > 1:
        answers: dict[int, Answer] = {}
        done = Promise()

        def take(at: int, answer: Answer) -> None:
            answers[at] = answer
            if len(answers) == len(names) - 1:
                done.settle()

        for at, name in enumerate(names[1:]):
            line.request(partial(wire.Lookup, topic=name), partial(take, at))
        with anyio.CancelScope(deadline=until_s):
            await done.wait()
        if not done.settled:
            raise Disconnected("the broker did not answer in time")
        for at in range(len(names) - 1):
            if isinstance(answer := answers[at], EscapementError):
                raise copy(answer)
            owners.append(answer)
    found = [owner for owner in owners if isinstance(owner, wire.Owner)]
    assert len(found) == len(names)
    return found
