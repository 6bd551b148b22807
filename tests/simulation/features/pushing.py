"""An endpoint to which processes push the messages of a subscription.

An operator changes, pauses and resumes the target, and replaces its secret.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, ClassVar, Final

import trio

import escapement
from escapement.errors import AlreadyExists, EscapementError, NotFound
from escapement.storage.catalog.push_targets import ACK_MARGIN_MS, MIN_TIMEOUT_MS
from histories.recording import list_dead_letters
from simulation.checks.push_tries import Pusher
from simulation.checks.pushing import PushCheck
from simulation.checks.seeking import Pause
from simulation.clocks import HOUR_S
from simulation.consuming import Subscriber
from simulation.endpoint import Endpoint
from simulation.features.feature import BACKOFF, REPEATED_S, Feature, Topics
from simulation.push_process import PushProcess
from simulation.world import World

_TOPIC: Final = "pushed"
_SUBSCRIPTION: Final = "h"
_NAMES: Final = {"topic": _TOPIC, "subscription": _SUBSCRIPTION}
_URL: Final = "http://hooks.example:8080/in"
_MAX_DELIVERIES: Final = 8
_PROCESSES: Final = 2
_BATCH: Final = 6
_MEAN_S: Final = 9 * HOUR_S
_MEAN_LIFE_S: Final = 30 * HOUR_S
_LONGEST_PAUSE_S: Final = 12 * HOUR_S
_TIMEOUTS_MS: Final = (MIN_TIMEOUT_MS, 2_000, 10_000, 60_000)
_TYPES: Final = ("", "text/plain", "application/json; charset=utf-8")
_USUAL_TYPE: Final = "application/octet-stream"


class Pushing(Feature):
    """Two processes that push, and are stopped, killed and paused by chance."""

    topics: ClassVar[Topics] = {_TOPIC: {_SUBSCRIPTION: "shared"}}

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.policies = {_SUBSCRIPTION: {**BACKOFF, "max_deliveries": _MAX_DELIVERIES}}
        self._history.max_deliveries[_SUBSCRIPTION] = _MAX_DELIVERIES
        shortest_s = (MIN_TIMEOUT_MS + ACK_MARGIN_MS) / 1000
        self._history.expiries_s[_SUBSCRIPTION] = shortest_s - self._history.sending_s
        self.check = PushCheck(_SUBSCRIPTION, **BACKOFF)
        self._endpoint = Endpoint(self._history, world.network, world.chance("endpoint"))
        self._healed = trio.Event()

    def subscribers(self) -> list[Subscriber]:
        return []  # only processes that push, see ``consume``

    def heal(self) -> None:
        self._endpoint.heal()
        self._healed.set()

    # -- the operator ----------------------------------------------------------------

    async def run(self, end_ms: int) -> None:
        await self._change_secret(self._create)
        acts = {self._publish: 12, self._update: 2, self._rotate: 2, self._pause: 2}
        while self._history.now_ms() < end_ms:
            await trio.sleep(self._rng.uniform(0, 2 * _MEAN_S))
            self._endpoint.change()
            (act,) = self._rng.choices(list(acts), list(acts.values()))
            await act(end_ms)

    async def _publish(self, end_ms: int) -> None:
        messages, delays_ms = self._draw(_TOPIC, self._rng.randint(1, _BATCH), end_ms)
        types = [self._rng.choice(_TYPES) for _ in messages]
        for message, of in zip(messages, types, strict=True):
            self.check.types[message.number] = of or _USUAL_TYPE
        properties = [{"content-type": of} if of else None for of in types]
        await self._send(messages, delays_ms, properties=properties)

    def _settings(self) -> dict[str, Any]:
        timeout_ms = self._rng.choice(_TIMEOUTS_MS)
        return {"timeout_ms": timeout_ms, "concurrency": self._rng.randint(1, 5)}

    async def _create(self, client: escapement.Broker) -> None:
        with suppress(AlreadyExists):  # an earlier request has created it
            await client.admin("push.create", **_NAMES, url=_URL, policy=self._settings())

    async def _update(self, end_ms: int) -> None:
        settings = self._settings()

        async def update(client: escapement.Broker) -> None:
            await client.admin("push.update", **_NAMES, policy=settings)

        await self._ask_surely(_TOPIC, update)
        self._history.counts["push targets updated"] += 1

    async def _rotate(self, end_ms: int) -> None:
        keep_ms = self._rng.choice([0, 86_400_000])

        async def rotate(client: escapement.Broker) -> None:
            await client.admin("push.rotate", **_NAMES, keep_ms=keep_ms)

        await self._change_secret(rotate)
        self._history.counts["push secrets replaced"] += 1

    async def _change_secret(self, ask: Callable[[escapement.Broker], Awaitable[None]]) -> None:
        """Make a request that changes the secret, and tell the endpoint the secrets."""

        async def learn(client: escapement.Broker) -> None:
            for row in await client.admin("push.secrets"):
                self.check.secrets |= set(row["secrets"])

        self.check.secrets_known = False
        await self._ask_surely(_TOPIC, ask)
        await self._ask_surely(_TOPIC, learn)
        self.check.secrets_known = True

    async def _pause(self, end_ms: int) -> None:
        """Pause the target for some hours."""
        await self._ask_surely(_TOPIC, lambda client: client.admin("push.pause", **_NAMES))
        pause = Pause(_SUBSCRIPTION, self._history.now_s() + REPEATED_S)
        self.check.pauses.append(pause)
        await trio.sleep(self._rng.uniform(0, _LONGEST_PAUSE_S))
        pause.ended_s = self._history.now_s()
        await self._ask_surely(_TOPIC, lambda client: client.admin("push.resume", **_NAMES))
        self._history.counts["push targets paused"] += 1

    async def look(self) -> None:
        """List all dead letters."""
        try:
            async with self._world.connect() as client:
                await list_dead_letters(self._history, client, _TOPIC, _SUBSCRIPTION)
        except NotFound:
            return  # there is no dead letter
        except EscapementError as error:
            if not error.retryable:
                raise

    # -- the processes that push -----------------------------------------------------

    async def consume(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._endpoint.serve)
            for _ in range(_PROCESSES):
                nursery.start_soon(self._keep)

    async def _keep(self) -> None:
        """Run a process, and the next one when it has ended."""
        while True:
            pusher = Pusher()
            self.check.pushers.append(pusher)
            process = PushProcess(
                self._world, _SUBSCRIPTION, self._endpoint, pusher, self.check.stray
            )
            async with trio.open_nursery() as nursery:
                ended = trio.Event()
                nursery.start_soon(self._live, process, ended)
                nursery.start_soon(self._trouble, process)
                await ended.wait()
                nursery.cancel_scope.cancel()
            longest_s = 60.0 if self._healed.is_set() else 8 * HOUR_S
            with trio.move_on_after(self._rng.uniform(1, longest_s)):
                await self._healed.wait()
                await trio.sleep(60)

    async def _live(self, process: PushProcess, ended: trio.Event) -> None:
        try:
            await process.run()
        except EscapementError as error:
            if not error.retryable:
                raise
        ended.set()

    async def _trouble(self, process: PushProcess) -> None:
        """Pause the process now and then, and end it, until all faults have ended."""
        end = self._rng.choice([self._stop, self._kill])
        with trio.move_on_after(self._rng.uniform(0, 2 * _MEAN_LIFE_S)):
            while not self._healed.is_set():
                await self._or_healed(self._rng.uniform(0, _MEAN_LIFE_S))
                process.pause()
                await self._or_healed(self._rng.choice([20, 120, HOUR_S]) * self._rng.random())
                process.resume()
        process.resume()
        if not self._healed.is_set():
            end(process)
            self._history.faults[f"push process {end.__name__.strip('_')}"] += 1

    async def _or_healed(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._healed.wait()

    def _stop(self, process: PushProcess) -> None:
        process.stop()

    def _kill(self, process: PushProcess) -> None:
        process.kill(noticed=self._rng.random() < 0.6)
