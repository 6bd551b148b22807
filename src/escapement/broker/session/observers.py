"""Clients that only ask for the state of the cluster, at a node that has no broker for them.

While no bundle has an owner, nobody could see why: a session belongs to a broker. So a node answers
``cluster.status`` itself, for clients whose Hello has the feature ``observer``. It reads tokens and
grants from the database before it admits such a client, and before each answer. All clients
together cause at most one such look in a second.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NoReturn

from escapement.broker.access.access import Access
from escapement.broker.access.audited import Origin
from escapement.broker.access.caller import Caller
from escapement.broker.access.catching_up import CatchingUp
from escapement.broker.access.needs import needs_of
from escapement.broker.admin.cluster import ClusterStatus, status_of
from escapement.broker.cluster import ClusterView
from escapement.broker.registry.changes import Changes
from escapement.broker.session.outbound import Outbound
from escapement.broker.session.request_handler import RequestHandler, Waiting
from escapement.broker.session.welcome import observer_welcome
from escapement.clock import Clock
from escapement.errors import InvalidRequest
from escapement.protocol import commands as wire
from escapement.storage.blocking import Run
from escapement.storage.bundles import CATALOG, shared_numbers
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.connection_pool import ConnectionPool
from escapement.storage.lease import Identity
from escapement.storage.ownership import look_at_all

_VERB: Final = "cluster.status"
# Any bundle but 0, whose owner changes the tokens. An observer changes nothing.
_NO_BUNDLE: Final = -1


class Observers:
    """Admits the observers of a node, and tells them the state of the cluster.

    Args:
      identity: the identity of the node.
      run: makes blocking calls.
    """

    def __init__(
        self,
        engine: Engine,
        identity: Identity,
        clock: Clock,
        run: Run,
        connections: ConnectionPool,
    ) -> None:
        self._engine = engine
        self._identity = identity
        self._run = run
        self._connections = connections
        self._access = Access(Changes(_refuse_change), clock, (), (), _NO_BUNDLE)
        refresh = partial(self._access.refresh, partial(run, connections.snapshot))
        self._catching_up = CatchingUp(partial(run, self._version), refresh)

    async def admit(
        self,
        hello: wire.Hello,
        certificate_role: str | None,
        origin: Origin,
        bundle_id: int,
        outbound: Outbound,
    ) -> ObserverDesk:
        """Welcome an observer, and return its desk.

        Args:
          certificate_role, origin: as for ``Caller``.
          bundle_id: the bundle that it wants, or may have as well.

        Raises:
          Unauthenticated: if the log has tokens, and this is not one of them that is valid.
          StorageError: if the database cannot be read.
        """
        await self._catching_up.catch_up()
        caller = Caller(self._access, certificate_role, origin)
        await caller.admit(hello.token)
        outbound.send(observer_welcome(self._identity, bundle_id))
        return ObserverDesk(self, outbound, caller)

    async def answer(self, command: wire.Admin, caller: Caller) -> ClusterStatus:
        """Return the answer to a request of an observer.

        Raises:
          InvalidRequest: if it asks for anything else.
          AccessDenied: if it may not see the cluster.
          Unauthenticated: if its token is not valid any more.
          StorageError: if the database cannot be read.
        """
        if command.verb != _VERB or command.arguments:
            _refuse(command)
        await self._catching_up.catch_up()
        await caller.permit(needs_of(command))
        return status_of(await self._run(self._look), self._identity.owner_id)

    def _version(self) -> int:
        """Return the version of the catalog in the database. Blocking."""
        with self._connections.use() as connection:
            return shared_numbers(connection)[CATALOG]

    def _look(self) -> ClusterView:
        """Return the nodes and bundles. Blocking."""
        with self._connections.use() as connection:
            return ClusterView(*look_at_all(self._engine, connection))


class ObserverDesk(RequestHandler):
    """The only desk of a connection of an observer. See ``Desks``."""

    def __init__(self, observers: Observers, outbound: Outbound, caller: Caller) -> None:
        self._observers = observers
        self._outbound = outbound
        self._caller = caller
        # Lookup is one of the others: without an answer the client would wait.
        others = [kind for kind in wire.COMMANDS.values() if kind not in (wire.Admin, wire.Goodbye)]
        self.at_once = dict.fromkeys(others, _refuse) | {wire.Ping: self._ping}
        self.aside: dict[type[wire.Command], Waiting] = {wire.Admin: self._administer}

    async def room(self) -> None:
        """Return: an observer publishes nothing."""

    def wake(self) -> None:
        """Do nothing: an observer has no consumers."""

    def review(self) -> None:
        """Do nothing: each request checks the rights anew."""

    def _ping(self, command: wire.Ping) -> None:
        self._outbound.send(wire.Pong(command.token))

    async def _administer(self, command: wire.Admin) -> None:
        await self._outbound.room()
        answer = await self._observers.answer(command, self._caller)
        self._outbound.answer(wire.AdminReply(command.request_id, answer))


def _refuse(command: wire.Command) -> NoReturn:
    """Raise ``InvalidRequest`` for a request that needs a broker."""
    raise InvalidRequest(f"This node has no broker for the request. It answers only {_VERB}.")


async def _refuse_change(
    statement: Callable[[Connection], Any], *, topic_id: int = 0, forgets: str = ""
) -> NoReturn:
    raise AssertionError("an observer changes nothing")
