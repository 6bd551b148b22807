"""The class ``Producer`` of the blocking client, a facade of ``escapement.Producer``."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from copy import copy
from functools import partial
from types import TracebackType
from typing import Any

from escapement.client.constructor import internal
from escapement.client.producing import producer as producers
from escapement.client.producing.builder import MessageBuilder
from escapement.client.producing.groups import FollowUp, Group
from escapement.client.producing.publish_request import NewMessage, PublishRequest
from escapement.client.producing.receipt import Receipt, Receipts
from escapement.errors import EscapementError
from escapement.message import MessageBatch, Times
from escapement.sync.loop import Loop


class Producer:
    """A producer of a topic, created by ``Broker.producer``.

    Any number of threads may use it at once. As a context manager it closes itself at the
    end of the ``with`` block.

    Attributes:
      topic: the full name of the topic.
      name: the name of the producer, generated if none was given.
    """

    @internal
    def __init__(self, loop: Loop, producer: producers.Producer) -> None:
        self._loop = loop
        self._producer = producer
        self.topic = producer.topic
        self.name = producer.name
        # The publish request that got the last message of ``submit``, and the futures of its
        # messages with their rows. Only the loop's thread uses them.
        self._request: PublishRequest | None = None
        self._futures: list[tuple[int, Future[Receipt]]] = []

    @property
    def next_sequence(self) -> int:
        """The number (*sequence*) that the next message gets.

        A new producer continues after the last message that the broker has stored under its name.
        """
        return self._producer.next_sequence

    @property
    def waits_for(self) -> EscapementError | None:
        """The error because of which the oldest message without a receipt is delayed, or None.

        The client continues to send the message.
        """
        return self._producer.waits_for

    def send(self, value: Any, **options: Any) -> Receipt:
        """Send one message and wait until it is durable; see ``escapement.Producer.send``."""
        self._loop.check_may_wait()
        return self.submit(value, **options).result()

    def submit(self, value: Any, *, sequence: int | None = None, **options: Any) -> Future[Receipt]:
        """Send one message without waiting. ``result()`` of the future waits for the receipt.

        The call waits only while too many messages are unanswered. ``options`` are those of
        ``escapement.Producer.send``. The message is not sent if ``cancel()`` of the future returns
        True.

        Raises:
          InvalidRequest: if an argument is not valid. Nothing is sent. ``result()`` raises the
            other errors of ``escapement.Producer.send``.
        """
        message = self._producer._prepare(value, **options)
        if self._loop.crowded or self._producer._full:
            self._loop.call(self._producer._have_room_for, message)
        future: Future[Receipt] = Future()
        self._loop.post(self._put, message, sequence, future, size_bytes=message.size_bytes)
        return future

    def _put(self, message: NewMessage, sequence: int | None, future: Future[Receipt]) -> None:
        """Put a message into the outbox of the async producer. Runs in the loop's thread."""
        if not future.set_running_or_notify_cancel():
            return
        try:
            request, row = self._producer._put(message, sequence)
        except Exception as error:  # also a TypeError of an argument; others must go on
            future.set_exception(error)
            return
        if request is self._request:
            self._futures.append((row, future))
        else:
            self._request, self._futures = request, [(row, future)]
            request.then(partial(self._settled, request, self._futures))

    def _settled(self, request: PublishRequest, futures: list[tuple[int, Future[Receipt]]]) -> None:
        """Pass the receipts of a publish request, or its error, to the futures of its messages."""
        if request.error is not None:
            for _, future in futures:
                future.set_exception(copy(request.error))
            return
        receipts = Receipts._of(self.topic, [request])
        for row, future in futures:
            future.set_result(receipts[row])

    def send_many(self, values: Sequence[Any], **options: Any) -> Receipts:
        """Send messages as one batch and wait until all are durable.

        See ``escapement.Producer.send_many``.
        """
        return self._loop.call(self._producer.send_many, values, **options)

    def send_batch(
        self, batch: MessageBatch, times: Times | None = None, **options: Any
    ) -> Receipts:
        """Send a batch of columns and wait until all messages are durable.

        See ``escapement.Producer.send_batch``.
        """
        return self._loop.call(self._producer.send_batch, batch, times, **options)

    def message(self, value: Any) -> MessageBuilder[Receipt]:
        """Return a builder with which to describe a message step by step and then send it."""
        return MessageBuilder(self.send, value)

    def close_group(self, group: str, subscription: str, then: FollowUp) -> Group:
        """Wait for all messages sent before, then close a group of this producer's topic.

        See ``escapement.Groups.close``.
        """
        return self._loop.call(self._producer.close_group, group, subscription, then)

    def flush(self) -> None:
        """Wait until all messages that were sent before this call are durable or have failed."""
        self._loop.call(self._producer.flush)

    def close(self) -> None:
        """Wait until all messages are durable or have failed, then close this producer."""
        self._loop.call(self._producer.aclose)

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._loop.is_here:  # otherwise it belongs to the process that has forked this one
            self._loop.call(self._producer.__aexit__, kind, error, trace)
