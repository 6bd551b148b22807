"""The deliveries to one push target: an ordinary consumer that posts each message.

It pulls no more messages than it may post now, so none waits in this process. A message is
acknowledged, given back or rejected when its post has ended. It is posted again if this process
dies before, or if the connection to the broker is lost.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from math import inf
from typing import Final

import trio

from escapement.client.broker import Broker
from escapement.client.consuming.batch import Message
from escapement.client.consuming.inbox import Inbox
from escapement.clock import Clock
from escapement.errors import EscapementError
from escapement.event_log import EventLog
from escapement.push.breaker import Breaker
from escapement.push.outcome import Outcome, Verdict
from escapement.push.poster import Poster
from escapement.push.signing import post_headers
from escapement.push.target import Target
from escapement.push.window import Window

_log = EventLog(__name__)

# How long the connections to an endpoint may take to close.
_CLOSE_S: Final = 1.0


class Delivery:
    """The deliveries to one target, until they are stopped."""

    def __init__(self, target: Target, poster: Poster, clock: Clock) -> None:
        self.target = target
        self._poster = poster
        self._clock = clock
        self._window = Window(target.concurrency)
        self._breaker = Breaker()
        self._rejecting = False  # whether the last answer was a rejection
        self._in_progress = 0
        self._ended = trio.Event()  # replaced whenever a post has ended
        self._pulling = trio.CancelScope()

    def stop(self) -> None:
        """Pull no more messages. ``run`` then returns when the posts in progress have ended."""
        self._pulling.cancel()

    async def run(self, broker: Broker) -> None:
        """Post messages until ``stop``.

        Raises:
          EscapementError: if the broker refuses, or closes the consumer.
        """
        target = self.target
        consumer = broker.consumer(
            target.topic,
            target.subscription,
            permits=0,
            ack_wait=timedelta(milliseconds=target.ack_wait_ms),
            name="push",
        )
        failure: EscapementError | None = None
        try:
            async with consumer as inbox:
                async with trio.open_nursery() as posts:
                    with self._pulling:
                        try:
                            await self._pull(inbox, posts)
                        except EscapementError as error:
                            failure = error  # raised below, so that no exception group wraps it
            if failure is not None:
                raise failure
        finally:
            with trio.move_on_after(_CLOSE_S, shield=True):
                await self._poster.aclose()

    async def _pull(self, inbox: Inbox, posts: trio.Nursery) -> None:
        """Pull messages and begin to post them, forever."""
        while True:
            for batch in await inbox.pull(await self._until_room()):
                for message in batch:
                    if self._room() > 0:
                        self._in_progress += 1
                        posts.start_soon(self._deliver, message)
                    else:  # posts have failed during the pull
                        await message.release()

    def _room(self) -> int:
        """Return how many more posts may begin now."""
        most = self._breaker.most(self._now_ms())
        size = self._window.size
        return (size if most is None else min(size, most)) - self._in_progress

    async def _until_room(self) -> int:
        """Wait until a post may begin, and return how many may."""
        while (room := self._room()) <= 0:
            ended, wake_ms = self._ended, self._breaker.wake_ms(self._now_ms())
            with trio.move_on_at(inf if wake_ms is None else wake_ms / 1000):
                await ended.wait()
        return room

    async def _deliver(self, message: Message) -> None:
        """Post a message, and do with it what the outcome says."""
        try:
            outcome = await self._post(message)
            self._learn(outcome)
            # If the broker has closed the consumer, another one gets the message.
            with suppress(EscapementError):
                await _settle(message, outcome)
        finally:
            self._in_progress -= 1
            self._ended.set()
            self._ended = trio.Event()

    async def _post(self, message: Message) -> Outcome:
        body = message.payload
        headers = post_headers(
            f"{self.target.id_prefix}{message.offset}",
            self._clock.now_ms() // 1000,
            body,
            self.target.secrets,
            message.attempt,
            message.due_ms,
            message.properties,
        )
        return await self._poster.post(body, headers)

    def _learn(self, outcome: Outcome) -> None:
        """Change window and breaker as an outcome suggests, and log what people should know."""
        now_ms, was_closed = self._now_ms(), self._breaker.is_closed
        if outcome.verdict is Verdict.RETRY:
            self._window.failed()
            self._breaker.failed(now_ms)
            if outcome.wait_ms is not None:
                self._breaker.hold(now_ms + outcome.wait_ms)
            if was_closed and not self._breaker.is_closed:
                _log.warning(
                    "push.failing",
                    "%s: posts to %s fail, and pause: %s",
                    *self._said(outcome),
                    **self._names,
                )
            return
        self._window.succeeded()
        self._breaker.succeeded()
        if not was_closed:
            _log.info(
                "push.recovered",
                "%s: %s answers again: %s",
                *self._said(outcome),
                **self._names,
            )
        rejects = outcome.verdict is Verdict.REJECT
        if rejects and not self._rejecting:
            _log.warning(
                "push.rejecting",
                "%s: %s rejects messages, which become dead letters: %s",
                *self._said(outcome),
                **self._names,
            )
        self._rejecting = rejects

    @property
    def _names(self) -> dict[str, str]:
        return {"topic": self.target.topic, "subscription": self.target.subscription}

    def _said(self, outcome: Outcome) -> tuple[str, str, str]:
        target = self.target
        return f"{target.topic} {target.subscription}", target.endpoint.host, outcome.reason

    def _now_ms(self) -> int:
        """Return the time of window and breaker, which is never set back."""
        # Rounded, because a wait until a millisecond may end when the float is just below it.
        return round(trio.current_time() * 1000)


async def _settle(message: Message, outcome: Outcome) -> None:
    if outcome.verdict is Verdict.ACKNOWLEDGE:
        await message.ack()
    elif outcome.verdict is Verdict.REJECT:
        await message.reject(outcome.reason)
    elif outcome.wait_ms is None:
        await message.nack()
    else:
        await message.nack((outcome.wait_ms, "ms"))
