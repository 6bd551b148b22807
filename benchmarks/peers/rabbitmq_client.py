"""The load of a comparison on RabbitMQ: `rabbitmq_client.py WORK PORT MESSAGES PARALLEL TYPE`.

See ``run.py`` for the loads. It needs pika. TYPE is the type of the queue, classic or quorum. The
queue is durable, and the messages are persistent. Publishers share a connection, and PARALLEL
messages have no confirm at any time. Each worker has a connection and a prefetch of 1, and sends an
acknowledgement for each message. At the end it makes a request on the same channel: its answer
means that the broker has handled the acknowledgements.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pika
from pika.adapters.select_connection import IOLoop, SelectConnection

QUEUE = f"bench-{os.getpid()}"
PAYLOAD = b"." * 100
PERSISTENT = pika.BasicProperties(delivery_mode=2)
# The number of unconfirmed messages while the queue is filled before the clock starts.
FILLING = 500


class Loop:
    """An event loop with connections."""

    def __init__(self, port: int) -> None:
        self._loop = IOLoop()
        self._parameters = pika.ConnectionParameters("127.0.0.1", port)

    def wait(self, start: Callable[[Callable[[Any], None]], object]) -> Any:
        """Call ``start`` with a callback, run the loop until it is called, return its argument."""
        found: list[Any] = []

        def answered(value: Any) -> None:
            found.append(value)
            self._loop.stop()

        start(answered)
        self._loop.start()
        return found[0]

    def channel(self) -> Any:
        """Open a connection with a channel."""
        connection = self.wait(
            lambda opened: SelectConnection(self._parameters, opened, custom_ioloop=self._loop)
        )
        return self.wait(lambda opened: connection.channel(on_open_callback=opened))


class Publisher:
    """A publisher that keeps a number of messages unconfirmed."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._channel = loop.channel()
        self._left = self._confirmed = self._goal = 0
        self._done: Callable[[Any], None] = print
        self._next_tag = 1  # the delivery tag of the oldest message without a confirm
        loop.wait(lambda done: self._channel.confirm_delivery(self._on_confirm, done))

    def declare(self, kind: str) -> None:
        self._loop.wait(
            lambda done: self._channel.queue_declare(
                QUEUE, durable=True, arguments={"x-queue-type": kind}, callback=done
            )
        )

    def publish(self, messages: int, unconfirmed: int) -> None:
        """Publish, and wait until all messages are confirmed."""

        def start(done: Callable[[Any], None]) -> None:
            self._done = done
            for _ in range(min(unconfirmed, messages)):
                self._send()

        self._left = messages
        self._goal = self._confirmed + messages
        self._loop.wait(start)

    def _send(self) -> None:
        if self._left > 0:
            self._left -= 1
            self._channel.basic_publish("", QUEUE, PAYLOAD, PERSISTENT)

    def _on_confirm(self, frame: Any) -> None:
        assert isinstance(frame.method, pika.spec.Basic.Ack), frame
        # A confirm with ``multiple`` covers all earlier messages.
        tag = frame.method.delivery_tag
        count = tag - self._confirmed if frame.method.multiple else 1
        self._confirmed += count
        for _ in range(count):
            self._send()
        if self._confirmed == self._goal:
            self._done(None)


def work(loop: Loop, messages: int, workers: int) -> dict[str, float]:
    """Consume all messages."""
    channels = [loop.channel() for _ in range(workers)]
    for channel in channels:
        loop.wait(lambda done, channel=channel: channel.basic_qos(prefetch_count=1, callback=done))
    left, answers = messages, 0

    def start(done: Callable[[Any], None]) -> None:
        def settled(_: Any) -> None:
            nonlocal answers
            answers += 1
            if answers == workers:
                done(None)

        def received(channel: Any, method: Any, _: Any, __: bytes) -> None:
            nonlocal left
            channel.basic_ack(method.delivery_tag)
            left -= 1
            if left == 0:
                for one in channels:
                    one.basic_qos(prefetch_count=1, callback=settled)

        for channel in channels:
            channel.basic_consume(QUEUE, received)

    return timed(partial(loop.wait, start))


def timed(act: Callable[[], object]) -> dict[str, float]:
    print("begin", flush=True)
    began_s, cpu_s = time.perf_counter(), time.process_time()
    act()
    return {
        "seconds": time.perf_counter() - began_s,
        "client_cpu_s": time.process_time() - cpu_s,
    }


def main() -> None:
    name, kind = sys.argv[1], sys.argv[5]
    port, messages, parallel = map(int, sys.argv[2:5])
    loop = Loop(port)
    publisher = Publisher(loop)
    publisher.declare(kind)
    if name == "workers":
        publisher.publish(messages, FILLING)
        found = work(loop, messages, parallel)
    else:
        found = timed(partial(publisher.publish, messages, parallel))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
