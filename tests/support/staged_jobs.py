"""Jobs for tests: what one attempt stages, in transactions of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from escapement.storage.engine.base import Connection, Engine
from escapement.storage.inbox import inbox, job, staged_batch
from escapement.storage.inbox.entry import InboxEntry
from escapement.storage.inbox.inbox import Step
from escapement.storage.inbox.job import Attempt, Counted, Job, Tally
from support.inbox_entries import inbox_entry

T = TypeVar("T")


def take_out(engine: Engine, connection: Connection, step: Step) -> None:
    """Have the letters of a step be moved, as a group commit does."""
    with transaction(connection):
        inbox.remove(connection, [one.id for one in step.inbox_entries if one.advance is None])
        advances = [one.advance for one in step.inbox_entries if one.advance is not None]
        last = list({one.staged_batch_id: one for one in advances}.values())
        staged_batch.advance(engine.dialect, connection, last)
        staged_batch.settle(engine.dialect, connection, step.emptied)


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


def stage_entries(
    engine: Engine,
    connection: Connection,
    to: Job,
    part: int,
    name: str,
    inbox_entries: Sequence[InboxEntry],
    each: Callable[[], None] = lambda: None,
) -> Counted:
    """Stage these, one in a transaction, as an attempt; ``each`` is called behind each."""
    tallies: dict[str, Tally] = {}
    for one in inbox_entries:
        before = tallies.get(one.target, Tally(0, 0, 0))
        tallies[one.target] = Tally(
            before.inbox_entries + 1,
            before.messages + one.count,
            before.size_bytes + one.size_bytes,
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
    inbox_entries = [inbox_entry(target, f"{n}", payload) for n, payload in enumerate(payloads)]
    return stage_entries(engine, connection, to, part, name, inbox_entries)


def commit(engine: Engine, connection: Connection, to: Job, *counted: Counted) -> bool:
    """Commit a job with these attempts."""
    with transaction(connection):
        return job.commit(engine, connection, to, counted)
