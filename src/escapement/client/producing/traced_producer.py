"""A producer that traces: each call that sends has a span, whose context the messages carry.

The span of a single message ends with its receipt, or when it has failed, even if the application
does not wait for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from escapement.client import content
from escapement.client.delivery_times import Delay
from escapement.client.producing.producer import Producer
from escapement.client.producing.publish_request import NewMessage, PublishRequest
from escapement.client.producing.receipt import Receipts
from escapement.client.tracing.trace_context import TRACEPARENT, carriers, with_carrier
from escapement.message import MessageBatch, Times

if TYPE_CHECKING:
    from escapement.client.tracing.tracer import Operation


class TracedMessage(NewMessage):
    """A message to publish, with its span."""

    operation: Operation


class TracedProducer(Producer):
    """A producer of a client that traces."""

    # The publish request that got the last single message, and its messages: their rows and spans.
    _request_of_last: PublishRequest | None = None
    _operations: list[tuple[int, Operation]]

    def _prepare(
        self,
        value: Any,
        delay: Delay | None = None,
        at: Any = None,
        key: str | None = None,
        properties: Mapping[str, Any] | None = None,
        *rest: Any,
        **options: Any,
    ) -> TracedMessage:
        own = isinstance(properties, Mapping) and TRACEPARENT in properties
        operation = self._tracer.send(self.topic, given=[properties] if own and properties else [])
        try:
            carried = properties if own else content.as_map(properties) | operation.carrier
            message = super()._prepare(value, delay, at, key, carried, *rest, **options)
            if message.size_bytes > self._outbox.bounds.message_bytes:
                # It may fit without the context.
                message = message._replace(properties=content.properties(properties))
        except BaseException as error:
            operation.end(error)
            raise
        traced = TracedMessage(*message)
        traced.operation = operation
        return traced

    async def _have_room_for(self, message: NewMessage) -> None:
        assert isinstance(message, TracedMessage)
        try:
            await super()._have_room_for(message)
        except BaseException as error:
            message.operation.end(error)
            raise

    def _put(self, message: NewMessage, sequence: int | None) -> tuple[PublishRequest, int]:
        assert isinstance(message, TracedMessage)
        try:
            request, row = super()._put(message, sequence)
        except BaseException as error:
            message.operation.end(error)
            raise
        if request is self._request_of_last:
            self._operations.append((row, message.operation))
        else:
            self._request_of_last, self._operations = request, [(row, message.operation)]
            request.then(partial(self._settled, request, self._operations))
        return request, row

    def _settled(self, request: PublishRequest, operations: list[tuple[int, Operation]]) -> None:
        """End the spans of the single messages of a publish request."""
        if request.error is not None:
            for _, operation in operations:
                operation.end(request.error)
            return
        receipts = Receipts._of(self.topic, [request])
        for row, operation in operations:
            operation.end(message_id=receipts[row].id)

    async def send_batch(
        self,
        batch: MessageBatch,
        times: Times | None = None,
        *,
        dedup: Sequence[str | None] | None = None,
        sequence: int | None = None,
        spread: Delay | None = None,
    ) -> Receipts:
        send = partial(
            super().send_batch, times=times, dedup=dedup, sequence=sequence, spread=spread
        )
        if not isinstance(batch, MessageBatch) or not len(batch):
            return await send(batch)
        given, created = carriers(batch.properties), []
        most_bytes = self._outbox.bounds.message_bytes
        if self._tracer.each_message:
            pieces = []
            for piece in batch.parts([1] * len(batch)):
                with self._tracer.create(self.topic) as operation:
                    pieces.append(with_carrier(piece, operation.carrier, most_bytes))
                created.append(operation)
            batch = MessageBatch.concat(pieces)
        with self._tracer.send(self.topic, len(batch), given, created) as operation:
            if not created:
                batch = with_carrier(batch, operation.carrier, most_bytes)
            return await send(batch)
