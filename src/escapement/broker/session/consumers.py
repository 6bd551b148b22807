"""The consumers of one connection: joining, credit, acknowledgements, and their outlet."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, cast

import numpy as np
import numpy.typing as npt
import trio

from escapement.access.pattern import Pattern
from escapement.access.rights import Need
from escapement.broker.access.caller import Caller
from escapement.broker.broker import Broker
from escapement.broker.session.handles import Handles
from escapement.broker.session.outbound import Outbound
from escapement.broker.session.request_handler import RequestHandler
from escapement.broker.subscription.delivery.ack_waits import AckWaits
from escapement.broker.subscription.priorities.ready import Rows
from escapement.broker.topic.handles import ConsumerHandle
from escapement.errors import AccessDenied, EscapementError, LimitExceeded
from escapement.field import Field
from escapement.message import Int64s, MessageBatch
from escapement.position import Position
from escapement.protocol import commands as wire
from escapement.protocol.limits import FEATURE_ACK_DEADLINES
from escapement.storage.catalog.catalog import Kind

# The most messages that one Ack may name by ranges.
_ACK_MESSAGES: Final = 8 * 1024 * 1024
# An Ack of more messages is carried out in pieces of this many, about a millisecond each.
_PIECE_MESSAGES: Final = 32 * 1024
# After a piece of more messages than this, other connections have their turn.
_FEW_MESSAGES: Final = 1024


class Consumers(RequestHandler):
    """The desk for consumers, and the outlet of each consumer."""

    def __init__(
        self,
        broker: Broker,
        outbound: Outbound,
        caller: Caller,
        understood: Collection[str],
    ) -> None:
        self._tells_deadlines = FEATURE_ACK_DEADLINES in understood
        self._broker = broker
        self._caller = caller
        self._outbound = outbound
        self._handles: Handles[ConsumerHandle] = Handles("consumer")
        # The fields that each consumer of a message table was told last, by its id.
        self._told: dict[int, tuple[Field, ...]] = {}
        self.at_once = {
            wire.CloseConsumer: self._close,
            wire.Flow: self._flow,
            wire.Halt: self._halt,
            wire.Nack: self._nack,
            wire.Reject: self._reject,
            wire.Extend: self._extend,
            wire.Release: self._release,
        }
        self.in_turn = {wire.Ack: self._ack}
        self.aside = {wire.Subscribe: self._subscribe}

    def release(self) -> None:
        for handle in self._handles.open():
            self._broker.consuming.close(handle)
        self._handles.clear()

    def wake(self) -> None:
        """Wake the consumers, because the connection has room for messages again."""
        for handle in self._handles.open():
            self._broker.consuming.wake(handle)

    # -- joining and leaving -------------------------------------------------------------

    async def _subscribe(self, command: wire.Subscribe) -> None:
        self._broker.check_open()
        with self._handles.claimed(command.consumer_id):
            handle = await self._broker.consuming.subscribe(
                command.topic,
                command.subscription,
                kind=cast(Kind, command.kind),
                position=Position.parse(command.position),
                ack_wait_ms=command.ack_wait_ms,
                consumer_name=command.consumer_name,
                wire_id=command.consumer_id,
                outlet=self,
                key_range=command.key_range,
            )
            if self._outbound.finished or self._broker.stopping:
                return  # it has not joined, so there is nothing to leave
            self._check(handle)
            self._handles.enter(command.consumer_id, handle)
        fields = self._broker.services.tables.fields(handle.topic)
        if fields is not None:
            self._tell(command.consumer_id, fields)
        self._outbound.send(
            wire.ConsumerReady(
                command.request_id,
                command.consumer_id,
                handle.topic.name.full,
                handle.subscription.record.kind,
                self._broker.services.log_identity,
                max(handle.subscription.record.id, 0),  # a message table has no id in the log
            )
        )
        self._broker.consuming.joined(handle)

    def _close(self, command: wire.CloseConsumer) -> None:
        handle = self._handles.take(command.consumer_id)
        self._told.pop(command.consumer_id, None)
        if handle is not None:
            if command.untried is not None:
                self._broker.consuming.release(handle, command.untried, 0)
            self._broker.consuming.close(handle)
        self._outbound.send(wire.Done(command.request_id))

    def review(self) -> None:
        """Close the consumers of topics that the peer may not consume any more."""
        for consumer_id, handle in self._handles.items():
            try:
                self._check(handle)
            except AccessDenied as error:
                self._broker.consuming.close(handle)
                self.consumer_closed(consumer_id, error)

    def _check(self, handle: ConsumerHandle) -> None:
        self._caller.check([Need("consume", Pattern(handle.topic.name.full))])

    def _halt(self, command: wire.Halt) -> None:
        handle = self._handles.find(command.consumer_id)
        if handle is not None:
            handle.consumer.halt()
        self._outbound.send(wire.Done(command.request_id))

    # -- commands of consumers -----------------------------------------------------------

    def _flow(self, command: wire.Flow) -> None:
        handle = self._handles.find(command.consumer_id)
        if handle is None:
            return  # it was closed while the credit was on its way
        handle.consumer.grant(command.permits)
        self._broker.consuming.wake(handle)

    async def _ack(self, command: wire.Ack) -> None:
        handle = self._handles.get(command.consumer_id)
        request_id = command.request_id
        waiting, total = 1, 0  # the pieces that are not durable yet, and one until all are named

        def done(count: int) -> None:
            nonlocal waiting, total
            waiting, total = waiting - 1, total + count
            if not waiting:
                self._outbound.send(wire.Acked(request_id, total))

        for offsets in _pieces_of(command, handle.topic.next_offset):
            waiting += 1
            self._broker.consuming.acknowledge(handle, offsets, done if request_id else None)
            if len(offsets) > _FEW_MESSAGES:
                await trio.lowlevel.checkpoint()
                handle = self._handles.get(command.consumer_id)  # it may have been closed
        if request_id:
            done(0)

    def _nack(self, command: wire.Nack) -> None:
        handle = self._handles.get(command.consumer_id)
        delay_ms = None if command.delay_ms < 0 else command.delay_ms
        count = self._broker.consuming.negative_acknowledge(handle, command.offsets, delay_ms)
        self._acked(command, count)

    def _reject(self, command: wire.Reject) -> None:
        handle = self._handles.get(command.consumer_id)
        consuming = self._broker.consuming
        count = consuming.negative_acknowledge(
            handle, command.offsets, None, "rejected", command.detail
        )
        self._acked(command, count)

    def _extend(self, command: wire.Extend) -> None:
        handle = self._handles.get(command.consumer_id)
        count = self._broker.consuming.extend(handle, command.offsets, command.wait_ms)
        self._acked(command, count)

    def _release(self, command: wire.Release) -> None:
        handle = self._handles.get(command.consumer_id)
        count = self._broker.consuming.release(handle, command.offsets, command.delay_ms)
        self._acked(command, count)

    def _acked(
        self, command: wire.Nack | wire.Reject | wire.Extend | wire.Release, count: int
    ) -> None:
        if command.request_id:
            self._outbound.send(wire.Acked(command.request_id, count))

    # -- the Outlet of each consumer -----------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether consumers of this connection may be sent more."""
        return self._outbound.has_room

    def deliver(
        self,
        consumer_id: int,
        rows: Rows,
        redelivered: npt.NDArray[np.bool_] | None,
        batch: MessageBatch,
        waits: AckWaits,
    ) -> None:
        """Queue a frame of messages, after the fields of their rows if the consumer needs them."""
        if batch.fields is not None:
            self._tell(consumer_id, batch.fields)
        first = not np.count_nonzero(rows.attempts > 1)
        self._outbound.deliver(
            wire.Deliver(
                consumer_id,
                rows.offsets,
                rows.due_ms,
                None if first else rows.counts.astype(np.uint16),
                None if redelivered is None else redelivered.astype(np.uint8),
                batch.encode(),
                *(waits if self._tells_deadlines else ()),
            )
        )

    def _tell(self, consumer_id: int, fields: tuple[Field, ...]) -> None:
        """Queue the fields of the next messages, unless the consumer knows them already."""
        told = self._told.get(consumer_id)
        if told is not fields:
            self._told[consumer_id] = fields
            if told != fields:
                self._outbound.send(wire.Fields.of(consumer_id, fields))

    def active(self, consumer_id: int, active: bool) -> None:
        """Tell an exclusive or failover consumer whether it is the one that gets the messages."""
        self._outbound.send(wire.ConsumerActive(consumer_id, active))

    def rewound(self, consumer_id: int, subscription_id: int) -> None:
        """Tell a consumer that the messages it was sent are withdrawn."""
        self._outbound.send(wire.ConsumerRewound(consumer_id, subscription_id))

    def consumer_closed(self, consumer_id: int, error: EscapementError) -> None:
        """Tell a consumer that the broker closed it, and why."""
        self._handles.take(consumer_id)
        self._told.pop(consumer_id, None)
        self._outbound.send(wire.ConsumerClosed(consumer_id, *wire.error_fields(error)))


