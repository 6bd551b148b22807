"""Checks of the database without messages: lease, journal, log tables, keys, catalog, orphans.

A broker may change the database meanwhile. So each check reads one snapshot. The list of the tables
that exist is in no snapshot. It counts only if it is the same twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from typing import Final

from escapement.check.problem import Problem, problem
from escapement.doctor.finding import Finding, notice, ok
from escapement.errors import LogDamaged, StorageError, StorageUnavailable
from escapement.message import Buffer
from escapement.pipeline.auditing.finding import Kind
from escapement.storage import lease, removal
from escapement.storage.catalog.catalog import read_namespaces, read_subscriptions, read_topics
from escapement.storage.cleanup.freeing import OF_TOPICS
from escapement.storage.data_table import DEDUP_KEYS, REPLACE_KEYS, DataTable
from escapement.storage.encoding.dedup_keys import decode_keys
from escapement.storage.encoding.replace_keys import decode_replace_keys
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.journal import journal
from escapement.storage.journal.entry import cancellations_id, lapses_id
from escapement.storage.log import table_sets
from escapement.storage.log.generation import existing_tables, read_generations
from escapement.storage.log.log import Log

# How often a check is repeated if the log drops a generation meanwhile.
_TRIES: Final = 5
# At most this many ids are named in a finding.
_NAMED_IDS: Final = 5
_LEAST_ID: Final = -(1 << 63)
# The tables of keys that a start reads, and the function that decodes a row.
_KEYS: Final[dict[DataTable, Callable[[Buffer], object]]] = {
    DEDUP_KEYS: decode_keys,
    REPLACE_KEYS: decode_replace_keys,
}


def check_lease(
    engine: Engine, connection: Connection, owner_id: str, bundle_id: int = 0
) -> Iterator[Finding]:
    """Check the lease of a bundle, and say who has it.

    Args:
      owner_id: the identity of this process if it has taken the lease itself, else "".
    """
    last_epoch = journal.last_epoch(connection, bundle_id)
    row = lease.look(engine, connection, bundle_id)
    if row is None:
        yield problem(Problem.LEASE, "the row of the lease is missing, so no broker can start")
        return
    if row.epoch < last_epoch:
        yield problem(
            Problem.LEASE,
            f"the lease has epoch {row.epoch}, but the journal has epoch {last_epoch} already: a"
            " start would replay the journal in the wrong order",
        )
    if owner_id and row.owner_id == owner_id:
        return
    if row.left_ms > 0:
        yield ok(Problem.LEASE, f"broker {row.owner_name} owns the log, with epoch {row.epoch}")
    elif row.clean:
        yield ok(Problem.LEASE, f"no broker owns the log; the last epoch is {row.epoch}")
    else:
        yield notice(
            Problem.LEASE,
            f"broker {row.owner_name} did not stop cleanly; the next start recovers its state",
        )


def check_journal(connection: Connection, bundle_id: int = 0) -> list[Finding]:
    """Check that all entries of a bundle's journal decode and that none is missing."""
    connection.snapshot()
    try:
        count = sum(1 for _ in journal.read(connection, bundle_id))
    except LogDamaged as damage:
        return [problem(Problem.JOURNAL, str(damage))]
    finally:
        connection.rollback()
    return [ok(Problem.JOURNAL, f"{count:,} entries since the last checkpoint")]


def check_tables(engine: Engine, connection: Connection) -> list[Finding]:
    """Compare the tables of the log with the generations that the catalog names."""
    found = _tables(engine, connection)
    if any(found):
        again = _tables(engine, connection)
        found = (found[0] & again[0], found[1] & again[1])
    missing, unknown = found
    findings = [
        problem(Problem.LOG_TABLES, f"the catalog names table {table}, which does not exist")
        for table in sorted(missing)
    ]
    findings += [
        problem(
            Problem.ROWS,
            f"table {table} has the form of a log table, and the catalog does not name it",
        )
        for table in sorted(unknown)
    ]
    if not missing:
        count = len(read_generations(connection))
        findings.append(ok(Problem.LOG_TABLES, f"all tables exist; generations: {count}"))
    return findings


