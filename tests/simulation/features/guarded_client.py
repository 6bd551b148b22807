"""A client whose tokens and rights change: it publishes, consumes and administers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import trio

import escapement
from escapement.client.connection.line import Line
from escapement.errors import AccessDenied, EscapementError, Unauthenticated
from escapement.names import TopicName
from histories.recording import amend, send
from simulation.checks.auditing import Action
from simulation.checks.guarding import GuardCheck, Request, TokenLife
from simulation.clocks import HOUR_S, LOOK_S, MOST_SKEW_MS
from simulation.consuming import random_delay_ms
from simulation.features.audited_request import audited
from simulation.features.feature import STALE_S
from simulation.host import Host
from simulation.world import World
from support.tapped_inbox import Delivered, tap

# The subscription from which these clients consume.
WATCHED: Final = "watched"
# The shares of looks at which it begins a session: at a broker that has lost its lease, and else.
_LOST_SHARE: Final = 0.5
_SHARE: Final = 0.05
# A node that runs, and reaches the database, knows each change after this time. It is two seconds
# in production.
_FRESH_MS: Final = int(2 * LOOK_S * 1000)
_STALE_MS: Final = int(STALE_S * 1000)
_ACTS: Final = 5
_STRANGE_SHARE: Final = 0.08
# The share of sessions with the latest tokens, of which some are valid.
_LATEST_SHARE: Final = 0.75
_LATEST: Final = 6
# The share of sessions with the newest token, at a broker that has lost its lease.
_NEWEST_SHARE: Final = 0.6
# How often it draws a token and an act, until both may be allowed.
_DRAWS: Final = 2
_PAUSES_S: Final = (0.0, 60.0, HOUR_S, 8 * HOUR_S)


class GuardedClient:
    """One session after the other, each with a token, at any node.

    Args:
      topics: the topics of the sessions.
      strangers: tokens that the brokers never had, or no token.
      action: returns a request of a role with a reason of its own.
    """

    def __init__(
        self,
        world: World,
        check: GuardCheck,
        topics: Sequence[str],
        strangers: Sequence[TokenLife],
        action: Callable[[str, str, str, dict[str, Any]], Action],
        number: int,
    ) -> None:
        self._world = world
        self._history = world.history
        self._check = check
        self._topics = topics
        self._strangers = strangers
        self._action = action
        self._rng = world.chance(f"guarded client {number}")
        # Of this session, by topic, with the time of the last answer to each.
        self._producers: dict[str, tuple[escapement.Producer, int]] = {}
        self._end_ms = 0
        # Its acts, each with the right that it needs and its weight.
        self._acts: dict[Callable[[escapement.Broker, Line, Request], Awaitable[None]], Any] = {
            self._publish: ("produce", 6),
            self._consume: ("consume", 5),
            self._peek: ("peek", 2),
            self._cancel: ("cancel", 2),
            self._update: ("admin", 3),
            self._ask_rights: ("", 2),
        }

    async def run(self, end_ms: int) -> None:
        """Begin and end sessions until the end."""
        while self._history.now_ms() < end_ms:
            await trio.sleep(self._rng.uniform(0, 2 * LOOK_S))
            lost = [host for host in self._world.hosts if host.has_lost_a_lease]
            if self._rng.random() > (_LOST_SHARE if lost else _SHARE):
                continue
            at = self._rng.choice(lost or [None, *self._world.hosts])
            await self.visit(self._draw_token(bool(lost)), at, end_ms)

    async def visit(self, token: TokenLife, at: Host | None, end_ms: int) -> None:
        """Begin a session with a token, and end it.

        Args:
          at: the only process whose address it knows; None if it knows others.
        """
        self._end_ms = end_ms
        request = Request(token, self._history.now_ms())
        try:
            await self._stay(request, at)
        except Unauthenticated:
            self._history.counts["sessions refused"] += 1
            self._check.unauthenticated(request, self._history.now_ms())
        except EscapementError as error:
            if not error.retryable:
                raise

    def _draw_token(self, newest: bool) -> TokenLife:
        """Draw a token, often the newest one or one of the latest."""
        tokens = self._check.tokens
        if not tokens or self._rng.random() < _STRANGE_SHARE:
            return self._rng.choice(self._strangers)
        if newest and self._rng.random() < _NEWEST_SHARE:
            return tokens[-1]
        if self._rng.random() < _LATEST_SHARE:
            tokens = tokens[-_LATEST:]
        now_ms = self._history.now_ms()
        for _ in range(_DRAWS):
            token = self._rng.choice(tokens)
            if token.is_surely_valid(now_ms, now_ms, MOST_SKEW_MS):
                break
        return token

    async def _stay(self, session: Request, at: Host | None) -> None:
        """Connect, and act some times, with pauses."""
        self._producers = {}
        async with self._world.connect(at=at, token=session.token.text) as client:
            self._served(session, client._lines.first)
            self._history.counts["sessions"] += 1
            for _ in range(self._rng.randint(1, _ACTS)):
                await self._act(client, session.token)
                await trio.sleep(self._rng.uniform(0, self._rng.choice(_PAUSES_S)))

    # -- its acts --------------------------------------------------------------------

    async def _act(self, client: escapement.Broker, token: TokenLife) -> None:
        now_ms = self._history.now_ms()
        for _ in range(_DRAWS):
            ((act, (action, _)),) = self._rng.choices(
                list(self._acts.items()), [weight for _, weight in self._acts.values()]
            )
            request = Request(token, now_ms, action, self._rng.choice(self._topics))
            if self._check.surely_allowed(request, now_ms):
                break
        try:
            line = await client._lines.of_topic(request.topic)
            await act(client, line, request)
        except AccessDenied:
            self._history.counts["denied"] += 1
            self._check.denied(request, self._history.now_ms())
        except EscapementError as error:
            if not error.retryable:
                raise

    def _served(self, request: Request, line: Line) -> None:
        """Note that a broker did what a request asked for."""
        now_ms = self._history.now_ms()
        known_ms = self._known_ms(request.called_ms, line)
        self._check.served(request, known_ms, now_ms)

    def _known_ms(self, called_ms: int, line: Line) -> int:
        """Return a time: the broker of a line surely knew all changes until then at ``called_ms``.

        That is earlier if it did not run since, or did not reach the database.
        """
        fresh_ms = called_ms - _FRESH_MS
        if line.link is not None:
            name, _ = line.link._stream.host  # type: ignore[attr-defined]
            if self._host(name).impaired_ms <= fresh_ms:
                return fresh_ms
        return called_ms - _STALE_MS

    def _host(self, name: str) -> Host:
        (host,) = (one for one in self._world.hosts if one.name == name)
        return host

    async def _publish(self, client: escapement.Broker, line: Line, request: Request) -> None:
        """Send a message, often with the producer of an earlier one."""
        topic = request.topic
        if topic not in self._producers:
            self._producers[topic] = await client.producer(topic), request.called_ms
            self._served(request, line)
        producer, answered_ms = self._producers.pop(topic)
        now_ms = self._history.now_ms()
        delay_ms = random_delay_ms(self._rng, max(self._end_ms - now_ms, 0))
        message = self._history.publish(topic, "", now_ms + delay_ms - MOST_SKEW_MS)
        request = request._replace(called_ms=now_ms)
        message.refused = self._check.surely_forbidden(request, now_ms - _STALE_MS, now_ms)
        try:
            await send(self._history, producer, [(message, delay_ms)], dedup=[f"d{message.number}"])
        except AccessDenied:
            # The broker may have closed the producer long before.
            self._history.counts["producers closed"] += 1
            self._check.denied(request._replace(called_ms=answered_ms), self._history.now_ms())
            return
        self._producers[topic] = producer, now_ms
        self._history.counts["published with a right"] += 1
        self._served(request, line)

    async def _consume(self, client: escapement.Broker, line: Line, request: Request) -> None:
        """Consume for some time. Each message needs the right, and so does an open consumer."""

        def note(delivered: list[Delivered]) -> None:
            link = inbox._line.link
            assert link is not None
            sent_ms = self._history.unix_ms(link._stream.last.at_s)  # type: ignore[attr-defined]
            self._history.counts["delivered with a right"] += len(delivered)
            self._served(request._replace(called_ms=sent_ms), inbox._line)

        until_s = trio.current_time() + self._rng.uniform(0, 20 * HOUR_S)
        async with client.consumer(request.topic, WATCHED, permits=2) as inbox:
            self._served(request, line)
            tap(inbox, note)
            while (left_s := until_s - trio.current_time()) > 0:
                message = await inbox.receive(timeout_s=min(left_s, HOUR_S))
                if message is not None:
                    await inbox.ack(message.offset)
                elif _is_connected(inbox._line):
                    now_ms = self._history.now_ms()
                    self._served(request._replace(called_ms=now_ms), inbox._line)

    async def _peek(self, client: escapement.Broker, line: Line, request: Request) -> None:
        _ = [one async for one in client.peek(request.topic)]
        self._served(request, line)

    async def _cancel(self, client: escapement.Broker, line: Line, request: Request) -> None:
        """Cancel a message of the topic, if it has one."""
        messages = [
            one for one in self._history.messages if one.topic == request.topic and one.offset >= 0
        ]
        if not messages:
            return
        message = self._rng.choice(messages[-20:])
        full = TopicName.parse(request.topic).full
        arguments = {"messages": 1, "offsets": [message.offset]}
        action = self._action(request.token.role, "messages.cancel", full, arguments)
        cancel = client.because(action.reason).cancel
        ask: Callable[[], Awaitable[None]] = partial(
            amend, self._history, client, message, None, cancel, "cancelled with a right"
        )
        await audited(self._history, self._check.audit, action, line, ask)
        self._served(request, line)

    async def _update(self, client: escapement.Broker, line: Line, request: Request) -> None:
        arguments: dict[str, Any] = {"topic": request.topic, "policy": {"dedup_window_ms": "6d"}}
        full = TopicName.parse(request.topic).full
        action = self._action(request.token.role, "topics.update", full, arguments)
        ask = partial(client.because(action.reason).admin, "topics.update", **arguments)
        await audited(self._history, self._check.audit, action, line, ask)
        self._history.counts["updated with a right"] += 1
        self._served(request, line)

    async def _ask_rights(self, client: escapement.Broker, line: Line, request: Request) -> None:
        """Ask for the own rights, at any broker."""
        answer = await client.admin("access.own")
        known_ms, now_ms = request.called_ms - _STALE_MS, self._history.now_ms()
        self._check.served(request, known_ms, now_ms)
        if request.token in self._strangers:  # no broker has told them that there are tokens
            return
        if answer["token_id"] != request.token.id or answer["role"] != request.token.role:
            self._history.surprises.append(f"access: {request} is told {answer}")
        own = {row["pattern"]: frozenset(row["actions"]) for row in answer["grants"]}
        self._check.told(request, own, known_ms, now_ms)


def _is_connected(line: Line) -> bool:
    """Return whether the connection of a line exists, also at the broker."""
    return line.link is not None and line.link._stream.cable.ended_s is None  # type: ignore[attr-defined]
