"""The session of one connection: requests come in, answers and messages go out.

The Hello of the peer decides which broker serves the connection, for as long as it lasts. A session
owns the producers and consumers of its peer. It closes them when the connection ends, however it
ends. It passes each command to the desk for its noun. Output waits in
:mod:`outbound <escapement.broker.session.outbound>`. Commands that only touch memory are carried
out at once, in the order of their arrival. Commands that need the database run in tasks of the
session, whose number and memory are bounded. Reading stops while more than ``unconfirmed_bytes``
of publishes have no receipt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Final

import trio

from escapement.broker.access.audited import Origin, reason_in
from escapement.broker.access.caller import Caller
from escapement.broker.broker import Broker
from escapement.broker.delivery.output_bound import OutputBound
from escapement.broker.directory import Place
from escapement.broker.limits import BrokerLimits
from escapement.broker.session.desks import Desks
from escapement.broker.session.inbound import SMALL_READ_BYTES, Inbound, Intake
from escapement.broker.session.observers import ObserverDesk, Observers
from escapement.broker.session.outbound import Outbound
from escapement.broker.session.request_handler import Waiting
from escapement.broker.session.request_memory import RequestMemory, Reservations
from escapement.broker.session.silence_timeout import SilenceTimeout
from escapement.broker.session.welcome import welcome_of
from escapement.errors import (
    EscapementError,
    OtherDatabase,
    ProtocolError,
    RemoteProtocolError,
    ShuttingDown,
    StorageError,
    StorageUnavailable,
    Unauthenticated,
    WrongBundle,
)
from escapement.event_log import EventLog
from escapement.protocol import commands as wire
from escapement.protocol.connection import Connection, Signal
from escapement.protocol.limits import FEATURE_MOVED, FEATURE_OBSERVER, FEATURE_REASON

_log = EventLog(__name__)

# Commands of one connection that are carried out before other connections have their turn.
_TURN_COMMANDS: Final = 64
# Requests of one connection that wait for the database at the same time.
_REQUESTS: Final = 64
# How long a peer that may not be connected any more has to receive the reason.
_DISMISSAL_S: Final = 1.0
# The answer to Hello if the token cannot be looked up. The peer may be anybody, so it does not
# learn the error, which names the database and its user. The log has it.
_UNCHECKED: Final = (
    "the broker cannot read its database, and so cannot check the token; its log says why"
)


# Returns the broker that serves a peer, by the features of its Hello, or where the peer finds it.
Choose = Callable[[Mapping[str, Any]], Broker | wire.Moved]
AnyDesk = Desks | ObserverDesk


class Session:
    """The session of one connection."""

    def __init__(
        self,
        choose: Choose,
        stream: trio.abc.Stream,
        limits: BrokerLimits,
        inbound: Inbound,
        request_memory: RequestMemory,
        output: OutputBound,
        *,
        greet_by_s: float | None = None,
        on_greeted: Callable[[], None] = lambda: None,
        certificate_role: str | None = None,
        peer: str = "",
        observers: Observers | None = None,
    ) -> None:
        """Create the session of a stream.

        Args:
          choose: returns the broker that serves the peer, by the features of its Hello.
          output: the bound on queued output, which the brokers share.
          greet_by_s: when the handshake must be done, on trio's clock; None: in the time that
            ``limits`` gives it from now on.
          on_greeted: called when the handshake is done.
          certificate_role: the role that the client's verified certificate names, if it has one.
          peer: the address of the client, for the audit log.
          observers: admits clients that no broker here serves, and that only ask for the state of
            the cluster; None: no such clients.
        """
        if greet_by_s is None:
            greet_by_s = trio.current_time() + limits.handshake_timeout_s
        self._greet_by_s = greet_by_s
        self._on_greeted = on_greeted
        self._choose = choose
        self._certificate_role = certificate_role
        self._peer = peer
        self._observers = observers
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
            output,
            may_deliver=self._may_deliver,
            output_waits=lambda: output.is_full,
            requests_wait=lambda: request_memory.has_waiting,
            on_room=self._wake_consumers,
            end=self._scope.cancel,
        )
        # Set when the handshake is done.
        self._broker: Broker | None = None
        self._caller: Caller | None = None
        self._desks: AnyDesk | None = None
        self._understands_moved = False

    @property
    def broker(self) -> Broker | None:
        """The broker that serves this connection; None before the handshake, or for an observer."""
        return self._broker

    async def run(self) -> None:
        """Serve the connection until it ends. The peer cannot make it raise."""
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
            if self._broker is not None:
                self._broker.services.access.unwatch(self._access_changed)
            self._outbound.finish()
            if self._desks is not None:
                self._desks.release()
            self._reservations.close()
            # Free memory now, not when the garbage collector finds the session.
            self._outbound.discard()
            await trio.aclose_forcefully(self._stream)

    def moved(self, place: Place) -> None:
        """Tell the peer that another broker owns the bundle now, or soon; then say goodbye.

        Args:
          place: the next owner, as far as it is known.
        """
        assert self._broker is not None, "the connection has no bundle yet"
        bundle_id = self._broker.bundle_id
        if self._understands_moved:
            self._outbound.send(wire.Moved(0, bundle_id, *place))
        self.say_goodbye(f"bundle {bundle_id} moves to another broker")

    def say_goodbye(self, reason: str) -> None:
        """Tell the peer that the broker is stopping. Queued frames are still written."""
        self._outbound.send(wire.Goodbye(reason))

    def dismiss(self) -> None:
        """End the connection soon. Queue nothing more for the peer, and close what it has open."""
        self._outbound.finish()
        if self._desks is not None:
            self._desks.release()
        self._scope.deadline = min(self._scope.deadline, trio.current_time() + _DISMISSAL_S)

    def end(self) -> None:
        """End the connection. ``run`` returns when no call of the session is in progress."""
        self._scope.cancel()

    def _may_deliver(self) -> bool:
        return self._broker is not None and self._broker.holds_lease()

    def _wake_consumers(self) -> None:
        if self._desks is not None:
            self._desks.wake()

    async def _read_all(self, nursery: trio.Nursery) -> None:
        try:
            with trio.fail_at(self._greet_by_s):
                while not self._protocol.closed and not await self._greet():
                    pass
            if self._desks is not None:
                self._on_greeted()
                await self._listen(nursery, self._desks)
        except trio.TooSlowError:
            self._outbound.last_words(ProtocolError("the peer was silent for too long"))
        except RemoteProtocolError as error:
            _log.info("connection.protocol_error", "closing a connection: %s", error)
            self._outbound.last_words(error)
        except Unauthenticated as error:
            _log.info("connection.refused", "closing a connection: %s", error)
            self._outbound.last_words(error)
        except StorageError as error:
            _log.info("connection.refused", "closing a connection: %s", error)
            self._outbound.last_words(StorageUnavailable(_UNCHECKED))
        except (OtherDatabase, ShuttingDown, WrongBundle) as error:
            self._outbound.last_words(error)
        self._intake.release()  # its frame must not hold up others while the last words are written
        self._reservations.give_up()
        nursery.cancel_scope.deadline = trio.current_time() + self._limits.handshake_timeout_s

    async def _listen(self, nursery: trio.Nursery, desks: AnyDesk) -> None:
        """Handle commands until the connection ends. Raises ``TooSlowError`` for a silent peer."""
        silence = SilenceTimeout(self._limits.idle_timeout_s)
        nursery.start_soon(silence.watch)
        try:
            with silence.scope:
                while not self._protocol.closed:
                    await self._handle_events(nursery, desks)
                    await desks.room()
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
        """Read more. Return whether the handshake is done, or has failed."""
        await self._room_to_read()
        self._protocol.receive_data(await self._intake.read())
        for command in self._protocol.events():
            if isinstance(command, wire.Hello):
                await self._admit(command)
                return True
        return False

    async def _admit(self, hello: wire.Hello) -> None:
        """Choose the broker of this connection, and welcome the peer.

        Raises:
          Unauthenticated: if the broker does not know the token of the peer.
          StorageError: if it cannot look the token up.
          ShuttingDown: if the broker is stopping.
          OtherDatabase: if the peer has used another database before.
          WrongBundle: if this process has no broker for the peer, which does not understand Moved.
        """
        self._understands_moved = hello.features.get(FEATURE_MOVED) == 1
        reason = reason_in(hello.features.get(FEATURE_REASON))
        origin = Origin(hello.client, self._peer, reason)
        chosen = self._choose(hello.features)
        if isinstance(chosen, wire.Moved):
            if self._observers is not None and hello.features.get(FEATURE_OBSERVER) == 1:
                self._desks = await self._observers.admit(
                    hello, self._certificate_role, origin, chosen.bundle, self._outbound
                )
                return
            text = f"Another broker owns bundle {chosen.bundle}. Its address: {chosen.address!r}."
            if not self._understands_moved:
                raise WrongBundle(text, chosen.bundle)
            self._outbound.send(chosen)
            self.say_goodbye(text)
            return
        if not chosen.is_serving:
            raise ShuttingDown("the broker is stopping")
        self._broker = chosen  # before the wait, so that the broker waits for this session
        caller = Caller(chosen.services.access, self._certificate_role, origin)
        await caller.admit(hello.token)
        chosen.check_open()
        self._caller = caller
        understood = [name for name, value in hello.features.items() if value == 1]
        self._desks = Desks(chosen, self._outbound, self._limits, caller, understood)
        chosen.services.access.watch(self._access_changed)
        self._outbound.send(welcome_of(chosen, self._limits))

    # -- access control ------------------------------------------------------------------

    def _access_changed(self) -> None:
        """Close what the peer has lost the right to, or the whole connection."""
        assert self._caller is not None
        assert self._desks is not None
        try:
            self._caller.verify()
        except Unauthenticated as error:
            _log.info("connection.refused", "closing a connection: %s", error)
            self._outbound.last_words(error)
            self.dismiss()
        else:
            self._desks.review()

    # -- commands ------------------------------------------------------------------------

    async def _room_to_read(self) -> None:
        protocol = self._protocol
        await self._intake.room(protocol.unfinished_bytes, protocol.missing_bytes)

    async def _handle_events(self, nursery: trio.Nursery, desks: AnyDesk) -> None:
        for turn in count(1):
            if turn % _TURN_COMMANDS == 0:
                await trio.lowlevel.checkpoint()
            await self._reserve(desks)
            command = self._protocol.next_event()
            if isinstance(command, Signal):
                return
            self._intake.frame_ends()
            try:
                await self._handle(command, nursery, desks)
            except RemoteProtocolError:
                raise
            except EscapementError as error:
                self._refuse(command, error)
            del command  # it may be large, and the next one may wait

    async def _reserve(self, desks: AnyDesk) -> None:
        """Reserve the memory of the next command, if it is carried out aside.

        For a small frame that is done when all of it is there, so that peers which send it slowly
        hold up nobody.
        """
        kind, size_bytes = self._protocol.next_frame()
        if kind in desks.aside and (
            size_bytes > SMALL_READ_BYTES or self._protocol.unfinished_bytes >= size_bytes
        ):
            size_bytes = min(size_bytes, kind.MAX_BYTES)
            if not self._reservations.may_reserve(size_bytes * kind.MEMORY_FACTOR):
                self._protocol.free_taken()
            await self._intake.reserve(size_bytes * kind.MEMORY_FACTOR)

    async def _handle(self, command: wire.Command, nursery: trio.Nursery, desks: AnyDesk) -> None:
        kind = type(command)
        if in_turn := desks.in_turn.get(kind):
            await in_turn(command)
        elif at_once := desks.at_once.get(kind):
            at_once(command)
        elif aside := desks.aside.get(kind):
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
        if not request_id:
            return
        if self._broker is None:  # for an observer
            self._outbound.send(wire.Refused.because(error, request_id=request_id))
            return
        error = self._broker.checked(error)
        directory = self._broker.directory
        if (
            self._understands_moved
            and isinstance(error, WrongBundle)
            and error.bundle is not None
            and directory.count > 1
        ):
            place = directory.owner_of(error.bundle)
            self._outbound.send(wire.Moved(request_id, error.bundle, *place))
        else:
            self._outbound.send(wire.Refused.because(error, request_id=request_id))