def _tables(engine: Engine, connection: Connection) -> tuple[Set[str], Set[str]]:
    """Return the log tables that are missing, and those that the catalog does not name."""
    there = existing_tables(engine, connection)
    going = set(removal.marked(connection, "generation"))
    generations = read_generations(connection)
    named = {table for one in generations for table in one.tables} | table_sets.names(connection)
    needed = {table for one in generations if one.id not in going for table in one.tables}
    return needed - there, there - named


def check_keys(connection: Connection) -> Iterator[Finding]:
    """Check that the dedup keys and replace keys of topics decode, without which no broker starts.

    Each row is read and decoded by itself, so this needs no snapshot.
    """
    for table, decode in _KEYS.items():
        for topic_id, part, data in table.rows(connection):
            try:
                decode(data)
            except LogDamaged as damage:
                text = f"{table.name}, part {part} of topic {topic_id}: {damage}"
                yield problem(Kind.STATE, text)


def check_owners(connection: Connection) -> list[Finding]:
    """Check that the namespace, topic or subscription of each row exists, or is being deleted."""
    for left in reversed(range(_TRIES)):
        connection.snapshot()
        try:
            return list(_orphans(connection))
        except StorageError as failure:
            # The log may have dropped a table of the snapshot.
            if isinstance(failure, StorageUnavailable) or not left:
                raise
        finally:
            connection.rollback()
    raise AssertionError("unreachable")


def _orphans(connection: Connection) -> Iterator[Finding]:
    namespaces = {one.id for one in read_namespaces(connection)}
    of_topics = {one.id: one.namespace_id for one in read_topics(connection, None)}
    of_subscriptions = {one.id: one.topic_id for one in read_subscriptions(connection)}
    for what, owner, owners, there in (
        ("topic", "namespace", of_topics, namespaces),
        ("subscription", "topic", of_subscriptions, of_topics.keys()),
    ):
        lost = sorted(id for id, owner_id in owners.items() if owner_id not in there)
        if lost:
            text = f"{len(lost):,} {what}s have no {owner}: {what} {_ids(lost)}"
            yield problem(Problem.CATALOG, text)
    topics = of_topics.keys() | set(removal.marked(connection, "topic"))
    subscriptions = of_subscriptions.keys() | set(removal.marked(connection, "subscription"))
    log = {table: "topic_id" for one in Log.look(connection).generations for table in one.tables}
    for table in (*log, *OF_TOPICS):
        lost = [id for id in _owners(connection, table, "topic_id") if id not in topics]
        if lost:
            yield problem(Problem.ROWS, f"{table} has rows of unknown topics: {_ids(lost)}")
    for table in ("cursor_chunks", "attempts"):
        lost = []
        for id in _owners(connection, table, "subscription_id"):
            if id < 0:
                known = cancellations_id(id) in topics
            else:
                known = id in subscriptions or lapses_id(id) in subscriptions
            if not known:
                lost.append(id)
        if lost:
            yield problem(Problem.ROWS, f"{table} has rows of unknown subscriptions: {_ids(lost)}")


def _owners(connection: Connection, table: str, column: str) -> Iterator[int]:
    """Yield the different values of a column with an index, by one search for each."""
    at = _LEAST_ID
    while True:
        (found,) = connection.execute(
            f"SELECT MIN({column}) FROM {table} WHERE {column} > ?", (at,)
        ).rows[0]
        if found is None:
            return
        at = int(found)
        yield at


def _ids(ids: list[int]) -> str:
    more = len(ids) - _NAMED_IDS
    return ", ".join(map(str, ids[:_NAMED_IDS])) + (f" and {more:,} more" if more > 0 else "")
