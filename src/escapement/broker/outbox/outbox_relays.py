"""The outbox relays of a broker: one for each outbox of each database of an application.

``escapement_outbox`` always has a relay. The others follow the mappings in the application's
database, which the broker reads again every few seconds. When a mapping is removed, its relay ends
after the batch in progress. When a mapping is changed, one relay ends before the other begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Final

import trio

from escapement.broker.outbox.messages import DelaysOf
from escapement.broker.outbox.outbox_relay import OutboxRelay
from escapement.broker.registry.changes import Transact
from escapement.clock import Clock
from escapement.errors import InvalidRequest, StorageError
from escapement.event_log import EventLog
from escapement.storage.blocking import Run
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import Engine
from escapement.storage.engine.mysql.engine import MysqlEngine
from escapement.storage.outbox.application import OutboxInApplication
from escapement.storage.outbox.mapping import OURS, OutboxMapping
from escapement.storage.outbox.mapping_table import MAX_OUTBOXES, read_mappings

_log = EventLog(__name__)

# The pause between two looks at the mappings of a database.
_LOOK_S: Final = 5.0

# Makes the relay of a mapped table.
_MakeRelay = Callable[[OutboxMapping], OutboxRelay]


class _Serving:
    """A relay that runs, and how to cancel it."""

    def __init__(self, mapping: str, relay: OutboxRelay) -> None:
        self.mapping = mapping
        self.relay = relay
        self.cancel_scope = trio.CancelScope()
        self.ended = trio.Event()

    async def run(self) -> None:
        try:
            with self.cancel_scope:
                await self.relay.run()
        finally:
            self.relay.close()
            self.ended.set()

    async def end(self) -> None:
        """End the relay after the batch in progress."""
        await self.relay.stop()
        self.cancel_scope.cancel()
        await self.ended.wait()


class OutboxesOfDatabase:
    """The relays of the outboxes in one database of an application.

    Args:
      application: the database.
      run: makes calls to it.
      make_relay: makes the relay of an outbox.
    """

    def __init__(self, application: Engine, run: Run, make_relay: _MakeRelay) -> None:
        self._application = application
        self._run = run
        self._make_relay = make_relay
        self._ours = make_relay(OURS)
        self._mapped: dict[str, _Serving] = {}
        self._unreadable: dict[str, str] = {}  # mappings that were warned about
        self._stopping = False
        self.moved_before = 0  # number of rows moved by relays that have ended
        self.refused_before = 0  # number of rows refused by them

    @property
    def relays(self) -> list[OutboxRelay]:
        """The relays that run."""
        return [self._ours, *(serving.relay for serving in self._mapped.values())]

    def hint(self, table: str) -> None:
        """Let the relay of a table look for rows soon; do nothing for an unknown table."""
        if table == OURS.table:
            self._ours.hint()
        elif table in self._mapped:
            self._mapped[table].relay.hint()

    async def run(self) -> None:
        """Move rows until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ours.run)
            while not self._stopping:
                try:
                    found = await self._run(self._read)
                except StorageError as error:
                    # The relay of ``escapement_outbox`` warns of an outage of this database.
                    location = self._application.location
                    _log.debug(
                        "outbox.mappings_waiting", "%s: %s", location, error, database=location
                    )
                else:
                    await self._follow(found, nursery)
                await trio.sleep(_LOOK_S)

    def stop(self) -> None:
        """Begin no further relay."""
        self._stopping = True

    def _read(self) -> dict[str, str]:
        with closing(self._application.connect()) as connection:
            return read_mappings(connection)

    async def _follow(self, found: dict[str, str], nursery: trio.Nursery) -> None:
        """End the relays of mappings that are gone, and begin those of new ones."""
        for table, serving in list(self._mapped.items()):
            if found.get(table) != serving.mapping:
                await serving.end()
                self.moved_before += serving.relay.moved
                self.refused_before += serving.relay.refused
                del self._mapped[table]
        for table, text in found.items():
            if table in self._mapped or self._stopping or len(self._mapped) >= MAX_OUTBOXES - 1:
                continue
            try:
                mapping = OutboxMapping.from_json(table, text)
            except InvalidRequest as error:
                if self._unreadable.get(table) != text:
                    location = self._application.location
                    _log.warning(
                        "outbox.mapping_rejected",
                        "%s: %s",
                        location,
                        error,
                        database=location,
                        table=table,
                    )
                    self._unreadable[table] = text
                continue
            self._mapped[table] = serving = _Serving(text, self._make_relay(mapping))
            nursery.start_soon(serving.run)


class OutboxRelays:
    """All outbox relays of a broker. Iterating over it gives the relays that run.

    Args:
      addresses: the databases of applications.
      run: makes calls to them.
      The others are those of ``OutboxRelay``.
    """

    def __init__(
        self,
        addresses: Sequence[MysqlAddress],
        engine: Engine,
        log: bytes,
        transact: Transact,
        clock: Clock,
        run: Run,
        delays_of: DelaysOf,
        on_posted: Callable[[], None],
    ) -> None:
        served: dict[bytes, OutboxInApplication] = {}

        def relay(application: Engine, mapping: OutboxMapping) -> OutboxRelay:
            return OutboxRelay(
                application,
                engine,
                log,
                served,
                transact,
                clock,
                run,
                delays_of,
                on_posted,
                mapping,
            )

        self._databases: list[OutboxesOfDatabase] = []
        self._by_name: dict[str, list[OutboxesOfDatabase]] = {}
        for address in addresses:
            application = MysqlEngine(address, creates=False)
            outboxes = OutboxesOfDatabase(application, run, partial(relay, application))
            self._databases.append(outboxes)
            self._by_name.setdefault(address.database, []).append(outboxes)

    def __iter__(self) -> Iterator[OutboxRelay]:
        return iter([relay for database in self._databases for relay in database.relays])

    @property
    def moved(self) -> int:
        """The number of rows moved since the broker started."""
        before = sum(database.moved_before for database in self._databases)
        return before + sum(relay.moved for relay in self)

    @property
    def refused(self) -> int:
        """The number of rows refused since the broker started."""
        before = sum(database.refused_before for database in self._databases)
        return before + sum(relay.refused for relay in self)

    def hint(self, database: str, table: str) -> None:
        """Let the relay of a table look for rows soon, on each server with such a database."""
        for outboxes in self._by_name.get(database, []):
            outboxes.hint(table)

    async def run(self) -> None:
        """Move rows until cancelled."""
        async with trio.open_nursery() as nursery:
            for database in self._databases:
                nursery.start_soon(database.run)

    async def stop(self) -> None:
        """Begin no further batch, and wait a while for the batches in progress."""
        for database in self._databases:
            database.stop()
        async with trio.open_nursery() as nursery:
            for relay in self:
                nursery.start_soon(relay.stop)
