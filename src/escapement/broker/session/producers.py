"""The producers of one connection: opening, publishing, and receipts."""

from __future__ import annotations

import trio

from escapement.access.pattern import Pattern
from escapement.access.rights import Need
from escapement.broker.access.caller import Caller
from escapement.broker.broker import Broker
from escapement.broker.limits import BrokerLimits
from escapement.broker.session.handles import Handles
from escapement.broker.session.outbound import Outbound
from escapement.broker.session.request_handler import RequestHandler
from escapement.broker.topic.handles import ProducerHandle
from escapement.broker.topic.publication import Publication, ReplaceColumns, Stored
from escapement.errors import AccessDenied, EscapementError
from escapement.names import anonymous_name
from escapement.protocol import commands as wire
from escapement.storage.commit.items import ITEM_BYTES


class Producers(RequestHandler):
    """The desk for producers."""

    def __init__(
        self, broker: Broker, outbound: Outbound, limits: BrokerLimits, caller: Caller
    ) -> None:
        self._broker = broker
        self._caller = caller
        self._outbound = outbound
        self._limits = limits
        self._handles: Handles[ProducerHandle] = Handles("producer")
        self._unconfirmed_bytes = 0
        self._confirmed = trio.Event()
        self.at_once = {wire.CloseProducer: self._close}
        self.in_turn = {wire.Publish: self._publish}
        self.aside = {wire.OpenProducer: self._open}

    def release(self) -> None:
        for handle in self._handles.open():
            self._broker.publishing.close(handle)
        self._handles.clear()

    # -- opening and closing -------------------------------------------------------------

    async def _open(self, command: wire.OpenProducer) -> None:
        producer_id = command.producer_id
        self._broker.check_open()

        def fenced(error: EscapementError) -> None:
            if self._handles.take(producer_id) is not None:
                self._outbound.send(wire.ProducerClosed(producer_id, *wire.error_fields(error)))

        name = command.name or anonymous_name()
        with self._handles.claimed(producer_id):
            handle = await self._broker.publishing.open(command.topic, name, command.epoch, fenced)
            if self._outbound.finished:
                self._broker.publishing.close(handle)
                return
            try:
                self._check(handle)
            except EscapementError:
                self._broker.publishing.close(handle)
                raise
            self._handles.enter(producer_id, handle)
        producer = handle.producer
        self._outbound.send(
            wire.ProducerReady(
                command.request_id,
                producer_id,
                handle.topic.name.full,
                producer.name,
                producer.epoch,
                producer.last_sequence,
            )
        )

    def _close(self, command: wire.CloseProducer) -> None:
        handle = self._handles.take(command.producer_id)
        if handle is not None:
            self._broker.publishing.close(handle)
        self._outbound.send(wire.Done(command.request_id))

    def review(self) -> None:
        """Close the producers of topics to which the peer may not publish any more."""
        for producer_id, handle in self._handles.items():
            try:
                self._check(handle)
            except AccessDenied as error:
                self._handles.take(producer_id)
                self._broker.publishing.close(handle)
                self._outbound.send(wire.ProducerClosed(producer_id, *wire.error_fields(error)))

    def _check(self, handle: ProducerHandle) -> None:
        self._caller.check([Need("produce", Pattern(handle.topic.name.full))])

    # -- publishing ----------------------------------------------------------------------

    async def room(self) -> None:
        """Wait while more than ``unconfirmed_bytes`` of publishes have no receipt."""
        while self._unconfirmed_bytes > self._limits.unconfirmed_bytes:
            self._confirmed = trio.Event()
            await self._confirmed.wait()

    async def _publish(self, command: wire.Publish) -> None:
        batch, times = command.decode()
        producer_id, count, size_bytes = command.producer_id, len(batch), len(command.body)
        size_bytes += ITEM_BYTES
        publishing = self._broker.publishing
        try:
            handle = self._handles.get(producer_id)
            if publishing.must_wait(handle.topic):
                await publishing.turn(handle, command.sequence, count, command.after)
                await publishing.ready(handle.topic)
                await publishing.room()
                await publishing.weigh(self._handles.get(producer_id).topic)
                handle = self._handles.get(producer_id)  # it may have been fenced meanwhile
            self._broker.check_open()
            publication = Publication(
                command.sequence,
                command.after,
                batch,
                times,
                command.body,
                done=lambda stored: self._receipt(command, count, size_bytes, stored),
                failed=lambda error: self._refusal(command, size_bytes, error),
                digests=command.dedup,
                replace=_replace_columns(command),
            )
            self._unconfirmed_bytes += size_bytes
            try:
                publishing.publish(handle, publication)
            except EscapementError:
                self._unconfirmed_bytes -= size_bytes
                raise
        except EscapementError as error:
            self._refuse(command, error)

    def _receipt(self, command: wire.Publish, count: int, size_bytes: int, stored: Stored) -> None:
        self._confirm(size_bytes)
        self._outbound.send(wire.Receipt(command.producer_id, command.sequence, count, *stored))

    def _refusal(self, command: wire.Publish, size_bytes: int, error: EscapementError) -> None:
        self._confirm(size_bytes)
        self._refuse(command, error)

    def _refuse(self, command: wire.Publish, error: EscapementError) -> None:
        self._outbound.send(
            wire.Refused.because(error, producer_id=command.producer_id, sequence=command.sequence)
        )

    def _confirm(self, size_bytes: int) -> None:
        self._unconfirmed_bytes -= size_bytes
        self._confirmed.set()


def _replace_columns(command: wire.Publish) -> ReplaceColumns | None:
    if command.replace is None:
        return None
    assert command.replace_modes is not None, "checked when the command was read"
    return ReplaceColumns(command.replace, command.replace_modes)
