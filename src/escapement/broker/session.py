"""One connection: bytes in, requests to the broker; answers and messages out.

A session owns what its peer opened (producers, consumers) and gives it all up when
the connection ends, however it ends. Requests that only touch memory are carried out
at once, in the order in which they came; those that need the database run as tasks of
the session, of which there are few.

Outbound frames wait in one list, written by one task. Its bounds: consumers get
nothing more past ``outbound_bytes``, and a peer that reads nothing while answers pile
up is cut off at ``outbound_hard_bytes``. Inbound: reading stops while
``unconfirmed_bytes`` of publishes have no receipt.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final, cast

import numpy as np
import numpy.typing as npt
import trio

from escapement.broker.admin import Admin
from escapement.broker.broker import Broker
from escapement.broker.desk import ConsumerHandle, ProducerHandle, Publication
from escapement.broker.limits import BrokerLimits
from escapement.broker.ready import Rows
from escapement.errors import (
    EscapementError,
    InvalidRequest,
    LimitExceeded,
    ProtocolError,
    RemoteProtocolError,
)
from escapement.message import Buffer, Int64s, MessageBatch
from escapement.protocol import commands as wire
from escapement.protocol.connection import Connection
from escapement.protocol.limits import (
    LIMIT_BATCH_BYTES,
    LIMIT_BATCH_MESSAGES,
    LIMIT_DELAY_MS,
    LIMIT_FRAME_BYTES,
    MAX_BATCH_MESSAGES,
    MAX_FRAME_BYTES,
    MAX_PERMITS,
    PROTOCOL_VERSION,
)
from escapement.storage.catalog import Kind

_log = logging.getLogger(__name__)

_READ_BYTES: Final = 256 * 1024
# Requests of one connection that wait for the database at the same time.
_REQUESTS: Final = 64
# Room that a frame needs beside the body of its batch: times, sequence, field headers.
FRAME_MARGIN_BYTES: Final = 2 * 1024 * 1024
MAX_BATCH_BYTES: Final = MAX_FRAME_BYTES - FRAME_MARGIN_BYTES
# Producers and consumers of one connection.
_HANDLES: Final = 10_000
# Messages that one Ack may name by ranges: spread out they are a column of 64 MiB.
_ACK_MESSAGES: Final = 8 * 1024 * 1024

_Request = Callable[[Any, Any], Awaitable[None]]


class Session:
    """See the module's docstring; the outlet of its consumers."""

    def __init__(self, broker: Broker, stream: trio.abc.Stream, limits: BrokerLimits) -> None:
        self._broker = broker
        self._admin = Admin(broker)
        self._stream = stream
        self._limits = limits
        self._protocol = Connection("broker")
        self._outbound: list[Buffer] = []
        self._outbound_bytes = 0
        self._writable = trio.Event()
        self._unconfirmed_bytes = 0
        self._confirmed = trio.Event()
        self._producers: dict[int, ProducerHandle | None] = {}  # None: being opened
        self._consumers: dict[int, ConsumerHandle | None] = {}
        self._requests = trio.Semaphore(_REQUESTS)
        self._finished = False
        self._scope = trio.CancelScope()

    # -- the connection's life ---------------------------------------------------------

    async def run(self) -> None:
        """Serve the connection until it ends; never raises for what the peer did."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write_all)
                    await self._read_all(nursery)
                    self._finished = True
                    self._writable.set()
        except* (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            pass  # the peer is gone
        finally:
            self._finished = True
            self._release()
            await trio.aclose_forcefully(self._stream)

    def say_goodbye(self, reason: str) -> None:
        """Tell the peer that the broker is stopping; what is queued still goes out."""
        self._send(wire.Goodbye(reason))

    def _release(self) -> None:
        for producer in self._producers.values():
            if producer is not None:
                self._broker.publishing.close(producer)
        for consumer in self._consumers.values():
            if consumer is not None:
                self._broker.consuming.close(consumer)
        self._producers.clear()
        self._consumers.clear()

    # -- in ------------------------------------------------------------------------------

    async def _read_all(self, nursery: trio.Nursery) -> None:
        try:
            with trio.fail_after(self._limits.handshake_timeout_s):
                while not self._protocol.closed and not await self._greet():
                    pass
            while not self._protocol.closed:
                await self._handle_events(nursery)
                while self._unconfirmed_bytes > self._limits.unconfirmed_bytes:
                    self._confirmed = trio.Event()
                    await self._confirmed.wait()
                if not self._protocol.closed:
                    with trio.fail_after(self._limits.idle_timeout_s):
                        await self._receive()
        except trio.TooSlowError:
            self._last_words(ProtocolError("nothing was heard for too long"))
        except RemoteProtocolError as error:
            _log.info("closing a connection: %s", error)
            self._last_words(error)
        nursery.cancel_scope.deadline = trio.current_time() + self._limits.handshake_timeout_s

    async def _greet(self) -> bool:
        await self._receive()
        for command in self._protocol.events():
            if isinstance(command, wire.Hello):
                limits = {
                    LIMIT_FRAME_BYTES: MAX_FRAME_BYTES,
                    LIMIT_BATCH_MESSAGES: MAX_BATCH_MESSAGES,
                    LIMIT_BATCH_BYTES: MAX_BATCH_BYTES,
                    LIMIT_DELAY_MS: self._limits.max_delay_ms,
                }
                identity = self._broker.identity
                self._send(wire.Welcome(PROTOCOL_VERSION, identity.name, identity.owner_id, limits))
                return True
        return False

    async def _receive(self) -> None:
        self._protocol.receive_data(await self._stream.receive_some(_READ_BYTES))

    async def _handle_events(self, nursery: trio.Nursery) -> None:
        for command in self._protocol.events():
            if isinstance(command, wire.Publish):
                await self._publish(command)
                continue
            try:
                at_once = self._AT_ONCE.get(type(command))
                if at_once is not None:
                    at_once(self, command)
                    continue
                request = self._REQUESTS.get(type(command))
                if request is not None:
                    await self._requests.acquire()
                    nursery.start_soon(self._carry_out, request, command)
            except RemoteProtocolError:
                raise
            except EscapementError as error:
                request_id = getattr(command, "request_id", 0)
                if request_id:
                    self._send(wire.Refused.because(error, request_id=request_id))

    async def _carry_out(self, request: _Request, command: wire.Command) -> None:
        try:
            await request(self, command)
        except EscapementError as error:
            request_id = getattr(command, "request_id", 0)
            self._send(wire.Refused.because(error, request_id=request_id))
        finally:
            self._requests.release()

    # -- producing -----------------------------------------------------------------------

    async def _publish(self, command: wire.Publish) -> None:
        batch, times = command.decode()
        await self._broker.publishing.room()
        try:
            self._broker.check_open()
            producer = self._producers.get(command.producer_id)
            if producer is None:
                raise InvalidRequest(f"no producer {command.producer_id} is open here")
            size = len(command.body)
            publication = Publication(
                command.sequence,
                command.after,
                batch,
                times,
                command.body,
                done=lambda base, again: self._receipt(command, len(batch), size, base, again),
                failed=lambda error: self._refusal(command, size, error),
            )
            self._unconfirmed_bytes += size
            try:
                self._broker.publishing.publish(producer, publication)
            except EscapementError:
                self._unconfirmed_bytes -= size
                raise
        except EscapementError as error:
            self._send(
                wire.Refused.because(
                    error, producer_id=command.producer_id, sequence=command.sequence
                )
            )

    def _receipt(
        self, command: wire.Publish, count: int, size: int, base_offset: int, again: bool
    ) -> None:
        self._confirm(size)
        self._send(wire.Receipt(command.producer_id, command.sequence, count, base_offset, again))

    def _refusal(self, command: wire.Publish, size: int, error: EscapementError) -> None:
        self._confirm(size)
        self._send(
            wire.Refused.because(error, producer_id=command.producer_id, sequence=command.sequence)
        )

    def _confirm(self, size: int) -> None:
        self._unconfirmed_bytes -= size
        self._confirmed.set()

    async def _open_producer(self, command: wire.OpenProducer) -> None:
        producer_id = command.producer_id
        self._claim(producer_id, self._producers)

        def fenced(error: EscapementError) -> None:
            if self._producers.pop(producer_id, None) is not None:
                closed = wire.ProducerClosed(producer_id, error.code, str(error), error.retryable)
                self._send(closed)

        name = command.name or f"unnamed-{secrets.token_hex(8)}"
        try:
            handle = await self._broker.publishing.open(command.topic, name, command.epoch, fenced)
        except BaseException:
            self._producers.pop(producer_id, None)
            raise
        if self._finished:
            self._broker.publishing.close(handle)
            return
        self._producers[producer_id] = handle
        producer = handle.producer
        self._send(
            wire.ProducerReady(
                command.request_id,
                producer_id,
                handle.topic.name.full,
                producer.name,
                producer.epoch,
                producer.last_sequence,
            )
        )

    def _close_producer(self, command: wire.CloseProducer) -> None:
        producer = self._producers.get(command.producer_id)
        if producer is not None:
            del self._producers[command.producer_id]
            self._broker.publishing.close(producer)
        self._send(wire.Done(command.request_id))

    # -- consuming -----------------------------------------------------------------------

    async def _subscribe(self, command: wire.Subscribe) -> None:
        self._claim(command.consumer_id, self._consumers)
        try:
            handle = await self._broker.consuming.subscribe(
                command.topic,
                command.subscription,
                kind=cast(Kind, command.kind),
                position=command.position,
                ack_wait_ms=command.ack_wait_ms,
                consumer_name=command.consumer_name,
                wire_id=command.consumer_id,
                outlet=self,
            )
        except BaseException:
            self._consumers.pop(command.consumer_id, None)
            raise
        if self._finished or self._broker.stopping:
            self._consumers.pop(command.consumer_id, None)
            return  # it has not joined, so there is nothing to leave
        self._consumers[command.consumer_id] = handle
        self._send(
            wire.ConsumerReady(
                command.request_id,
                command.consumer_id,
                handle.topic.name.full,
                handle.subscription.record.kind,
            )
        )
        self._broker.consuming.joined(handle)

    def _close_consumer(self, command: wire.CloseConsumer) -> None:
        consumer = self._consumers.get(command.consumer_id)
        if consumer is not None:
            del self._consumers[command.consumer_id]
            self._broker.consuming.close(consumer)
        self._send(wire.Done(command.request_id))

    def _flow(self, command: wire.Flow) -> None:
        handle = self._consumers.get(command.consumer_id)
        if handle is None:
            return  # it was closed while the credit was on its way
        consumer = handle.consumer
        consumer.permits = min(consumer.permits + command.permits, MAX_PERMITS)
        self._broker.consuming.wake(handle)

    def _ack(self, command: wire.Ack) -> None:
        handle = self._consumer(command.consumer_id)
        offsets = _offsets_of(command, handle.topic.next_offset)
        request_id = command.request_id

        def done(count: int) -> None:
            self._send(wire.Acked(request_id, count))

        self._broker.consuming.acknowledge(handle, offsets, done if request_id else None)

    def _nack(self, command: wire.Nack) -> None:
        handle = self._consumer(command.consumer_id)
        delay_ms = None if command.delay_ms < 0 else command.delay_ms
        count = self._broker.consuming.negative_acknowledge(handle, command.offsets, delay_ms)
        if command.request_id:
            self._send(wire.Acked(command.request_id, count))

    def _consumer(self, consumer_id: int) -> ConsumerHandle:
        handle = self._consumers.get(consumer_id)
        if handle is None:
            raise InvalidRequest(f"no consumer {consumer_id} is open here")
        return handle

    def _claim(
        self,
        handle_id: int,
        handles: dict[int, ProducerHandle | None] | dict[int, ConsumerHandle | None],
    ) -> None:
        """Keep an id for what is about to be opened under it."""
        self._broker.check_open()
        if handle_id in handles:
            raise InvalidRequest(f"the id {handle_id} is in use on this connection")
        if len(handles) >= _HANDLES:
            raise LimitExceeded(f"a connection may open {_HANDLES} of these")
        handles[handle_id] = None

    # -- the rest --------------------------------------------------------------------------

    def _ping(self, command: wire.Ping) -> None:
        self._send(wire.Pong(command.token))

    async def _administer(self, command: wire.Admin) -> None:
        result = await self._admin.carry_out(command.verb, command.arguments)
        self._send(wire.AdminReply(command.request_id, result))

    _AT_ONCE: ClassVar[dict[type[wire.Command], Callable[[Any, Any], None]]] = {
        wire.CloseProducer: _close_producer,
        wire.CloseConsumer: _close_consumer,
        wire.Flow: _flow,
        wire.Ack: _ack,
        wire.Nack: _nack,
        wire.Ping: _ping,
    }
    _REQUESTS: ClassVar[dict[type[wire.Command], _Request]] = {
        wire.OpenProducer: _open_producer,
        wire.Subscribe: _subscribe,
        wire.Admin: _administer,
    }

    # -- out -----------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether consumers of this connection may be sent more."""
        return self._outbound_bytes < self._limits.outbound_bytes

    def deliver(
        self,
        consumer_id: int,
        rows: Rows,
        redelivered: npt.NDArray[np.bool_] | None,
        batch: MessageBatch,
    ) -> None:
        """Queue a frame of messages."""
        first = bool((rows.attempts <= 1).all())
        self._send(
            wire.Deliver(
                consumer_id,
                rows.offsets,
                rows.due_ms,
                None if first else np.minimum(rows.attempts, 0xFFFF).astype(np.uint16),
                None if redelivered is None else redelivered.astype(np.uint8),
                batch.encode(),
            )
        )

    def active(self, consumer_id: int, active: bool) -> None:
        """Tell a consumer whether it is its turn."""
        self._send(wire.ConsumerActive(consumer_id, active))

    def consumer_closed(self, consumer_id: int, error: EscapementError) -> None:
        """Tell a consumer that the broker ended it, and why."""
        self._consumers.pop(consumer_id, None)
        self._send(wire.ConsumerClosed(consumer_id, error.code, str(error), error.retryable))

    def _send(self, command: wire.Command) -> None:
        """Queue a command; what cannot be sent ends this connection and nothing else.

        After our goodbye nothing is said: the peer learns what became of its requests by
        asking again.
        """
        if self._finished or self._protocol.closed or self._protocol.finished:
            return
        try:
            self._queue(self._protocol.send(command))
        except ProtocolError:
            _log.exception("ending a connection that cannot be answered")
            self._scope.cancel()

    def _last_words(self, error: EscapementError) -> None:
        if not self._finished:
            self._queue(self._protocol.last_words(error))

    def _queue(self, buffers: list[Buffer]) -> None:
        self._outbound += buffers
        self._outbound_bytes += sum(map(len, buffers))
        self._writable.set()
        if self._outbound_bytes > self._limits.outbound_hard_bytes:
            _log.warning("cutting off a peer that does not read its answers")
            self._scope.cancel()

    async def _write_all(self) -> None:
        while True:
            if not self._outbound:
                if self._finished:
                    await self._stream.aclose()
                    return
                self._writable = trio.Event()
                await self._writable.wait()
                continue
            buffers, self._outbound = self._outbound, []
            size = sum(map(len, buffers))
            await self._stream.send_all(b"".join(buffers))
            # Frames may have been added meanwhile, up to the bound.
            was_full = not self.has_room
            self._outbound_bytes -= size
            if was_full and self.has_room:
                for handle in self._consumers.values():
                    if handle is not None:
                        self._broker.consuming.wake(handle)


def _offsets_of(command: wire.Ack, next_offset: int) -> Int64s:
    """The offsets an Ack names, its ranges spread out.

    Offsets that no message has yet are left out: they acknowledge nothing.
    """
    parts = []
    if command.offsets is not None:
        offsets = command.offsets
        known = (offsets >= 0) & (offsets < next_offset)
        parts.append(offsets if known.all() else offsets[known])
    if command.firsts is not None and command.lasts is not None:
        firsts = np.clip(command.firsts, 0, next_offset)
        counts = np.clip(command.lasts, 0, next_offset) - firsts
        total = int(counts.sum())
        if total > _ACK_MESSAGES:
            raise LimitExceeded(f"an Ack names at most {_ACK_MESSAGES} messages, not {total}")
        ends = np.cumsum(counts)
        parts.append(np.repeat(firsts - (ends - counts), counts) + np.arange(total))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