def _pieces_of(command: wire.Ack, next_offset: int) -> Iterator[Int64s]:
    """Return the offsets that an Ack names, in at least one piece, with its ranges expanded.

    Offsets beyond the end of the log are left out: they acknowledge nothing. If ranges name more
    messages than the log has, they overlap. They are then merged, so that an Ack takes no longer
    than the topic has messages.
    """
    single = np.zeros(0, np.int64)
    if command.offsets is not None:
        single = command.offsets
        known = (single >= 0) & (single < next_offset)
        single = single if known.all() else single[known]
    if command.firsts is None or command.lasts is None:
        yield from _slices(single)
        return
    firsts = np.clip(command.firsts, 0, next_offset)
    counts = np.clip(command.lasts, 0, next_offset) - firsts
    if int(counts.sum()) > min(next_offset, _ACK_MESSAGES):
        firsts, counts = _merged(firsts, counts)
    ends = np.cumsum(counts)
    shifts, total = firsts - (ends - counts), int(ends[-1]) if len(ends) else 0
    if total > _ACK_MESSAGES:
        raise LimitExceeded(f"an Ack names at most {_ACK_MESSAGES} messages, not {total}")
    if len(single) + total <= _PIECE_MESSAGES:
        expanded = _expanded(shifts, ends, 0, total)
        yield np.concatenate((single, expanded)) if len(single) else expanded
        return
    yield from _slices(single)
    for low in range(0, total, _PIECE_MESSAGES):
        yield _expanded(shifts, ends, low, min(low + _PIECE_MESSAGES, total))


