"""The connections of a process: each is admitted, secured by TLS, and served by a session.

The process may run several brokers. The function ``choose`` says which of them serves a connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import trio

from escapement.broker.broker import Broker
from escapement.broker.delivery.output_bound import OutputBound
from escapement.broker.directory import check_log
from escapement.broker.front.admission import Admission, Seat
from escapement.broker.front.certificates import Certificates, role_of
from escapement.broker.front.lobby import First, Guest, Lobby
from escapement.broker.limits import BrokerLimits
from escapement.broker.session import Choose, Session
from escapement.broker.session.inbound import Inbound
from escapement.broker.session.observers import Observers
from escapement.broker.session.request_memory import RequestMemory
from escapement.broker.session.tls_transport import TlsTransport
from escapement.errors import Busy, EscapementError, ProtocolError
from escapement.event_log import EventLog, log_fields
from escapement.protocol.connection import Connection

_log = EventLog(__name__)

# How long the server tries to send the reason to a peer that it refuses.
_LAST_WORDS_S: Final = 1.0


class Front:
    """The connections of a process.

    Args:
      choose: returns the broker that serves a connection; see ``Session``. It returns only brokers
        that have started.
      limits: the limits of all connections.
      output: the bound on queued output, which the brokers share.
      certificates: the TLS settings of new connections; None: connections have no TLS.
      observers: admits clients that no broker serves; see ``Session``.
    """

    def __init__(
        self,
        choose: Choose,
        limits: BrokerLimits,
        output: OutputBound,
        certificates: Certificates | None = None,
        observers: Observers | None = None,
    ) -> None:
        self._choose = choose
        self._observers = observers
        self._limits = limits
        self._output = output
        self._certificates = certificates
        self._sessions: set[Session] = set()
        self._admission = Admission(
            limits.connections, limits.connections_per_address, limits.greetings
        )
        self._inbound = Inbound(limits.inbound_bytes, limits.inbound_timeout_s)
        self._request_memory = RequestMemory(limits.request_bytes)
        self._session_ended = trio.lowlevel.ParkingLot()

    @classmethod
    def of_broker(cls, broker: Broker, certificates: Certificates | None = None) -> Front:
        """Return a front for one broker, which serves all connections."""

        def choose(features: Mapping[str, Any]) -> Broker:
            check_log(features, broker.services.log_identity)
            return broker

        return cls(choose, broker.config.limits, broker.output, certificates)

    async def run_broker(
        self, broker: Broker, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Run a broker. When it stops, tell its peers after their last receipts are queued."""
        broker.on_stop(lambda: self.say_goodbye(broker))
        broker.on_end(lambda: self.end_sessions(broker))
        await broker.run(task_status=task_status)

    async def accept(self, listeners: list[trio.SocketListener], nursery: trio.Nursery) -> None:
        """Accept connections forever. An error in one connection does not disturb the others."""

        def serve(guest: Guest, first: First) -> None:
            nursery.start_soon(self._serve_guest, guest, first)

        timeout_s = self._limits.handshake_timeout_s
        lobby = Lobby(self._admission, timeout_s, self._certificates is None, serve)
        async with trio.open_nursery() as accepting:
            accepting.start_soon(lobby.watch)
            for listener in listeners:
                accepting.start_soon(lobby.accept, listener)

    async def _serve_guest(self, guest: Guest, first: First) -> None:
        """Serve a connection whose first message has arrived, until it ends."""
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(guest.socket))
        try:
            with guest.seat, trio.CancelScope() as scope:
                guest.seat.end = scope.cancel
                secured: trio.abc.Stream | None = None
                if self._certificates is None:
                    secured = stream
                else:
                    with trio.move_on_at(guest.deadline_s):
                        secured = await self._secured(stream, first)
                if secured is not None:
                    await self._serve_seated(secured, guest.seat, guest.deadline_s)
        finally:
            await trio.aclose_forcefully(stream)

    async def serve_stream(self, stream: trio.abc.Stream) -> None:
        """Serve one connection in memory until it ends."""
        scope = trio.CancelScope()
        try:
            seat = self._admission.admit(None, scope.cancel)
        except Busy as error:
            await _turn_away(stream, error)
            return
        with seat, scope:
            greet_by_s = trio.current_time() + self._limits.handshake_timeout_s
            await self._serve_seated(stream, seat, greet_by_s)

    async def _secured(
        self, stream: trio.SocketStream, first: First
    ) -> trio.SSLStream[TlsTransport] | None:
        """Do the TLS handshake. Return None if it fails."""
        assert self._certificates is not None
        if first is First.FRAME:
            reason = ProtocolError("this port speaks TLS; connect to escapements://")
            await _turn_away(stream, reason)
            return None
        secured = trio.SSLStream(
            TlsTransport(stream),
            self._certificates.context,
            server_side=True,
            https_compatible=True,
        )
        try:
            await secured.do_handshake()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            _log.info(
                "connection.tls_failed", "a TLS handshake failed: %s", error.__cause__ or error
            )
            return None
        return secured

    async def _serve_seated(self, stream: trio.abc.Stream, seat: Seat, greet_by_s: float) -> None:
        peer = _peer(stream)
        session = Session(
            self._choose,
            stream,
            self._limits,
            self._inbound,
            self._request_memory,
            self._output,
            greet_by_s=greet_by_s,
            on_greeted=seat.greeted,
            certificate_role=certificate_role(stream),
            peer=peer or "",
            observers=self._observers,
        )
        self._sessions.add(session)
        try:
            with log_fields(connection=peer):
                await _until_its_end(session)
        finally:
            self._sessions.discard(session)
            self._session_ended.unpark_all()

    def count_of(self, broker: Broker) -> int:
        """Return the number of connections of a broker."""
        return len(self._sessions_of(broker))

    def say_goodbye(self, broker: Broker) -> None:
        """Tell the peers of a broker that it is stopping, and where its bundle goes."""
        place = broker.directory.next_owner_of(broker.bundle_id)
        for session in self._sessions_of(broker):
            if place is None:
                session.say_goodbye("the broker is stopping")
            else:
                session.moved(place)

    def send_away(self, broker: Broker) -> None:
        """End the connections of a broker that lives on. Tell its peers who may own its bundle."""
        self.say_goodbye(broker)
        for session in self._sessions_of(broker):
            session.dismiss()

    async def end_sessions(self, broker: Broker) -> None:
        """End all sessions of a broker, and wait for the calls that they run in threads.

        No new session of it begins, because the broker is not serving any more.
        """
        for session in self._sessions_of(broker):
            session.end()
        while self._sessions_of(broker):
            await self._session_ended.park()

    def _sessions_of(self, broker: Broker) -> list[Session]:
        return [session for session in self._sessions if session.broker is broker]


