"""Shared transactions: the group commits of several bundles in one transaction.

A process has a commit pipeline for each of its bundles. Each lane of a pipeline forms group commits
of its own, with their own journal rows. A COMMIT costs about the same for one group as for fifty.
So while some groups are being written, others wait here. The next free connection writes all that
wait in one transaction.

The rules for failures stay those of a lane (storage/commit/lane.py), which also has a connection of
its own (storage/commit/writer.py):

- **Nothing was sent, or the transaction is rolled back**: each lane writes its group alone. So a
  bundle whose lease is lost, or whose rows are locked, delays the others once, by the wait for one
  lock.
- **The connection is lost, or the reply to COMMIT.** Each lane gets the same error, and handles it
  as a loss of its own connection. Its next connection waits for the end of the transaction.

A group that runs statements, changes the inbox or moves staged batches is never shared, because
this takes longer and may wait for locks.

Before a connection writes the first group of a lane, it checks that the database has the last group
of the lane. The server may have been replaced by a replica that is behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakSet

import trio

from escapement.errors import LogDamaged, StorageError, StorageUnavailable
from escapement.event_log import EventLog
from escapement.storage import members
from escapement.storage.blocking import Run
from escapement.storage.commit.commit_wait import CommitWait
from escapement.storage.commit.group import Group
from escapement.storage.commit.writer import Writer, commit, insertions
from escapement.storage.engine.base import Connection, Engine, Step
from escapement.storage.journal import journal
from escapement.storage.lease import answer, question
from escapement.storage.members import Member

_log = EventLog(__name__)

# Limit of the memory of the groups in one transaction, but for the last one. The groups that are
# left wait for the next connection, which may be free already. Each bundle has one group at most.
_MOST_BYTES: Final = 4 << 20


class _NotSent(StorageError):
    """Raised if a connection sent nothing of a transaction."""


@dataclass(slots=True, eq=False)
class _Place:
    """A group in the queue or in a transaction, and what became of it."""

    writer: Writer
    group: Group
    stored: bool = False
    wait: CommitWait = field(default_factory=CommitWait)


class SharedWriter:
    """The shared transactions of one process. Call all methods in the event loop's thread.

    Args:
      run: makes the blocking calls.
      most_connections: limit of transactions that are written at the same time. The engine may have
        a lower limit.
      max_commits_per_second: limit for all of them together; None for no limit.
    """

    def __init__(
        self,
        engine: Engine,
        run: Run,
        most_connections: int,
        max_commits_per_second: float | None = None,
    ) -> None:
        self._engine = engine
        self._run = run
        self._count = max(1, min(most_connections, engine.max_lanes))
        self._interval_s = self._count / max_commits_per_second if max_commits_per_second else 0.0
        self._waiting: deque[_Place] = deque()
        self._wake = trio.Event()
        self._is_running = False

    async def write(self, writer: Writer, group: Group) -> bool:
        """Write a group of a lane in a shared transaction. Return whether it is stored.

        If not, nothing of it is stored, and the lane may write it alone at once. A cancellation
        waits for a transaction that has begun. A group that still waits for one leaves the queue.

        Raises:
          OutcomeUnknown: the COMMIT got no reply.
          StorageUnavailable, StorageReadOnly: try again later, alone.
        """
        assert group.can_share, "the group must be written alone"
        if not self._is_running:
            return False
        place = _Place(writer, group)
        self._waiting.append(place)
        self._wake.set()
        try:
            await place.wait.ended()
        except trio.Cancelled:
            if place in self._waiting:
                self._waiting.remove(place)
                raise
            with trio.CancelScope(shield=True):
                await place.wait.ended()
        return place.stored

    async def run(self, member: Member) -> None:
        """Write the groups that wait, until cancelled. Lanes then write their groups alone.

        Args:
          member: the process, whose row in the database lists the connections.
        """
        self._is_running = True
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(self._count):
                    nursery.start_soon(self._work, _SharedConnection(self._engine, member))
        finally:
            self._is_running = False
            while self._waiting:
                self._waiting.popleft().wait.end()

    async def _work(self, connection: _SharedConnection) -> None:
        try:
            while True:
                while not self._waiting:
                    if self._wake.is_set():  # otherwise another connection waits for it too
                        self._wake = trio.Event()
                    await self._wake.wait()
                places = self._take()
                started_s = trio.current_time()
                await self._write(connection, places)
                await trio.sleep_until(started_s + self._interval_s)
        finally:
            connection.close()

    def _take(self) -> list[_Place]:
        """Remove the groups of the next transaction from the queue: at least one."""
        taken: list[_Place] = []
        size = 0
        while self._waiting and size < _MOST_BYTES:
            taken.append(self._waiting.popleft())
            size += taken[-1].group.body_bytes
        return taken

    async def _write(self, connection: _SharedConnection, places: Sequence[_Place]) -> None:
        """Write groups in one transaction, and tell their lanes what became of them."""
        stored, lost = False, None
        try:
            await self._run(connection.write, places)
            stored = True
        except StorageUnavailable as error:
            lost = error
        except StorageError as error:
            _log.debug(
                "commit.not_shared", "%d groups are written one by one: %s", len(places), error
            )
        finally:
            for place in places:
                place.stored = stored
                place.wait.end(lost)


class _SharedConnection:
    """A connection for shared transactions. All methods block; one thread calls them at a time."""

    def __init__(self, engine: Engine, member: Member) -> None:
        self._engine = engine
        self._member = member
        self._connection: Connection | None = None
        self.lost_id = 0  # of the last connection that was closed; 0: none
        # The lanes whose last group is in the database of the connection.
        self._known: WeakSet[Writer] = WeakSet()

    def write(self, places: Sequence[_Place]) -> None:
        """Write groups in one transaction and commit it.

        Raises:
          OutcomeUnknown: the COMMIT got no reply.
          StorageUnavailable, StorageReadOnly: nothing is stored.
          StorageError: nothing is stored, for another reason.
        """
        try:
            self._transact(self._prepared({place.writer for place in places}), places)
        except StorageUnavailable:
            self._lose(places)
            raise
        except BaseException:
            if self._connection is not None:
                self._connection.rollback()
                # After two lock timeouts the engine has closed it, and the server may still be
                # working on statements that were sent before.
                if self._connection.ended:
                    self._lose(places)
            raise

    def _lose(self, places: Sequence[_Place]) -> None:
        """Close the connection. The lanes, which do nothing meanwhile, wait for its end later.

        This waits for a lock that another thread holds during a transaction, so it is done here and
        not in the event loop.
        """
        self.close()
        for place in places:
            place.writer.lost(self.lost_id)

    def close(self) -> None:
        """Close the connection, if there is one. The server rolls back its open transaction."""
        self._known.clear()
        if self._connection is not None:
            self.lost_id = self._connection.id
            self._connection.close()
            self._connection = None

    def _prepared(self, writers: set[Writer]) -> Connection:
        """Return a connection to a database that has the last group of each of these lanes.

        Raises:
          StorageUnavailable: if the database lacks one, and the connection is closed. The lanes
            connect again, which shows whether it is lost.
          _NotSent: if the database cannot be reached for another reason.
        """
        try:
            connection = self._connection or self._connect()
            if new := writers.difference(self._known):
                connection.snapshot()  # a checkpoint may trim the journal between two reads
                for writer in new:
                    bundle_id, last = writer.lease.bundle_id, {writer.lane: writer.last}
                    journal.require(connection, bundle_id, last)
                connection.rollback()
                self._known.update(new)
            return connection
        except LogDamaged as error:
            self.close()
            raise StorageUnavailable(str(error)) from error
        except StorageError as error:
            self.close()
            raise _NotSent(str(error)) from error

    def _connect(self) -> Connection:
        connection = self._connection = self._engine.connect()
        members.record(self._engine, connection, self._member, members.ALL_BUNDLES, [self.lost_id])
        return connection

    def _transact(self, connection: Connection, places: Sequence[_Place]) -> None:
        """Check the leases and insert the rows of all groups, sent together. Then commit.

        The leases are locked in the order of their bundles, like the rows of one statement.
        """
        leases = {place.writer.lease.bundle_id: place.writer.lease for place in places}
        held = [lease for _, lease in sorted(leases.items())]
        questions = [question(lease, self._engine.dialect.share_lock) for lease in held]
        steps = [step for place in places for step in insertions(place.writer.lease, place.group)]
        connection.begin()
        found = connection.execute_all([*questions, *_merged(steps)])
        if len(found) < len(held):
            raise StorageError("the table leases lacks the row of a bundle")
        for lease, row in zip(held, found, strict=True):
            answer(lease, [row])
        commit(connection, [place.group for place in places])
        for place in places:
            place.writer.last = place.group.position


def _merged(steps: Sequence[Step]) -> list[Step]:
    """Return the same insertions, with one step for each table."""
    rows: dict[str, list[Sequence[object]]] = {}
    for step in steps:
        rows.setdefault(step.sql, []).extend(step.rows)
    return [Step(sql, some) for sql, some in rows.items()]
