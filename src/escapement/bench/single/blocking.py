"""The blocking client, `escapement.sync`: a thread that submits, and threads that take messages.

These functions run in a thread, because they block. They measure the same load as their async
counterparts in ``publish`` and ``workers``.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from escapement.bench.host import Host
from escapement.bench.outcome import Run
from escapement.bench.single.consumers import Crowd
from escapement.bench.stage import CpuMeter
from escapement.bench.take import TIMEOUT_S
from escapement.bench.tally import Tally
from escapement.client.producing.receipt import Receipt
from escapement.sync.connecting import connect
from escapement.sync.inbox import Inbox
from escapement.sync.producer import Producer

# A thread that waits for a message looks this often whether all messages have arrived.
_LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Submitting:
    """A load of single messages that one thread submits, to its topics in turn."""

    host: Host
    topics: list[str]
    payloads: list[bytes]  # sent in turn
    messages: int
    in_flight: int  # most messages submitted and without a receipt
    window_ms: int  # delays are spread evenly up to this; 0 for no delays

    def run(self) -> Run:
        """Publish the load and measure it, after a warm-up of part of the load."""
        with connect(self.host.url) as broker, ExitStack() as stack:
            producers = [
                stack.enter_context(broker.producer(topic, max_in_flight_messages=self.in_flight))
                for topic in self.topics
            ]
            self._send(producers, min(self.messages, max(self.in_flight, len(producers))))
            cpu = CpuMeter(self.host)
            began_s = time.perf_counter()
            self._send(producers, self.messages)
            return Run(self.messages, time.perf_counter() - began_s, more=cpu.read())

    def _send(self, producers: list[Producer], messages: int) -> None:
        waiting: deque[Future[Receipt]] = deque()
        for number in range(messages):
            if len(waiting) == self.in_flight:
                waiting.popleft().result()
            delay_ms = number % self.in_flight * self.window_ms // self.in_flight
            waiting.append(
                producers[number % len(producers)].submit(
                    self.payloads[number % len(self.payloads)],
                    delay=(delay_ms, "ms") if self.window_ms else None,
                )
            )
        for one in waiting:
            one.result()


@dataclass(slots=True)
class Work:
    """The load of ``workers``, consumed by threads."""

    host: Host
    topic: str
    subscription: str
    messages: int
    crowd: Crowd
    durable: bool
    tally: Tally
    _lock: threading.Lock = field(default_factory=threading.Lock)  # guards tally and _acked
    _acked: int = 0
    _done: threading.Event = field(default_factory=threading.Event)

    def run(self) -> Run:
        """Resume the subscription, and measure until all acknowledgements are durable."""
        crowd = self.crowd
        with ExitStack() as stack:
            brokers = [
                stack.enter_context(connect(self.host.url)) for _ in range(crowd.connections)
            ]
            inboxes = [
                stack.enter_context(
                    brokers[number % crowd.connections].consumer(
                        self.topic, self.subscription, permits=crowd.permits
                    )
                )
                for number in range(crowd.consumers)
            ]
            threads = stack.enter_context(ThreadPoolExecutor(crowd.consumers))
            working = [threads.submit(self._take, inbox) for inbox in inboxes]
            cpu = CpuMeter(self.host)
            began_s = time.perf_counter()
            brokers[0].resume(self.topic, self.subscription)
            self._finish()
            for inbox in inboxes:
                inbox.flush_acks()
            run = Run.counted(self.tally, time.perf_counter() - began_s, cpu.read())
            for one in working:
                one.result()
        return run

    def _take(self, inbox: Inbox) -> None:
        while not self._done.is_set():
            message = inbox.receive(_LOOK_S)
            if message is None:
                continue
            with self._lock:
                self.tally.add_one(message.offset, message.due_ms, message.payload)
            message.ack(durable=self.durable)
            with self._lock:
                self._acked += 1
                if self._acked >= self.messages and not self.tally.lost():
                    self._done.set()

    def _finish(self) -> None:
        """Wait for the last acknowledgement. Give up if there is none for ``TIMEOUT_S``."""
        before = -1
        while self._acked > before and not self._done.is_set():
            before = self._acked
            self._done.wait(TIMEOUT_S)
        self._done.set()
