"""Processes that push, as `escapement push` does, and what they do with each message.

A process runs the code of the product, with connections of the simulation to the brokers and to
the endpoint. It notes its tries where the product calls the client library.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import trio

import escapement
from escapement.client.consuming.ack_queue import PendingAck
from escapement.message import Int64s
from escapement.protocol import commands as wire
from escapement.push.addresses import network
from escapement.push.pusher import PushConfig, run_push
from escapement.storage.catalog.push_targets import ACK_MARGIN_MS
from histories.recording import RecordedInbox
from simulation.checks.push_tries import (
    ACK,
    NACK,
    REJECT,
    RELEASE,
    Deliveries,
    Listing,
    Post,
    Pusher,
    Try,
)
from simulation.consuming import way_of
from simulation.endpoint import Endpoint, Path
from simulation.network import ClientStream, Weather
from simulation.pausing import PROCESS, Process
from simulation.world import World

_ADDRESS: Final = "10.1.2.3"
_ENDS: Final = {wire.Nack: NACK, wire.Reject: REJECT, wire.Release: RELEASE}
_AUTHORITIES: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class PushedInbox(RecordedInbox):
    """The consumer of a process that pushes, which notes each try and its end."""

    def __init__(
        self, world: World, subscription: str, inbox: escapement.Inbox, deliveries: Deliveries
    ) -> None:
        super().__init__(world.history, subscription, inbox, way_of)
        self._world = world
        self._deliveries = deliveries
        self._usual = inbox.pull, inbox._done, inbox._return, inbox._acks.answered, inbox.aclose
        inbox.pull = self._pull  # type: ignore[method-assign]
        inbox._done = self._done  # type: ignore[method-assign]
        inbox._return = self._return  # type: ignore[method-assign]
        inbox._acks.answered = self._answered  # type: ignore[method-assign]
        inbox.aclose = self._aclose  # type: ignore[method-assign]

    async def _pull(self, count: int, timeout_s: float | None = None) -> list[escapement.Batch]:
        pulled = await self._usual[0](count, timeout_s)
        for message in (message for batch in pulled for message in batch):
            arrival = self.consumer.latest[message.offset]
            self._deliveries.tries.append(Try(arrival, message.attempt, self._history.now_s()))
        return pulled

    def _done(self, offset: int) -> PendingAck:
        self._note_acks([offset])
        self._end([offset], ACK)
        return self._usual[1](offset)

    def _return(self, kind: Any, offsets: Int64s, delay_ms: int, detail: str = "") -> None:
        if kind is not wire.Reject:
            self._note_returns(offsets.tolist())
        self._end(offsets.tolist(), _ENDS[kind], delay_ms, detail)
        self._usual[2](kind, offsets, delay_ms, detail)

    def _answered(self, pending_ack: PendingAck, count: int) -> None:
        self._usual[3](pending_ack, count)
        offsets, firsts, _ = pending_ack.columns()
        assert offsets is not None, "a post acknowledges one message"
        assert firsts is None, "a post acknowledges one message"
        for offset in offsets.tolist():
            key = self.consumer.subscription, offset
            self._history.acked_s.setdefault(key, self._history.now_s())

    async def _aclose(self) -> None:
        self.leave()
        await self._usual[4]()

    def _end(self, offsets: list[int], end: str, delay_ms: int = 0, detail: str = "") -> None:
        """Note the ends of tries."""
        for offset in offsets:
            one = self._ending(offset)
            if one is None:
                assert end == RELEASE, "only a pull that was cancelled has no tries"
                continue
            now_s = self._history.now_s()
            one.ended_s, one.ended_number = now_s, next(self._world.network.numbers)
            one.end, one.delay_ms, one.detail = end, 0 if end == REJECT else delay_ms, detail
            in_time_s = one.arrival.sent_s + (self._deliveries.timeout_ms + ACK_MARGIN_MS) / 1000
            calm = self._world.network.weather == Weather()
            one.sure = calm and now_s + self._history.sending_s < in_time_s

    def _ending(self, offset: int) -> Try | None:
        """Return the open try of a message whose post has ended now."""
        now_s = self._history.now_s()
        tries = self._deliveries.tries
        found = [one for one in tries if one.ended_s is None and one.arrival.offset == offset]
        # A message may come again on a new connection while its first post is in progress.
        heard = [one for one in found if one.posts and one.posts[0].heard_s == now_s]
        return next(iter(heard or found), None)


class PushProcess:
    """One process, from its start to its end."""

    def __init__(
        self, world: World, subscription: str, endpoint: Endpoint, pusher: Pusher, stray: list[Post]
    ) -> None:
        self._world = world
        self._history = world.history
        self._subscription = subscription
        self._pusher = pusher
        self._stray = stray
        self._path = Path(endpoint, self._note)
        self._streams: list[ClientStream] = []
        self._stop = trio.Event()
        self._scope = trio.CancelScope()
        self._process = Process()
        self._rows: list[dict[str, Any]] = []  # of the last listing

    async def run(self) -> None:
        """Push until ``stop`` or ``kill``. Raises the error of the product."""
        PROCESS.set(self._process)
        config = PushConfig(
            [network("10.0.0.0/8")], _AUTHORITIES, _resolve, self._world.clock, self._path
        )
        with self._scope:
            await run_push(config, self._connect, self._stop.wait, lambda count: None)

    def stop(self) -> None:
        """End after the posts in progress, as on SIGTERM."""
        self._stop.set()

    def kill(self, *, noticed: bool) -> None:
        """End at once, as on SIGKILL."""
        self._pusher.killed_s = self._history.now_s()
        for cable in [stream.cable for stream in self._streams] + self._path.cables:
            cable.cut(noticed=noticed)
        self._process.resume()
        self._scope.cancel()

    def pause(self) -> None:
        """Take no step until ``resume``, as on SIGSTOP."""
        self._process.pause()

    def resume(self) -> None:
        if self._process.paused:
            self._pusher.resumed_s.append(self._history.now_s())
            self._process.resume()

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[escapement.Broker]:
        async with self._world.connect(streams=self._streams) as broker:
            ask, consumer = broker.admin, broker.consumer

            async def admin(verb: str, **arguments: Any) -> Any:
                called_s = self._history.now_s()
                self._rows = await ask(verb, **arguments)
                names = [row["subscription"] for row in self._rows]
                listed = self._subscription in names
                self._pusher.listings.append(Listing(called_s, self._history.now_s(), listed))
                return self._rows

            def consume(
                *names: str, **options: Any
            ) -> AbstractAsyncContextManager[escapement.Inbox]:
                return self._recorded(consumer(*names, **options))

            broker.admin = admin  # type: ignore[method-assign]
            broker.consumer = consume  # type: ignore[assignment,method-assign]
            yield broker

    @asynccontextmanager
    async def _recorded(
        self, consumption: AbstractAsyncContextManager[escapement.Inbox]
    ) -> AsyncIterator[escapement.Inbox]:
        row = next(row for row in self._rows if row["subscription"] == self._subscription)
        deliveries = Deliveries(row["timeout_ms"], row["concurrency"])
        self._pusher.deliveries.append(deliveries)
        async with consumption as inbox:
            PushedInbox(self._world, self._subscription, inbox, deliveries)
            yield inbox

    def _note(self, post: Post) -> None:
        """Add a post to its try. It may arrive when the process has given it up."""
        offset = int(post.headers["webhook-id"].rpartition("_")[2])
        attempt = int(post.headers["escapement-attempt"])
        tries = [
            one
            for deliveries in self._pusher.deliveries
            for one in deliveries.tries
            if one.arrival.offset == offset
        ]
        if tries:
            best = max(tries, key=lambda one: (one.attempt == attempt, not one.posts, one.taken_s))
            best.posts.append(post)
        else:
            self._stray.append(post)


async def _resolve(host: str, port: int) -> list[str]:
    return [_ADDRESS]
