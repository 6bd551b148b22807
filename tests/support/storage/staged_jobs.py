"""Bulk jobs for tests, staged in transactions of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from escapement.storage.engine.base import Connection, Engine
from escapement.storage.inbox import inbox, job, staged_batch
from escapement.storage.inbox.entry import InboxEntry
from escapement.storage.inbox.inbox import Step
from escapement.storage.inbox.job import Attempt, Counted, Job, Tally
from support.storage.inbox_entries import inbox_entry

T = TypeVar("T")


def take_out(engine: Engine, connection: Connection, step: Step) -> None:
    """Remove the inbox entries of a step from the inbox, as a group commit does."""
    with transaction(connection):
        inbox.remove(connection, [one.id for one in step.inbox_entries if one.advance is None])
        advances = [one.advance for one in step.inbox_entries if one.advance is not None]
        last = list({one.staged_batch_id: one for one in advances}.values())
        staged_batch.advance(engine.dialect, connection, last)
        staged_batch.settle(engine.dialect, connection, step.emptied)


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """Commit at the end of the ``with`` block, or roll back if it fails."""
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
    """Stage inbox entries as an attempt, each in a transaction; call ``each`` after each."""
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
    """Stage an inbox entry for each payload."""
    inbox_entries = [inbox_entry(target, f"{n}", payload) for n, payload in enumerate(payloads)]
    return stage_entries(engine, connection, to, part, name, inbox_entries)


def commit(engine: Engine, connection: Connection, to: Job, *counted: Counted) -> bool:
    """Commit a job with these attempts."""
    with transaction(connection):
        return job.commit(engine, connection, to, counted)