async def _until_its_end(session: Session) -> None:
    try:
        await session.run()
    except* AssertionError:
        raise  # end the broker: after a broken invariant its state cannot be trusted
    except* Exception:
        # A bug in one session ends that session only.
        _log.exception("connection.failed", "a session failed; its connection is closed")


def _peer(stream: trio.abc.Stream) -> str | None:
    """Return the address of a peer, or None if it has none or is gone.

    Log lines and the audit log show it.
    """
    if isinstance(stream, trio.SSLStream):
        stream = stream.transport_stream.stream
    if not isinstance(stream, trio.SocketStream):
        return None
    try:
        peer = stream.socket.getpeername()
    except OSError:
        return None
    return "{}:{}".format(*peer) if isinstance(peer, tuple) else None


def certificate_role(stream: trio.abc.Stream) -> str | None:
    """Return the role that the verified certificate of a connection's client names, or None."""
    if not isinstance(stream, trio.SSLStream):
        return None
    return role_of(stream.getpeercert())


async def _turn_away(stream: trio.abc.Stream, error: EscapementError) -> None:
    """Tell the peer why its connection is refused, and close the connection."""
    with trio.move_on_after(_LAST_WORDS_S), suppress(trio.BrokenResourceError):
        await stream.send_all(b"".join(Connection("broker").last_words(error)))
    await trio.aclose_forcefully(stream)
