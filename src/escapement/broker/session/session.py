"""The session of one connection: requests come in, answers and messages go out.

A session owns the producers and consumers of its peer. It closes them when the connection ends,
however it ends. It passes each command to the desk for its noun. Output waits in
:mod:`outbound <escapement.broker.session.outbound>`. Commands that only touch memory are carried
out at once, in the order of their arrival. Commands that need the database run in tasks of the
session, whose number and memory are bounded. Reading stops while more than ``unconfirmed_bytes``
of publishes have no receipt.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Final

import trio

from escapement.broker.access.caller import Caller
from escapement.broker.access.needs import COMMAND_NEEDS
from escapement.broker.admin import Admin
from escapement.broker.broker import Broker
from escapement.broker.limits import BrokerLimits
from escapement.broker.session.amendments import AmendmentRequests
from escapement.broker.session.consumers import Consumers
from escapement.broker.session.inbound import SMALL_READ_BYTES, Inbound, Intake
from escapement.broker.session.outbound import Outbound
from escapement.broker.session.producers import Producers
from escapement.broker.session.reading import Reading
from escapement.broker.session.request_handler import AtOnce, RequestHandler, Waiting
from escapement.broker.session.request_memory import RequestMemory, Reservations
from escapement.broker.session.silence_timeout import SilenceTimeout
from escapement.errors import (
    EscapementError,
    ProtocolError,
    RemoteProtocolError,
    Unauthenticated,
)
from escapement.event_log import EventLog
from escapement.protocol import commands as wire
from escapement.protocol.connection import Connection, Signal
from escapement.protocol.limits import (
    LIMIT_BATCH_BYTES,
    LIMIT_BATCH_MESSAGES,
    LIMIT_DELAY_MS,
    LIMIT_FRAME_BYTES,
    MAX_BATCH_MESSAGES,
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
)

_log = EventLog(__name__)

# Commands of one connection that are carried out before other connections have their turn.
_TURN_COMMANDS: Final = 64
# Requests of one connection that wait for the database at the same time.
_REQUESTS: Final = 64
# How long a peer that may not be connected any more has to receive the reason.
_DISMISSAL_S: Final = 1.0
# Room that a frame needs beside the body of its batch: times, sequence, field headers.
FRAME_MARGIN_BYTES: Final = 2 * 1024 * 1024
MAX_BATCH_BYTES: Final = MAX_FRAME_BYTES - FRAME_MARGIN_BYTES


class Session:
    """The session of one connection."""

    def __init__(
        self,
        broker: Broker,
        stream: trio.abc.Stream,
        limits: BrokerLimits,
        inbound: Inbound,
        request_memory: RequestMemory,
        *,
        greet_by_s: float | None = None,
        on_greeted: Callable[[], None] = lambda: None,
        certificate_role: str | None = None,
    ) -> None:
        """Create the session of a stream.

        Args:
          greet_by_s: when the handshake must be done, on trio's clock; None: in the time that
            ``limits`` gives it from now on.
          on_greeted: called when the handshake is done.
          certificate_role: the role that the client's verified certificate names, if it has one.
        """
        if greet_by_s is None:
            greet_by_s = trio.current_time() + limits.handshake_timeout_s
        self._greet_by_s = greet_by_s
        self._on_greeted = on_greeted
        self._broker = broker
        self._stream = stream
        self._limits = limits
        self._protocol = Connection("broker")
        self._requests = trio.Semaphore(_REQUESTS)
        self._scope = trio.CancelScope()
        self._reservations = Reservations(request_memory)
        self._intake = Intake(inbound, self._reservations, stream.receive_some, self._scope.cancel)
        self._outbound = Outbound(
            stream,
            self._protocol,
            limits,
            broker.output,
            may_deliver=broker.holds_lease,
            output_waits=lambda: broker.output.is_full,
            requests_wait=lambda: request_memory.has_waiting,
            on_room=lambda: self._consumers.wake(),
            end=self._scope.cancel,
        )
        self._caller = Caller(broker.services.access, certificate_role)
        self._producers = Producers(broker, self._outbound, limits, self._caller)
        self._consumers = Consumers(broker, self._outbound, self._caller)
        self._handlers: tuple[RequestHandler, ...] = (
            self._producers,
            self._consumers,
            AmendmentRequests(broker, self._outbound),
            Reading(broker, self._outbound),
            _BrokerRequests(broker, self._outbound, self._caller),
        )
        self._at_once: dict[type[wire.Command], AtOnce] = {}
        self._in_turn: dict[type[wire.Command], Waiting] = {}
        self._aside: dict[type[wire.Command], Waiting] = {}
        for handler in self._handlers:
            self._at_once |= handler.at_once
            self._in_turn |= handler.in_turn
            self._aside |= handler.aside
        for kind in [kind for kind, needs in COMMAND_NEEDS.items() if needs]:
            if kind in self._at_once:
                self._at_once[kind] = self._checked_at_once(self._at_once[kind])
            else:
                self._aside[kind] = self._checked(self._aside[kind])

    async def run(self) -> None:
        """Serve the connection until it ends. The peer cannot make it raise."""
        access = self._broker.services.access
        access.watch(self._access_changed)
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._outbound.run)
                    try:
                        await self._read_all(nursery)
                    finally:
                        # Free memory now: requests in progress may last.
                        self._intake.release()
                        self._protocol.discard()
                    self._outbound.finish()
        except* (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            pass  # the peer is gone
        finally:
            access.unwatch(self._access_changed)
            self._outbound.finish()
            for handler in self._handlers:
                handler.release()
            self._reservations.close()
            # Free memory now, not when the garbage collector finds the session.
            self._outbound.discard()
            await trio.aclose_forcefully(self._stream)

    def say_goodbye(self, reason: str) -> None:
        """Tell the peer that the broker is stopping. Queued frames are still written."""
        self._outbound.send(wire.Goodbye(reason))

    def end(self) -> None:
        """End the connection. ``run`` returns when no call of the session is in progress."""
        self._scope.cancel()

    async def _read_all(self, nursery: trio.Nursery) -> None:
        try:
            with trio.fail_at(self._greet_by_s):
                while not self._protocol.closed and not await self._greet():
                    pass
            self._on_greeted()
            await self._listen(nursery)
        except trio.TooSlowError:
            self._outbound.last_words(ProtocolError("the peer was silent for too long"))
        except (RemoteProtocolError, Unauthenticated) as error:
            if isinstance(error, Unauthenticated):
                _log.info("connection.refused", "closing a connection: %s", error)
            else:
                _log.info("connection.protocol_error", "closing a connection: %s", error)
            self._outbound.last_words(error)
        self._intake.release()  # its frame must not hold up others while the last words are written
        self._reservations.give_up()
        nursery.cancel_scope.deadline = trio.current_time() + self._limits.handshake_timeout_s

    async def _listen(self, nursery: trio.Nursery) -> None:
        """Handle commands until the connection ends. Raises ``TooSlowError`` for a silent peer."""
        silence = SilenceTimeout(self._limits.idle_timeout_s)
        nursery.start_soon(silence.watch)
        try:
            with silence.scope:
                while not self._protocol.closed:
                    await self._handle_events(nursery)
                    await self._producers.room()
                    if not self._protocol.closed:
                        await self._room_to_read()
                        silence.begin()
                        self._protocol.receive_data(await self._intake.read())
                        silence.end()
        finally:
            silence.close()
        if silence.scope.cancelled_caught:
            raise trio.TooSlowError

    async def _greet(self) -> bool:
        await self._room_to_read()
        self._protocol.receive_data(await self._intake.read())
        for command in self._protocol.events():
            if isinstance(command, wire.Hello):
                self._caller.admit(command.token)
                limits = {
                    LIMIT_FRAME_BYTES: MAX_FRAME_BYTES,
                    LIMIT_BATCH_MESSAGES: MAX_BATCH_MESSAGES,
                    LIMIT_BATCH_BYTES: MAX_BATCH_BYTES,
                    LIMIT_DELAY_MS: self._limits.max_delay_ms,
                }
                identity = self._broker.identity
                self._outbound.send(
                    wire.Welcome(PROTOCOL_VERSION, identity.name, identity.owner_id, limits)
                )
                return True
        return False

    # -- access control ------------------------------------------------------------------

    def _checked(self, carry_out: Waiting) -> Waiting:
        """Return a function that checks the rights of the peer, and then carries a command out."""

        async def checked(command: wire.Command) -> None:
            self._caller.check_command(command)
            await carry_out(command)

        return checked

    def _checked_at_once(self, carry_out: AtOnce) -> AtOnce:
        def checked(command: wire.Command) -> None:
            self._caller.check_command(command)
            carry_out(command)

        return checked

    def _access_changed(self) -> None:
        """Close what the peer has lost the right to, or the whole connection."""
        if not self._caller.is_admitted:
            return
        try:
            self._caller.verify()
        except Unauthenticated as error:
            _log.info("connection.refused", "closing a connection: %s", error)
            self._outbound.last_words(error)
            self._outbound.finish()
            for handler in self._handlers:
                handler.release()
            self._scope.deadline = min(self._scope.deadline, trio.current_time() + _DISMISSAL_S)
        else:
            self._producers.review()
            self._consumers.review()

    # -- commands ------------------------------------------------------------------------

    async def _room_to_read(self) -> None:
        protocol = self._protocol
        await self._intake.room(protocol.unfinished_bytes, protocol.missing_bytes)

    async def _handle_events(self, nursery: trio.Nursery) -> None:
        for turn in count(1):
            if turn % _TURN_COMMANDS == 0:
                await trio.lowlevel.checkpoint()
            await self._reserve()
            command = self._protocol.next_event()
            if isinstance(command, Signal):
                return
            self._intake.frame_ends()
            try:
                await self._handle(command, nursery)
            except RemoteProtocolError:
                raise
            except EscapementError as error:
                self._refuse(command, error)
            del command  # it may be large, and the next one may wait

    async def _reserve(self) -> None:
        """Reserve the memory of the next command, if it is carried out aside.

        For a small frame that is done when all of it is there, so that peers which send it slowly
        hold up nobody.
        """
        kind, size_bytes = self._protocol.next_frame()
        if kind in self._aside and (
            size_bytes > SMALL_READ_BYTES or self._protocol.unfinished_bytes >= size_bytes
        ):
            size_bytes = min(size_bytes, kind.MAX_BYTES)
            if not self._reservations.may_reserve(size_bytes * kind.MEMORY_FACTOR):
                self._protocol.free_taken()
            await self._intake.reserve(size_bytes * kind.MEMORY_FACTOR)

    async def _handle(self, command: wire.Command, nursery: trio.Nursery) -> None:
        kind = type(command)
        if in_turn := self._in_turn.get(kind):
            await in_turn(command)
        elif at_once := self._at_once.get(kind):
            at_once(command)
        elif aside := self._aside.get(kind):
            self._intake.release()
            self._protocol.free_taken()
            size_bytes = self._reservations.begin()
            await self._requests.acquire()
            nursery.start_soon(self._carry_out, aside, command, size_bytes)

    async def _carry_out(self, aside: Waiting, command: wire.Command, size_bytes: int) -> None:
        try:
            await aside(command)
        except EscapementError as error:
            self._refuse(command, error)
        finally:
            self._requests.release()
            self._reservations.end(size_bytes)

    def _refuse(self, command: wire.Command, error: EscapementError) -> None:
        request_id = getattr(command, "request_id", 0)
        if request_id:
            self._outbound.send(wire.Refused.because(error, request_id=request_id))


class _BrokerRequests(RequestHandler):
    """The desk for requests about the broker itself."""

    def __init__(self, broker: Broker, outbound: Outbound, caller: Caller) -> None:
        self._caller = caller
        self._admin = Admin(broker)
        self._outbound = outbound
        self.at_once = {wire.Ping: self._ping}
        self.aside = {wire.Admin: self._administer}

    def _ping(self, command: wire.Ping) -> None:
        self._outbound.send(wire.Pong(command.token))

    async def _administer(self, command: wire.Admin) -> None:
        await self._outbound.room()
        # Not before the wait, which lasts as long as the peer does not read.
        self._caller.check_command(command)
        result = await self._admin.carry_out(command.verb, command.arguments, self._caller)
        self._outbound.answer(wire.AdminReply(command.request_id, result))
