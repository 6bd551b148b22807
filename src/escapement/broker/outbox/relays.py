"""All relays of a broker: those of outboxes, and those of acknowledgements in transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import trio

from escapement.broker.delivery.consuming import Consuming
from escapement.broker.outbox.ack_relay import AckRelay
from escapement.broker.outbox.named_topics import NamedTopics
from escapement.broker.outbox.outbox_relays import OutboxRelays
from escapement.broker.outbox.relay import Relay
from escapement.broker.registry.changes import Transact
from escapement.clock import Clock
from escapement.storage.blocking import Run
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import Engine
from escapement.storage.engine.mysql.engine import MysqlEngine
from escapement.storage.outbox.ack_table import ACKS


class Relays:
    """The relays of a broker. Iterating over it gives those that run.

    Each database has an ack relay for each bundle. The broker of bundle 0 also has a relay for each
    outbox.

    Args:
      addresses: the databases of applications.
      engine: the database of the log.
      log: the id of the log.
      topics: the topics and subscriptions that rows name.
      run: makes calls to the databases of applications.
      on_posted: called when entries were written to the inbox.
    """

    def __init__(
        self,
        addresses: Sequence[MysqlAddress],
        engine: Engine,
        log: bytes,
        transact: Transact,
        topics: NamedTopics,
        consuming: Consuming,
        clock: Clock,
        run: Run,
        on_posted: Callable[[], None],
    ) -> None:
        self.outboxes = OutboxRelays(
            () if topics.registry.bundle.id else addresses,
            engine,
            log,
            transact,
            clock,
            run,
            topics.delays_of,
            on_posted,
        )
        self._acks = [
            AckRelay(MysqlEngine(address, creates=False), log, topics, consuming, transact, run)
            for address in addresses
        ]

    def __iter__(self) -> Iterator[Relay]:
        return iter([*self.outboxes, *self._acks])

    @property
    def learned(self) -> int:
        """The number of acknowledgements in transactions that the log has learned."""
        return sum(relay.learned for relay in self._acks)

    @property
    def problems(self) -> list[str]:
        """Why rows wait. A problem that several relays of a database have is one."""
        waiting: dict[tuple[str, str], list[str]] = {}
        for relay in self:
            if relay.problem:
                having = waiting.setdefault((relay.database, relay.problem), [])
                having.append(relay.location)
        return [
            f"{database if len(having) > 1 else having[0]}: {problem}"
            for (database, problem), having in waiting.items()
        ]

    def hint(self, database: str, table: str) -> None:
        """Look soon for rows that were inserted into a table; do nothing for an unknown table."""
        self.outboxes.hint(database, table)
        if table == ACKS:
            for relay in self._acks:
                relay.hint()

    def hint_all(self) -> None:
        """Look soon for rows in all tables."""
        for relay in self:
            relay.hint()

    async def run(self) -> None:
        """Move rows until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.outboxes.run)
            for relay in self._acks:
                nursery.start_soon(relay.run)

    async def stop(self) -> None:
        """Begin no further step, and wait a while for the steps in progress."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.outboxes.stop)
            for relay in self._acks:
                nursery.start_soon(relay.stop)

    def close(self) -> None:
        """Close the connections to the databases of applications."""
        for relay in self:
            relay.close()
