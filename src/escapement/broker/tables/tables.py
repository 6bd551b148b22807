"""All message tables that a broker serves, by database.

The topics of tables have negative ids, so they are never confused with the topics of the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final

import numpy as np
import trio

from escapement.broker.limits import BrokerLimits
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.tables.database import Database, Delivery
from escapement.broker.tables.listed_table import ListedTable
from escapement.broker.tables.served_table import ServedTable
from escapement.broker.tables.table_subscription import SUBSCRIPTION
from escapement.broker.topic.topic import Topic
from escapement.clock import Clock
from escapement.errors import InvalidRequest, NotFound
from escapement.field import Field
from escapement.names import TableName
from escapement.storage.blocking import Run
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.mysql.engine import MysqlEngine

# How long a request waits for the first look at a database.
_FIRST_LOOK_S: Final = 5.0


class Tables:
    """The message tables of all databases that a broker serves.

    Args:
      addresses: the databases.
      log: the id of the broker's log.
      lease_epoch: the epoch of the lease that the broker works under.
    """

    def __init__(
        self,
        addresses: Sequence[MysqlAddress],
        log: str,
        lease_epoch: int,
        delivery: Delivery,
        limits: BrokerLimits,
        rng: np.random.Generator,
        clock: Clock,
        run: Run,
    ) -> None:
        ids = count(-1, -1)
        self.databases = {
            address.database: Database(
                MysqlEngine(address, creates=False),
                address.database,
                log,
                lease_epoch,
                lambda: next(ids),
                delivery,
                limits,
                rng,
                clock,
                run,
            )
            for address in addresses
        }
        self._clock = clock

    # -- finding -------------------------------------------------------------------

    def topics(self) -> Iterator[Topic]:
        """Yield the topics of all tables."""
        for database in self.databases.values():
            yield from database.topics()

    def topic(self, id: int) -> Topic | None:
        """Return the topic with this id; None if there is none."""
        found = (database.topic(id) for database in self.databases.values())
        return next((topic for topic in found if topic is not None), None)

    async def find(self, text: str) -> ServedTable:
        """Return a table by its name, ``table://database/table``.

        Raises:
          InvalidRequest: if the name has another form.
          NotFound: if the broker serves no such table.
          TableRejected: if the table cannot be served.
          StorageUnavailable: if its database could not be asked yet.
        """
        name = TableName.parse(text)
        database = self.databases.get(name.database)
        if database is None:
            raise NotFound(
                f"this broker serves no tables of the database {name.database}; start it with "
                f"--tables mysql://USER@HOST/{name.database}"
            )
        with trio.move_on_after(_FIRST_LOOK_S):
            await database.has_looked.wait()
        return database.find(name)

    async def to_consume(self, text: str, subscription: str) -> Topic:
        """Return the topic of a table, for a consumer of this subscription.

        Raises:
          InvalidRequest: if the table has no such subscription. Others as for ``find``.
        """
        table = await self.find(text)
        if subscription != SUBSCRIPTION:
            raise InvalidRequest(
                f"{table.topic.name.full} has only the subscription {SUBSCRIPTION!r}, because each "
                f"of its messages goes to one consumer; {subscription!r} was given"
            )
        return table.topic

    def fields(self, topic: Topic) -> tuple[Field, ...] | None:
        """Return the fields of a table's rows; None for another topic, or a dropped table."""
        database = self._of(topic.id)
        return None if database is None else database.fields(topic.id)

    def check_acks(self, topic: Topic) -> None:
        """Raise if acknowledgements of the table cannot be accepted now.

        Raises:
          StorageReadOnly: if its database accepts no writes.
          StorageUnavailable: if too many acknowledgements wait for its database.
        """
        database = self._of(topic.id)
        if database is not None:
            database.writer.check_acks(database.pause)

    def wake(self, topic: Topic, subscription: Subscription | None = None) -> None:
        """Wake the pump of a table's topic, for one subscription or for the whole topic."""
        database = self._of(topic.id)
        if database is not None:
            database.wake(topic, subscription)

    def _of(self, id: int) -> Database | None:
        found = (one for one in self.databases.values() if one.topic(id) is not None)
        return next(found, None)

    async def acknowledge(self, text: str, ids: Sequence[object]) -> int:
        """Acknowledge rows of a table by their ids; return how many were not acknowledged before.

        Raises as ``find`` does, and:
          InvalidRequest: if a value cannot be an id of the table.
          StorageReadOnly, StorageUnavailable: as ``check_acks``.
        """
        table = await self.find(text)
        self.check_acks(table.topic)
        database = self._of(table.topic.id)
        assert database is not None
        return await database.acknowledge(table, ids)

    async def check(self, text: str) -> TableName:
        """Return the name of a table that is served. Raises as ``find`` does."""
        await self.find(text)
        return TableName.parse(text)

    def hint(self, database: str, table: str) -> None:
        """Poll a table soon, because rows were inserted; do nothing for an unknown table."""
        found = self.databases.get(database)
        if found is not None:
            found.hint(table)

    def listed(self) -> list[ListedTable]:
        """Return the state of each message table, as plain values."""
        return [row for database in self.databases.values() for row in database.listed()]

    @property
    def problems(self) -> list[str]:
        """Why messages wait, for each database that has a problem, or whose tables have some."""
        return [one for database in self.databases.values() for one in database.problems]

    # -- the tasks -------------------------------------------------------------------

    async def run(self) -> None:
        """Serve all tables until cancelled."""
        async with trio.open_nursery() as nursery:
            for database in self.databases.values():
                nursery.start_soon(database.run)

    async def stop(self) -> None:
        """Give all messages back, and wait a while until that is written."""
        async with trio.open_nursery() as nursery:
            for database in self.databases.values():
                nursery.start_soon(database.stop, self._clock.now_ms())

    def close(self) -> None:
        """Close all connections."""
        for database in self.databases.values():
            database.close()
