"""`escapement demo`: delayed delivery in a quarter of a minute, with a crash in the middle.

The demo runs a real broker process on SQLite in a temporary directory, with real connections
and three consumers of one shared subscription. It schedules messages, kills the broker with
SIGKILL while messages are pending and more are being sent, and starts it again. The ledger checks
the promises: a message with a receipt arrives, a message whose acknowledgement is confirmed never
arrives again, and no message is early.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import click
import numpy as np
import trio

from escapement.bench.host import Host
from escapement.broker.crash import one_error
from escapement.cli.demo.ledger import Arrival, Ledger, Outage
from escapement.cli.demo.screen import Screen
from escapement.client.connect import connect
from escapement.client.consuming.batch import Batch
from escapement.client.producing.producer import Producer
from escapement.client.settings import Settings
from escapement.errors import Disconnected
from escapement.interruptible import until_interrupted
from escapement.message import Int64s

_NAMESPACE: Final = "demo/clock"
_TOPIC: Final = f"{_NAMESPACE}/reminders"
_SUBSCRIPTION: Final = "people"
_CONSUMERS: Final = 3
# The time partition granularity: short, so that the demo uses several partitions of the index.
_GRANULARITY_MS: Final = 2000

# When the broker is killed, as a share of the time over which the first messages are due.
_KILL_AT: Final = 0.4
# How long the broker stays down: long enough to be noticed, and for data on the wire to arrive.
_DOWN_S: Final = 0.7
# The trickle: a few messages at a time, sent until this share of the time over which the first
# messages are due. It continues while the broker is down.
_TRICKLE_UNTIL: Final = 0.7
_TRICKLE_EVERY_S: Final = 0.1
_TRICKLE_MESSAGES: Final = 8
_TRICKLE_DELAY_MS: Final = 2500
# The shortest delay of the first messages.
_SOONEST_MS: Final = 500
# A message that has not arrived this long after the last due time counts as lost.
_TIMEOUT_S: Final = 15.0
# How long the demo runs on when all messages have arrived, so that a duplicate could arrive.
_LINGER_S: Final = 0.5
# Clients reconnect quickly, so that the outage is short.
_SETTINGS: Final = Settings(reconnect_first_s=0.05, reconnect_longest_s=0.1)
# Consumers reconnect at most this long after the broker is back.
_RECONNECT_MS: Final = 300


@click.command(
    epilog="""\b
    Examples:
      escapement demo
      escapement demo --messages 20000 --seconds 30
      escapement demo --svg demo.svg

    Exits with 1 if a message was lost, early, or delivered again after its acknowledgement.
    """
)
@click.option(
    "--messages",
    type=click.IntRange(1, 200_000),
    default=2000,
    show_default=True,
    help="Messages to schedule at first; more follow while the demo runs.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(2, 600),
    default=17.0,
    show_default=True,
    help="Time over which the messages are due, in seconds.",
)
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Also write the last picture and the figures to this file, as an SVG.",
)
def demo(messages: int, seconds: float, svg: Path | None) -> None:
    """Schedule messages, kill the broker, restart it, and see each message arrive on time."""
    with tempfile.TemporaryDirectory(prefix="escapement-demo-") as directory:
        host = Host(Path(directory), None)
        try:
            run = Demo(host, messages, seconds, svg=svg)
            with one_error():
                kept = trio.run(until_interrupted, run.run, signal.SIGINT, signal.SIGTERM)
        finally:
            host.kill()
    if not kept:
        sys.exit(1)


class Demo:
    """One run of the demo.

    Args:
      host: the broker, which the demo starts.
      messages: how many messages to schedule at first.
      seconds: the time over which these messages are due.
      timeout_s: how long after this time messages that have not arrived count as lost.
      svg: the file to which the last picture is written; None for no file.
    """

    def __init__(
        self,
        host: Host,
        messages: int,
        seconds: float,
        timeout_s: float = _TIMEOUT_S,
        svg: Path | None = None,
    ) -> None:
        self._host = host
        self._messages = messages
        self._seconds = seconds
        self._timeout_s = timeout_s
        self._svg = svg
        self._ledger = Ledger()
        self._screen = Screen(self._ledger)
        self._rng = np.random.default_rng()
        self._numbers = 0
        self._began_s = time.monotonic()
        self._outage: Outage | None = None
        self._all_sent = False

    async def run(self) -> bool:
        """Run the demo and return whether every promise was kept."""
        with self._screen:
            start_s = await self._host.start()
            process = self._host.process_id
            self._step(f"a broker is ready, as process {process}, {start_s:.1f} s after its start")
            await self._prepare()
            async with trio.open_nursery() as nursery:
                for _ in range(_CONSUMERS):
                    nursery.start_soon(self._consume)
                await self._schedule()
                nursery.start_soon(self._trickle)
                await trio.sleep(self._seconds * _KILL_AT)
                await self._crash()
                await self._wait_for_the_rest()
                nursery.cancel_scope.cancel()
            self._step("finished")
        self._screen.verdict(self._outage)
        if self._svg is not None:
            self._screen.save_svg(self._svg, self._outage)
        await self._host.stop()
        return self._ledger.kept

    def _step(self, what: str, style: str = "") -> None:
        self._screen.step(time.monotonic() - self._began_s, what, style)

    # -- the steps, in order ---------------------------------------------------------

    async def _prepare(self) -> None:
        async with connect(self._host.url) as broker:
            await broker.admin("namespaces.create", namespace=_NAMESPACE)
            await broker.admin(
                "namespaces.enable_delayed_message",
                namespace=_NAMESPACE,
                granularity_ms=_GRANULARITY_MS,
            )
            await broker.admin("subscriptions.create", topic=_TOPIC, subscription=_SUBSCRIPTION)

    async def _schedule(self) -> None:
        """Schedule the first messages, half of them by delay and half by time."""
        longest_ms = int(self._seconds * 1000)
        delays_ms = self._rng.integers(_SOONEST_MS, longest_ms, self._messages)
        began_ms = _now_ms()
        self._screen.span(began_ms, began_ms + longest_ms + 1000)
        async with connect(self._host.url) as broker:
            async with await broker.producer(_TOPIC) as producer:
                await self._send(producer, delays_ms[::2])
                await self._send(producer, delays_ms[1::2], by_time=True)
        self._step(f"{self._messages:,} messages are stored, due over {self._seconds:g} s")

    async def _trickle(self) -> None:
        """Send the trickle, also while the broker is down."""
        rounds = int(self._seconds * _TRICKLE_UNTIL / _TRICKLE_EVERY_S)
        async with connect(self._host.url, settings=_SETTINGS) as broker:
            async with await broker.producer(_TOPIC) as producer:
                for _ in range(rounds):
                    await self._send(
                        producer, self._rng.integers(0, _TRICKLE_DELAY_MS, _TRICKLE_MESSAGES)
                    )
                    await trio.sleep(_TRICKLE_EVERY_S)
        self._all_sent = True

    async def _crash(self) -> None:
        killed_ms = _now_ms()
        self._host.kill()
        self._step(f"killed it with SIGKILL: {self._ledger.pending:,} are pending", "bold red")
        await trio.sleep(_DOWN_S)
        self._ledger.killed()
        start_s = await self._host.start()
        self._outage = Outage(killed_ms, _now_ms() + _RECONNECT_MS)
        self._step(
            f"started it again, as process {self._host.process_id}: "
            f"ready {start_s:.1f} s after its start",
            "bold green",
        )

    async def _wait_for_the_rest(self) -> None:
        with trio.move_on_after(self._seconds + self._timeout_s):
            while not (self._all_sent and self._ledger.settled):  # noqa: ASYNC110 - for people
                await trio.sleep(0.05)
        await trio.sleep(_LINGER_S)

    # -- sending and receiving ---------------------------------------------------------

    async def _send(self, producer: Producer, delays_ms: Int64s, *, by_time: bool = False) -> None:
        first = self._numbers
        numbers = range(first, first + len(delays_ms))
        self._numbers = numbers.stop
        times_ms = delays_ms + _now_ms()
        for number, at_ms in zip(numbers, times_ms.tolist(), strict=True):
            self._ledger.asked(number, at_ms)
        self._screen.due(times_ms.tolist())
        await producer.send_many(
            [b"reminder %d" % number for number in numbers],
            delay=None if by_time else delays_ms,
            at=times_ms if by_time else None,
        )
        self._ledger.confirmed(numbers)

    async def _consume(self) -> None:
        async with (
            connect(self._host.url, settings=_SETTINGS) as broker,
            broker.consumer(_TOPIC, _SUBSCRIPTION) as inbox,
            trio.open_nursery() as acks,
        ):
            async for batch in inbox.batches():
                at_ms = _now_ms()
                numbers = [int(value.rpartition(b" ")[2]) for value in batch.values()]
                rows = zip(numbers, batch.offsets.tolist(), batch.due_ms.tolist(), strict=True)
                for number, offset, due_ms in rows:
                    self._ledger.arrived(Arrival(number, offset, due_ms, at_ms))
                acks.start_soon(self._acknowledge, batch, numbers)

    async def _acknowledge(self, batch: Batch, numbers: list[int]) -> None:
        # Without an answer, the acknowledgement is not confirmed: the message may arrive again.
        with suppress(Disconnected):
            await batch.ack(durable=True)
            self._ledger.acknowledged(numbers)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
