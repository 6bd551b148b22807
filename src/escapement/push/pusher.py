"""Runs the push targets of a log in this process, until it is told to stop.

The pusher asks the brokers for the targets every few seconds, and begins and ends deliveries as the
targets change. Several processes may push at once: they share the messages, as consumers do.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import httpcore
import trio

from escapement.client.broker import Broker
from escapement.clock import Clock, SystemClock
from escapement.errors import EscapementError
from escapement.event_log import EventLog
from escapement.push.addresses import Network
from escapement.push.delivery import Delivery
from escapement.push.poster import TCP, Poster, Resolve, resolve
from escapement.push.target import Target

_log = EventLog(__name__)

# How often the pusher asks for the targets.
REFRESH_S: Final = 2.0
# The wait before deliveries begin again that a broker has ended.
_AGAIN_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class PushConfig:
    """Where a pusher may post.

    Attributes:
      allowed: the networks that may be reached although they are not public, and without TLS.
      authorities: the certificates to trust.
      network: opens connections to addresses that are allowed.
    """

    allowed: Sequence[Network] = ()
    authorities: ssl.SSLContext = field(default_factory=ssl.create_default_context)
    resolve: Resolve = resolve
    clock: Clock = field(default_factory=SystemClock)
    network: httpcore.AsyncNetworkBackend = TCP


async def run_push(
    config: PushConfig,
    connect: Callable[[], AbstractAsyncContextManager[Broker]],
    until: Callable[[], Awaitable[None]],
    ready: Callable[[int], None],
) -> None:
    """Post messages until the awaitable of ``until`` has finished, and the last posts have ended.

    Args:
      ready: called with the number of targets, when the brokers have told them first.

    Raises:
      EscapementError: if a broker refuses to tell the targets.
    """
    async with connect() as broker:
        pusher = Pusher(broker, config)
        await pusher.run(until, ready)


class Pusher:
    """The deliveries to all targets."""

    def __init__(self, broker: Broker, config: PushConfig) -> None:
        self._broker = broker
        self._config = config
        # By topic and subscription. They stay here until they have ended.
        self._deliveries: dict[tuple[str, str], Delivery] = {}
        self._not_before_s: dict[tuple[str, str], float] = {}  # of deliveries that a broker ended
        self._ended = trio.Event()  # replaced whenever a delivery has ended
        self._is_unlisted = False  # whether the last request for the targets had no answer

    async def run(self, until: Callable[[], Awaitable[None]], ready: Callable[[int], None]) -> None:
        """Run the deliveries; see ``run_push``."""
        targets = await self._targets()
        count = len(targets)
        _log.info("push.ready", "messages are posted to endpoints", targets=count)
        ready(count)
        failure: EscapementError | None = None
        async with trio.open_nursery() as deliveries:
            async with trio.open_nursery() as waiting:

                async def wait() -> None:
                    await until()
                    waiting.cancel_scope.cancel()

                waiting.start_soon(wait)
                try:
                    await self._follow(targets, deliveries)
                except EscapementError as error:
                    failure = error  # raised below, so that no exception group wraps it
                    waiting.cancel_scope.cancel()
            for delivery in self._deliveries.values():
                delivery.stop()
        if failure is not None:
            raise failure

    async def _follow(self, targets: Sequence[Target], deliveries: trio.Nursery) -> None:
        """Begin and end deliveries as the targets change, forever."""
        while True:
            wanted = {(one.topic, one.subscription): one for one in targets}
            for key, delivery in self._deliveries.items():
                if wanted.get(key) != delivery.target:
                    delivery.stop()
            for key, target in wanted.items():
                waits = trio.current_time() < self._not_before_s.get(key, 0)
                if key not in self._deliveries and not waits:
                    self._begin(key, target, deliveries)
            ended = self._ended
            with trio.move_on_after(REFRESH_S):
                await ended.wait()
            targets = await self._refreshed(targets)

    def _begin(self, key: tuple[str, str], target: Target, deliveries: trio.Nursery) -> None:
        config = self._config
        poster = Poster(
            target,
            config.allowed,
            config.authorities,
            config.clock,
            config.resolve,
            config.network,
        )
        self._deliveries[key] = delivery = Delivery(target, poster, config.clock)
        deliveries.start_soon(partial(self._run, key, delivery))

    async def _run(self, key: tuple[str, str], delivery: Delivery) -> None:
        try:
            await delivery.run(self._broker)
            self._not_before_s.pop(key, None)
        except EscapementError as error:
            self._not_before_s[key] = trio.current_time() + _AGAIN_S
            topic, subscription = key
            _log.warning(
                "push.target_ended",
                "%s %s: posts end, and begin again in %d s: %s",
                topic,
                subscription,
                _AGAIN_S,
                error,
                topic=topic,
                subscription=subscription,
                code=error.code,
            )
        finally:
            del self._deliveries[key]
            self._ended.set()
            self._ended = trio.Event()

    async def _refreshed(self, before: Sequence[Target]) -> Sequence[Target]:
        """Return the targets, or those before if no broker can tell them now."""
        try:
            targets = await self._targets()
        except EscapementError as error:
            if not error.retryable:
                raise
            if not self._is_unlisted:
                _log.warning(
                    "push.unlisted",
                    "no broker tells the push targets, so they stay as they are: %s",
                    error,
                )
            self._is_unlisted = True
            return before
        self._is_unlisted = False
        return targets

    async def _targets(self) -> list[Target]:
        return [Target.of(row) for row in await self._broker.admin("push.secrets")]