def _slices(offsets: Int64s) -> Iterator[Int64s]:
    """Return the offsets in pieces, at least one."""
    for low in range(0, max(len(offsets), 1), _PIECE_MESSAGES):
        yield offsets[low : low + _PIECE_MESSAGES]


def _expanded(shifts: Int64s, ends: Int64s, low: int, high: int) -> Int64s:
    """Return some offsets of ranges: those that are numbered from ``low`` to below ``high``.

    Args:
      shifts: for each range, its first offset less the number of this offset.
      ends: for each range, the number behind its last offset; ascending.
    """
    some = slice(int(ends.searchsorted(low, "right")), int(ends.searchsorted(high)) + 1)
    counts = np.diff(np.minimum(ends[some], high), prepend=low)
    return np.repeat(shifts[some], counts) + np.arange(low, high)


def _merged(firsts: Int64s, counts: Int64s) -> tuple[Int64s, Int64s]:
    """Shorten ranges so that each offset is in one of them. They may become empty."""
    order = np.argsort(firsts)
    firsts, lasts = firsts[order], (firsts + counts)[order]
    covered = np.zeros_like(lasts)  # the end of all earlier ranges
    np.maximum.accumulate(lasts[:-1], out=covered[1:])
    firsts = np.maximum(firsts, covered)
    return firsts, np.maximum(lasts - firsts, 0)
