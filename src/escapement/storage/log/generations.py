"""The generations of a log: which there are, how the next one comes, and how the oldest goes.

Which there are changes in single steps, and whoever reads meanwhile has what it began with.
A generation that is *going* is one that nobody begins to read; its tables are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Self, TypeVar

from escapement.errors import NotFound, StorageError
from escapement.storage import removal
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.transaction import transaction
from escapement.storage.lease import Lease, check
from escapement.storage.log.generation import Generation, create, enter, read_generations

T = TypeVar("T")


class Generations:
    """Which there are; of a broker, which rows go into, and which are going."""

    def __init__(self, generations: Sequence[Generation], going: Sequence[Generation] = ()) -> None:
        assert generations, "a log has a generation from its first opening on"
        self._generations = tuple(generations)
        self._going = tuple(going)

    @classmethod
    def open(
        cls, engine: Engine, connection: Connection, lease: Lease, parallelism: int, now_ms: int
    ) -> Self:
        """As the database has them; the first owner makes the first generation."""
        generations, gone = _stored(connection)
        if not generations:
            found = gone
            new = Generation(found[-1].id + 1 if found else 1, parallelism, now_ms, 0)
            _make(engine, connection, lease, new)
            generations = [new]
        return cls(generations, gone)

    @classmethod
    def look(cls, connection: Connection) -> Self:
        """As they are now, for who only reads. Raises ``NotFound`` before it has begun."""
        generations, gone = _stored(connection)
        if not generations:
            raise NotFound("the log has not begun: no broker has been started on this database")
        return cls(generations, gone)

    @classmethod
    def reading(cls, connection: Connection, read: Callable[[Self], T]) -> T:
        """What is read of them as they are now; once more, where the oldest goes meanwhile.

        For who only reads, outside of a snapshot. Raises as :meth:`look` and ``read``.
        """
        now = cls.look(connection)
        while True:
            try:
                return read(now)
            except StorageError as error:
                now = now.looked_again(connection, error)

    def looked_again(self, connection: Connection, error: StorageError) -> Self:
        """As they are now, if a read has failed because the oldest has gone since.

        Raises:
          StorageError: that error, if it is of another kind.
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
        """The one that new rows go into."""
        return self._generations[-1]

    @property
    def going(self) -> tuple[Generation, ...]:
        """Those that nobody reads any more, and whose tables are to be dropped."""
        return self._going

    def retire(self, generation: Generation) -> None:
        """Nobody reads the oldest generation from now on; reads under way still may."""
        assert generation.id == self._generations[0].id != self.current.id
        self._going = (*self._going, generation)
        self._generations = self._generations[1:]

    def forget(self, generation: Generation) -> None:
        """A generation that was going is gone."""
        self._going = tuple(one for one in self._going if one.id != generation.id)

    def prepare(
        self, engine: Engine, connection: Connection, lease: Lease, parallelism: int, now_ms: int
    ) -> tuple[Generation, list[Generation]]:
        """Make the next generation; blocking, outside of a transaction.

        :meth:`begin` follows, in the event loop's thread, with what this returns: the new
        generation, and those of earlier tries that were given up, which are going. While its
        tables are made it is going as well, so that whatever a crash, or a COMMIT without a
        reply, leaves of it is dropped as any other that nobody reads.
        """
        there = read_generations(connection)
        given_up = [one for one in there if one.id > self.current.id]
        last_id = max(self.current.id, there[-1].id if there else 0)
        generation = Generation(last_id + 1, parallelism, now_ms, 0)
        _make(engine, connection, lease, generation, given_up)
        return generation, given_up

    def begin(self, generation: Generation, given_up: Sequence[Generation] = ()) -> None:
        """From the next group on rows go there; a group under way ends in the old one."""
        assert generation.id > self.current.id
        known = {one.id for one in self._going}
        self._going = (*self._going, *(one for one in given_up if one.id not in known))
        self._generations = (*self._generations, generation)

    def wrote(self, size_bytes: int) -> None:
        """Count what a group added to the current generation; a checkpoint keeps the sum."""
        current = self.current
        grown = replace(current, size_bytes=current.size_bytes + size_bytes)
        self._generations = (*self._generations[:-1], grown)


def _stored(connection: Connection) -> tuple[list[Generation], list[Generation]]:
    """Those that are there, and those that are going; by id."""
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
    """Mark it as going, make its tables, take the mark away; by the owner alone."""
    with _as_owner(engine, connection, lease):
        for one in (*given_up, new):
            removal.mark(connection, "generation", one.id)
        enter(connection, new)
    create(engine, connection, new)
    with _as_owner(engine, connection, lease):
        removal.done(connection, "generation", new.id)


@contextmanager
def _as_owner(engine: Engine, connection: Connection, lease: Lease) -> Iterator[None]:
    with transaction(connection):
        check(engine, connection, lease)
        yield
