"""The generations of a log: which exist, how the next one begins, and how the oldest is dropped.

A *generation* is a set of tables (storage/log/generation.py). New rows go into the *current* one,
the newest. A generation that is *going* has no new readers, and its tables are being dropped, or
emptied if they belong to a table set. A mark in the table ``removals`` makes the next start of the
broker continue this. The collections of generations here are tuples that are replaced and never
changed. So a reader keeps the generations that it began with.

Each bundle of topics has its own generations, which only its owner creates and drops. Their ids are
unique in the database (storage/bundles.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self, TypeVar

from escapement.errors import NotFound, StorageError
from escapement.storage import bundles, removal
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.mysql.errors import lacks_right
from escapement.storage.lease import Lease, as_owner
from escapement.storage.log import table_sets
from escapement.storage.log.generation import (
    Generation,
    create,
    enter,
    read_generations,
    strike,
)

T = TypeVar("T")


class Generations:
    """The generations of a log in memory: the existing ones, and those that are going."""

    def __init__(self, generations: Sequence[Generation], going: Sequence[Generation] = ()) -> None:
        assert generations, "a log has a generation from its first opening on"
        self._generations = tuple(generations)
        self._going = tuple(going)

    @classmethod
    def open(
        cls, engine: Engine, connection: Connection, lease: Lease, parallelism: int, now_ms: int
    ) -> Self:
        """Load the generations of a bundle for its owner. Create the first one if it has none.

        Args:
          parallelism: the number of tables of a generation that is created.
        """
        generations, gone = _stored(connection, lease.bundle_id)
        if not generations:
            generations = [_make(engine, connection, lease, parallelism, now_ms)]
        return cls(generations, gone)

    @classmethod
    def look(cls, connection: Connection, bundle_id: int | None = None) -> Self:
        """Load the generations for a reader. Raises ``NotFound`` if the log has none.

        Args:
          bundle_id: the bundle of the topics to read. None for all bundles: then a read of a topic
            also looks at generations of other bundles, which have no rows of it.
        """
        generations, gone = _stored(connection, bundle_id)
        if not generations:
            raise NotFound("The database has no log yet. Start a broker on it first.")
        return cls(generations, gone)

    @classmethod
    def reading(
        cls, connection: Connection, read: Callable[[Self], T], bundle_id: int | None = None
    ) -> T:
        """Load the generations, call ``read`` with them, and return its result.

        If a generation is deleted meanwhile, load them and call it again. This is for readers other
        than the broker, outside of a snapshot.

        Args:
          bundle_id: as for :meth:`look`.

        Raises:
          NotFound: if the log has no generation.
          StorageError: if ``read`` raises it for another reason.
        """
        now = cls.look(connection, bundle_id)
        while True:
            try:
                found = read(now)
            except StorageError as error:
                now = now.looked_again(connection, error, bundle_id)
                continue
            # The rows of a generation whose tables are not dropped vanish without an error.
            again = cls.look(connection, bundle_id)
            if again.has_all_of(now):
                return found
            now = again

    def looked_again(
        self, connection: Connection, error: StorageError, bundle_id: int | None = None
    ) -> Self:
        """Load the generations again, after a read failed because one was dropped.

        Args:
          error: the error of the read.
          bundle_id: the bundle with which these generations were loaded.

        Raises:
          StorageError: ``error``, if all of these generations are still there.
        """
        if type(error) is not StorageError:
            raise error
        now = self.look(connection, bundle_id)
        if now.has_all_of(self):
            raise error
        return now

    def has_all_of(self, before: Generations) -> bool:
        """Return whether no generation was dropped since ``before`` was loaded."""
        there = {one.id for one in self._generations}
        return all(one.id in there for one in before.generations)

    @property
    def generations(self) -> tuple[Generation, ...]:
        return self._generations

    @property
    def current(self) -> Generation:
        """The generation into which new rows go."""
        return self._generations[-1]

    @property
    def going(self) -> tuple[Generation, ...]:
        """The generations without new readers, whose tables are to be dropped."""
        return self._going

    def retire(self, generation: Generation) -> None:
        """Declare the oldest generation as going. Reads that use it already may finish."""
        assert generation.id == self._generations[0].id != self.current.id
        self._going = (*self._going, generation)
        self._generations = self._generations[1:]

    def forget(self, generation: Generation) -> None:
        """Remove a going generation, after its tables were dropped."""
        self._going = tuple(one for one in self._going if one.id != generation.id)

    def prepare(
        self, engine: Engine, connection: Connection, lease: Lease, parallelism: int, now_ms: int
    ) -> tuple[Generation, list[Generation]]:
        """Create the next generation in the database. Blocking, outside of a transaction.

        Afterwards, pass the result to :meth:`begin` in the event loop's thread. The new generation
        is marked as going while its tables are created. So if a crash or a lost reply to a COMMIT
        leaves it incomplete, it is dropped like any other going generation.

        Returns:
          The new generation, and the incomplete ones of earlier failed attempts, which are going.
        """
        there = read_generations(connection, lease.bundle_id)
        # Their table sets become free again, so these generations have none.
        given_up = [replace(one, table_set=0) for one in there if one.id > self.current.id]
        return _make(engine, connection, lease, parallelism, now_ms, given_up), given_up

    def begin(self, generation: Generation, given_up: Sequence[Generation] = ()) -> None:
        """Make a generation the current one, for group commits that begin from now on.

        Args:
          given_up: the incomplete generations that :meth:`prepare` returned.
        """
        assert generation.id > self.current.id
        known = {one.id for one in self._going}
        self._going = (*self._going, *(one for one in given_up if one.id not in known))
        self._generations = (*self._generations, generation)

    def wrote(self, size_bytes: int) -> None:
        """Add the size of a group commit's log rows to the current generation, in memory.

        The next checkpoint stores the sum.
        """
        current = self.current
        grown = replace(current, size_bytes=current.size_bytes + size_bytes)
        self._generations = (*self._generations[:-1], grown)


def _stored(
    connection: Connection, bundle_id: int | None
) -> tuple[list[Generation], list[Generation]]:
    """Read the catalog. Return the existing generations and the going ones, each oldest first."""
    going = set(removal.marked(connection, "generation"))
    there: list[Generation] = []
    gone: list[Generation] = []
    for generation in read_generations(connection, bundle_id):
        (gone if generation.id in going else there).append(generation)
    return there, gone


def _make(
    engine: Engine,
    connection: Connection,
    lease: Lease,
    parallelism: int,
    now_ms: int,
    given_up: Sequence[Generation] = (),
) -> Generation:
    """Create a generation: mark it as going, create its tables, and remove the mark.

    If the broker may not create tables, the generation takes a free table set.

    Args:
      given_up: incomplete generations to mark as going, too. Nothing was written to them, so a
        table set that one of them took is free at once.

    Raises:
      LeaseLost: if another broker has taken the lease.
      MissingRight: if the broker may not create tables, and no table set is free.
    """
    with as_owner(engine, connection, lease):
        id = bundles.next_generation(connection, engine.dialect)
        new = Generation(id, parallelism, now_ms, 0, bundle_id=lease.bundle_id)
        for one in (*given_up, new):
            removal.mark(connection, "generation", one.id, one.bundle_id)
        for one in given_up:
            table_sets.free(connection, one)
        enter(connection, new)
    try:
        create(engine, connection, new)
    except StorageError as error:
        if not lacks_right(error):
            raise
        with as_owner(engine, connection, lease):
            table_set = table_sets.take(connection, new)
            removal.done(connection, "generation", new.id)
            if table_set is None:
                strike(connection, new)
        if table_set is None:
            raise table_sets.none_free(new.parallelism, error) from error
        return replace(new, table_set=table_set)
    with as_owner(engine, connection, lease):
        removal.done(connection, "generation", new.id)
    return new
