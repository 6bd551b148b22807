"""Slow work on the database in small steps.

The housekeeper begins generations of the log, deletes rows that nothing needs any more (of deleted
topics and subscriptions, bulk jobs, idle producers, old lag statistics, and the old rows of the
audit log), and shrinks an SQLite
file. Nothing here is urgent, and each step is a short transaction of its own. If the database
cannot be reached, the step is repeated in the next round.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Final

import trio

from escapement.broker.outage import PASSING, Outage
from escapement.broker.registry.changes import Transact, step_by_step
from escapement.broker.registry.registry import Registry
from escapement.clock import Clock
from escapement.errors import MissingRight, StorageUnavailable
from escapement.event_log import EventLog
from escapement.storage import audit_log
from escapement.storage.blocking import Run
from escapement.storage.bundles import bundle_count
from escapement.storage.catalog import producers
from escapement.storage.cleanup import freeing, sqlite_vacuum
from escapement.storage.engine.base import Connection, TransactionAborted
from escapement.storage.engine.connection_pool import ConnectionPool
from escapement.storage.inbox import job, staged_batch
from escapement.storage.lease import Lease
from escapement.storage.log import table_sets
from escapement.storage.log.generation import Generation, should_roll
from escapement.storage.log.log import Log
from escapement.storage.state import lag_table

_log = EventLog(__name__)

ROUND_S: Final = 10.0
# A producer without a connection that has published nothing for this long is deleted, with its
# sequences.
PRODUCER_IDLE_MS: Final = 7 * 86_400_000
# How often to look for batches of messages that bulk jobs staged and never committed. Each search
# reads a row for each staged batch.
_PURGE_MS: Final = 60_000
# How often to look for idle producers, finished bulk jobs, old lag statistics and old rows of the
# audit log to delete.
_FORGETTING_MS: Final = 3_600_000
# How often to count the free table sets.
_COUNT_SETS_MS: Final = 3_600_000


class Housekeeper:
    """The task that does slow work in small steps."""

    def __init__(
        self,
        connections: ConnectionPool,
        lease: Lease,
        log: Log,
        registry: Registry,
        transact: Transact,
        clock: Clock,
        run: Run,
        parallelism: int,
        wants_next: Callable[[int], bool],
        audit_retention_ms: int,
    ) -> None:
        """Keep the parts of the broker that the task uses.

        Args:
          wants_next: returns whether the log should begin a new generation at this time, in ms.
          audit_retention_ms: how long the audit log keeps a row.
        """
        self._connections = connections
        self._engine = connections.engine
        self._lease = lease
        self._log = log
        self._registry = registry
        self._transact = transact
        self._clock = clock
        self._run = run
        self._parallelism = parallelism
        self._wants_next = wants_next
        self._audit_retention_ms = audit_retention_ms
        self._rolling = trio.Lock()
        self._lacks_tables = False  # whether the last attempt to begin a generation found none
        # When this work is due, by the monotonic clock: setting the wall clock back delays nothing.
        self._purge_at_ms = clock.lease_ms()
        self._forget_at_ms = clock.lease_ms() + _FORGETTING_MS
        self._count_sets_at_ms = clock.lease_ms()

    async def run(self) -> None:
        """Do the work that is due, at each interval, forever."""
        outage = Outage("upkeep.waiting", "housekeeping failed; retrying in the next round")
        while True:
            await trio.sleep(ROUND_S)
            with outage:
                await self.round()

    async def round(self) -> None:
        """Do all work that is due now."""
        await self._roll()
        now_ms, passed_ms = self._clock.now_ms(), self._clock.lease_ms()
        if passed_ms >= self._purge_at_ms:
            self._purge_at_ms = passed_ms + _PURGE_MS
            if self._serves_all:
                await self._step_by_step(partial(staged_batch.purge_step, self._engine.dialect))
        if self._serves_all and passed_ms >= self._count_sets_at_ms:
            self._count_sets_at_ms = passed_ms + _COUNT_SETS_MS
            if self._log.current.table_set:
                await self._run(self._count_sets)
        # Read the list of generations in each step: one may be retired and dropped between two
        # steps.
        bundle_id = self._lease.bundle_id
        if await self._is_wanted(partial(freeing.is_wanted, bundle_id=bundle_id)):
            await self._step_by_step(
                lambda connection: freeing.free_step(connection, self._log.generations, bundle_id)
            )
        if (
            self._serves_all
            and sqlite_vacuum.keeps(self._engine)
            and await self._is_wanted(sqlite_vacuum.is_wanted)
        ):
            await self._step_by_step(sqlite_vacuum.give_back_step)
        if passed_ms >= self._forget_at_ms:
            self._forget_at_ms = passed_ms + _FORGETTING_MS
            await self._expire_producers(now_ms)
            if not self._serves_all:
                return
            await self._step_by_step(partial(job.forget_step, self._engine.dialect))
            before_ms = now_ms - lag_table.REMEMBERED_MS
            await self._step_by_step(partial(lag_table.forget_step, before_ms))
            before_ms = now_ms - self._audit_retention_ms
            await self._step_by_step(partial(audit_log.forget_step, before_ms))

    @property
    def _serves_all(self) -> bool:
        """Whether this broker does the work that belongs to no bundle: the owner of bundle 0."""
        return self._lease.bundle_id == 0

    async def set_parallelism(self, count: int) -> None:
        """Set the number of tables in each generation of the log.

        Begin a new generation if the current one has another number of tables.

        Raises:
          StorageUnavailable: if the new generation cannot be written; nothing changed.
          MissingRight: if the broker may not create tables, and no table set fits.
        """
        async with self._rolling:
            if count != self._log.current.parallelism:
                try:
                    await self._begin_generation(count)
                except TransactionAborted as error:
                    raise StorageUnavailable(f"cannot begin a new generation: {error}") from error
            self._parallelism = count

    async def _roll(self) -> None:
        async with self._rolling:
            now_ms = self._clock.now_ms()
            if not (should_roll(self._log.current, now_ms) or self._wants_next(now_ms)):
                return
            try:
                await self._begin_generation(self._parallelism)
            except MissingRight as error:
                if not self._lacks_tables:
                    _log.warning(
                        "log.no_table_set", "the log goes on in its present generation: %s", error
                    )
                self._lacks_tables = True

    async def _begin_generation(self, parallelism: int) -> None:
        now_ms = self._clock.now_ms()
        self._log.begin(*await self._run(self._prepare_generation, parallelism, now_ms))
        self._lacks_tables = False
        current = self._log.current
        _log.info(
            "log.generation_begun",
            "the log goes on in generation %d, of %d tables",
            current.id,
            parallelism,
            generation=current.id,
            tables=parallelism,
        )

    def _prepare_generation(
        self, parallelism: int, now_ms: int
    ) -> tuple[Generation, list[Generation]]:
        with closing(self._engine.connect()) as connection:
            return self._log.prepare(self._engine, connection, self._lease, parallelism, now_ms)

    def _count_sets(self) -> None:
        """Log a warning if few table sets are free. Blocking."""
        with closing(self._engine.connect()) as connection:
            free = table_sets.count_free(connection, self._parallelism)
            wanted = table_sets.wanted_free(connection, bundle_count(connection))
        if free < wanted:
            _log.warning(
                "log.few_table_sets",
                "%d table sets are free, and %d should be, for the next generations of the log. An"
                " account that may create tables makes more with: %s",
                free,
                wanted,
                table_sets.command(self._parallelism),
                free=free,
                wanted=wanted,
            )

    async def _is_wanted(self, look: Callable[[Connection], bool]) -> bool:
        """Return whether some work has a first step, which is often not the case.

        A step is a group commit, even if it finds nothing to do. It adds a row to the journal, and
        the next checkpoint has to write the index for this row.
        """
        try:
            return await self._run(self._look, look)
        except PASSING:
            return True  # the step tells the commit lanes of the outage

    def _look(self, look: Callable[[Connection], bool]) -> bool:
        with self._connections.use() as connection:
            return look(connection)

    async def _step_by_step(self, step: Callable[[Connection], bool]) -> None:
        await step_by_step(self._transact, step)

    async def _expire_producers(self, now_ms: int) -> None:
        before_ms = now_ms - PRODUCER_IDLE_MS
        after_id = 0
        while True:
            idle, after_id = await self._transact(
                lambda connection, after=after_id: producers.read_idle(  # type: ignore[misc]
                    connection, before_ms, after
                )
            )
            unheld = self._registry.producers.forget(idle, self._registry.active.values())
            if unheld:
                await self._transact(
                    lambda connection, ids=unheld: producers.forget(  # type: ignore[misc]
                        connection, ids, before_ms
                    )
                )
            if not after_id:
                return
