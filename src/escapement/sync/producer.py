"""The blocking face of ``escapement.Producer``."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any

from escapement.client import producer as producers
from escapement.client.builder import MessageBuilder
from escapement.client.groups import FollowUp, Group
from escapement.client.receipt import Receipt, Receipts
from escapement.message import MessageBatch, Times
from escapement.sync.loop import Loop


class Producer:
    """Made by ``Broker.producer``; for any number of threads at once."""

    def __init__(self, loop: Loop, producer: producers.Producer) -> None:
        self._loop = loop
        self._producer = producer
        self.topic = producer.topic
        self.name = producer.name

    @property
    def next_sequence(self) -> int:
        """The number of the next message."""
        return self._producer.next_sequence

    def send(self, value: Any, **options: Any) -> Receipt:
        """Send one message and wait until it is durable; see ``escapement.Producer.send``."""
        return self._loop.call(partial(self._producer.send, value, **options))

    def submit(self, value: Any, **options: Any) -> Future[Receipt]:
        """Send one message; the future's ``result()`` is its receipt."""
        return self._loop.start_task_soon(partial(self._producer.send, value, **options))

    def send_many(self, values: Sequence[Any], **options: Any) -> Receipts:
        """Send messages as one batch; see ``escapement.Producer.send_many``."""
        return self._loop.call(partial(self._producer.send_many, values, **options))

    def send_batch(
        self,
        batch: MessageBatch,
        times: Times | None = None,
        *,
        dedup: Sequence[str | None] | None = None,
        sequence: int | None = None,
    ) -> Receipts:
        """Send columns as they are; see ``escapement.Producer.send_batch``."""
        return self._loop.call(
            partial(self._producer.send_batch, batch, times, dedup=dedup, sequence=sequence)
        )

    def message(self, value: Any) -> MessageBuilder[Receipt]:
        """A message to be described step by step, then sent."""
        return MessageBuilder(self.send, value)

    def close_group(self, group: str, subscription: str, then: FollowUp) -> Group:
        """Close a group of the topic, behind what was sent so far; see ``Groups.close``."""
        return self._loop.call(self._producer.close_group, group, subscription, then)

    def flush(self) -> None:
        """Wait until everything sent so far is settled, one way or the other."""
        self._loop.call(self._producer.flush)

    def close(self) -> None:
        """Wait for what is in flight, then give the producer back."""
        self._loop.call(self._producer.aclose)

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call(self._producer.__aexit__, kind, error, trace)
