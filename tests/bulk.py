"""Jobs for tests: what one attempt stages, in transactions of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from escapement.storage.engine.base import Connection, Engine
from escapement.storage.letters import inbox, job, parcel
from escapement.storage.letters.inbox import Step
from escapement.storage.letters.job import Attempt, Counted, Job, Tally
from escapement.storage.letters.letter import Letter
from letters import letter

T = TypeVar("T")


def take_out(engine: Engine, connection: Connection, step: Step) -> None:
    """Have the letters of a step be moved, as a group commit does."""
    with transaction(connection):
        inbox.remove(connection, [one.id for one in step.letters if one.advance is None])
        advances = [one.advance for one in step.letters if one.advance is not None]
        last = list({one.parcel_id: one for one in advances}.values())
        parcel.advance(engine.dialect, connection, last)
        parcel.settle(engine.dialect, connection, step.emptied)


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """What is done inside is committed at the end, or rolled back."""
    connection.begin()
    try:
        yield
    except BaseException:
        connection.rollback()
        raise
    connection.commit()


def stage_letters(
    engine: Engine,
    connection: Connection,
    to: Job,
    part: int,
    name: str,
    letters: Sequence[Letter],
    each: Callable[[], None] = lambda: None,
) -> Counted:
    """Stage these, one in a transaction, as an attempt; ``each`` is called behind each."""
    tallies: dict[str, Tally] = {}
    for one in letters:
        before = tallies.get(one.target, Tally(0, 0, 0))
        tallies[one.target] = Tally(
            before.letters + 1, before.messages + one.count, before.size_bytes + one.size_bytes
        )
        with transaction(connection):
            job.stage(engine, connection, Attempt(to.id, part, name), [one], tallies)
        each()
    return Counted(part, name, sum(tally.messages for tally in tallies.values()))


def stage(
    engine: Engine,
    connection: Connection,
    to: Job,
    part: int,
    name: str,
    *payloads: bytes,
    target: str = "t/n/x",
) -> Counted:
    """Stage a letter for each of these payloads."""
    letters = [letter(target, f"{n}", payload) for n, payload in enumerate(payloads)]
    return stage_letters(engine, connection, to, part, name, letters)


def commit(engine: Engine, connection: Connection, to: Job, *counted: Counted) -> bool:
    """Commit a job with these attempts."""
    with transaction(connection):
        return job.commit(engine, connection, to, counted)
