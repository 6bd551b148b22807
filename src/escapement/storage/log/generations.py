"""The generations of a log: which exist, how the next one begins, and how the oldest is dropped.

The set changes in single steps, and a reader keeps the generations it began with. A generation
that is *going* has no new readers; its tables are being dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self, TypeVar

from escapement.errors import NotFound, StorageError
from escapement.storage import removal
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.lease import Lease, as_owner
from escapement.storage.log.generation import Generation, create, enter, read_generations

T = TypeVar("T")


class Generations:
    """The existing generations, the current one for new rows, and those that are going."""

    def __init__(self, generations: Sequence[Generation], going: Sequence[Generation] = ()) -> None:
        assert generations, "a log has a generation from its first opening on"
        self._generations = tuple(generations)
        self._going = tuple(going)

    @classmethod
    def open(
        cls, engine: Engine, connection: Connection, lease: Lease, parallelism: int, now_ms: int
    ) -> Self:
        """Load the generations; the first owner of the database makes the first one."""
        generations, gone = _stored(connection)
        if not generations:
            found = gone
            new = Generation(found[-1].id + 1 if found else 1, parallelism, now_ms, 0)
            _make(engine, connection, lease, new)
            generations = [new]
        return cls(generations, gone)

    @classmethod
    def look(cls, connection: Connection) -> Self:
        """Load the generations to read them only. Raises ``NotFound`` if the log has none."""
        generations, gone = _stored(connection)
        if not generations:
            raise NotFound("The database has no log yet. Start a broker on it first.")
        return cls(generations, gone)

    @classmethod
    def reading(cls, connection: Connection, read: Callable[[Self], T]) -> T:
        """Return the result of ``read``; repeat it if the oldest generation is dropped meanwhile.

        For a reader that is not the broker, outside of a snapshot. Raises as :meth:`look` and
        ``read``.
        """
        now = cls.look(connection)
        while True:
            try:
                return read(now)
            except StorageError as error:
                now = now.looked_again(connection, error)

    def looked_again(self, connection: Connection, error: StorageError) -> Self:
        """Load the generations again, if a read failed because the oldest has been dropped.

        Raises:
          StorageError: ``error`` itself, if it has another cause.
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
        """The generation for new rows."""
        return self._generations[-1]

    @property
    def going(self) -> tuple[Generation, ...]:
        """The generations without new readers, whose tables are to be dropped."""
        return self._going

    def retire(self, generation: Generation) -> None:
        """Keep new readers out of the oldest generation; reads in progress may finish."""
        assert generation.id == self._generations[0].id != self.current.id
        self._going = (*self._going, generation)
        self._generations = self._generations[1:]

    def forget(self, generation: Generation) -> None:
        """Remove a generation that was going and whose tables are dropped."""
        self._going = tuple(one for one in self._going if one.id != generation.id)

    def prepare(
        self, engine: Engine, connection: Connection, lease: Lease, parallelism: int, now_ms: int
    ) -> tuple[Generation, list[Generation]]:
        """Create the next generation; blocking, outside of a transaction.

        Call :meth:`begin` afterwards in the event loop's thread, with what this returns: the new
        generation, and those of earlier failed attempts, which are going. The new generation is
        also marked as going while its tables are created. So whatever a crash, or a COMMIT without
        a reply, leaves of it is dropped like any other going generation.
        """
        there = read_generations(connection)
        given_up = [one for one in there if one.id > self.current.id]
        last_id = max(self.current.id, there[-1].id if there else 0)
        generation = Generation(last_id + 1, parallelism, now_ms, 0)
        _make(engine, connection, lease, generation, given_up)
        return generation, given_up

    def begin(self, generation: Generation, given_up: Sequence[Generation] = ()) -> None:
        """Write to this generation from the next group on; a group in progress uses the old one."""
        assert generation.id > self.current.id
        known = {one.id for one in self._going}
        self._going = (*self._going, *(one for one in given_up if one.id not in known))
        self._generations = (*self._generations, generation)

    def wrote(self, size_bytes: int) -> None:
        """Add the size of a group to the current generation; a checkpoint stores the sum."""
        current = self.current
        grown = replace(current, size_bytes=current.size_bytes + size_bytes)
        self._generations = (*self._generations[:-1], grown)


def _stored(connection: Connection) -> tuple[list[Generation], list[Generation]]:
    """Return the existing generations and those that are going, by id."""
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
) -> None:
    """Mark the generation as going, create its tables, remove the mark; requires the lease."""
    with as_owner(engine, connection, lease):
        for one in (*given_up, new):
            removal.mark(connection, "generation", one.id)
        enter(connection, new)
    create(engine, connection, new)
    with as_owner(engine, connection, lease):
        removal.done(connection, "generation", new.id)
