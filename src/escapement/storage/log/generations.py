"""The generations of a log: which exist, how the next one begins, and how the oldest is dropped.

A *generation* is a set of tables (storage/log/generation.py). New rows go into the *current* one,
the newest. A generation that is *going* has no new readers, and its tables are being dropped, or
emptied if they belong to a table set. A mark in the table ``removals`` makes the next start of the
broker continue this. The collections of generations here are tuples that are replaced and never
changed. So a reader keeps the generations that it began with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self, TypeVar

from escapement.errors import NotFound, StorageError
from escapement.storage import removal
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
        """Load the generations for a broker. Create the first one if the log has none.

        Args:
          parallelism: the number of tables of a generation that is created.
        """
        generations, gone = _stored(connection)
        if not generations:
            found = gone
            new = Generation(found[-1].id + 1 if found else 1, parallelism, now_ms, 0)
            generations = [_make(engine, connection, lease, new)]
        return cls(generations, gone)

    @classmethod
    def look(cls, connection: Connection) -> Self:
        """Load the generations for a reader. Raises ``NotFound`` if the log has none."""
        generations, gone = _stored(connection)
        if not generations:
            raise NotFound("The database has no log yet. Start a broker on it first.")
        return cls(generations, gone)

    @classmethod
    def reading(cls, connection: Connection, read: Callable[[Self], T]) -> T:
        """Load the generations, call ``read`` with them, and return its result.

        If the oldest generation is deleted meanwhile, load them and call it again. This is for
        readers other than the broker, outside of a snapshot.

        Raises:
          NotFound: if the log has no generation.
          StorageError: if ``read`` raises it for another reason.
        """
        now = cls.look(connection)
        while True:
            try:
                found = read(now)
            except StorageError as error:
                now = now.looked_again(connection, error)
                continue
            # The rows of a generation whose tables are not dropped vanish without an error.
            again = cls.look(connection)
            if again.generations[0].id == now.generations[0].id:
                return found
            now = again

    def looked_again(self, connection: Connection, error: StorageError) -> Self:
        """Load the generations again, after a read failed because the oldest was dropped.

        Args:
          error: the error of the read.

        Raises:
          StorageError: ``error``, if the oldest generation is still the same.
        """
        if type(error) is not StorageError:
            raise error
        now = self.look(connection)
        if now.generations[0].id == self.generations[0].id:
            raise error
        return now

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
        there = read_generations(connection)
        # Their table sets become free again, so these generations have none.
        given_up = [replace(one, table_set=0) for one in there if one.id > self.current.id]
        last_id = max(self.current.id, there[-1].id if there else 0)
        generation = Generation(last_id + 1, parallelism, now_ms, 0)
        return _make(engine, connection, lease, generation, given_up), given_up

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


def _stored(connection: Connection) -> tuple[list[Generation], list[Generation]]:
    """Read the catalog. Return the existing generations and the going ones, each oldest first."""
    going = set(removal.marked(connection, "generation"))
    there: list[Generation] = []
    gone: list[Generation] = []
    for generation in read_generations(connection):
        (gone if generation.id in going else there).append(generation)
    return there, gone


def _make(
    engine: Engine,
    connection: Connection,
    lease: Lease,
    new: Generation,
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
        for one in (*given_up, new):
            removal.mark(connection, "generation", one.id)
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
