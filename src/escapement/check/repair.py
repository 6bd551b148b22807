"""The repair of a stopped broker: what can be derived from the log is mended, and nothing else.

The repair takes the lock of the data directory and the lease, as a broker does. So no broker runs
meanwhile. It mends these problems:

- A lost lease, or one with too low an epoch, is restored.
- If the log has messages beyond the end that the catalog names for the topic, the end is raised.
- A damaged or contradictory index is deleted. The next start of the broker builds it again.
- Files that nothing names are moved into a new folder of the data directory.

Rows of the log are never deleted. While the log itself is damaged, the index is kept too, because
it may have the only copy of a message.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from escapement.check.check import Check
from escapement.check.problem import OF_THE_INDEX, OF_THE_LOG, Problem
from escapement.clock import Clock, moment
from escapement.doctor.finding import Finding, Severity, notice
from escapement.errors import InvalidRequest
from escapement.pipeline.auditing.finding import Kind
from escapement.pipeline.rebuilding.held_lease import held_lease
from escapement.storage import lease
from escapement.storage.bundles import bundle_count
from escapement.storage.data_directory import DataDirectory
from escapement.storage.directory import sync_directory
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.index import DelayedIndex
from escapement.storage.index.segments.writer import writing
from escapement.storage.journal import journal
from escapement.storage.lease import Identity, Lease
from escapement.storage.schema import require
from escapement.storage.state import checkpoint

_KEPT = (
    "The index was kept, because the log is damaged and the index may have the only copy of a"
    " message. Restore the database from a backup first."
)


def repair(
    engine: Engine, directory: DataDirectory, clock: Clock, tell: Callable[[str], None]
) -> list[Finding]:
    """Check a stopped broker and mend it; blocking. Return the findings. Mended ones are notices.

    Raises:
      InvalidRequest: if the database has several bundles.
      LeaseHeld: if a broker owns the log.
      LeaseLost: if another broker took the lease because this process stood still.
      StorageError: if the database or the disk fails.
    """
    identity = Identity(directory.identity, "check --repair", directory.place)
    with closing(engine.connect()) as connection:
        require(connection)
        if bundle_count(connection) > 1:
            raise InvalidRequest(
                "The database has several bundles of topics, and --repair mends a database with one"
                " only. Run the check without --repair."
            )
        findings = _mend_lease(engine, connection, identity)
        with held_lease(engine, identity, clock) as renewal:
            check = Check(engine, directory.path, tell, identity.owner_id)
            renewal.during(check.run)
            renewal.at_once()
            tell("the repair")
            if check.has(OF_THE_INDEX | {Kind.TOPIC_END}):
                _mend_index(engine, connection, renewal.held, check, directory.index)
            if check.orphans:
                aside = directory.path / f"set-aside-{moment(clock.now_ms()):%Y%m%dT%H%M%SZ}"
                _set_aside(check, aside)
    return findings + check.findings


def _mend_lease(engine: Engine, connection: Connection, identity: Identity) -> list[Finding]:
    last_epoch = journal.last_epoch(connection, 0)
    row = lease.look(engine, connection)
    if row is not None and row.epoch >= last_epoch:
        return []
    lease.restore(engine, connection, identity, last_epoch)
    lost = "was missing" if row is None else f"had epoch {row.epoch}"
    return [notice(Problem.LEASE, f"the lease {lost}", f"Mended: it has epoch {last_epoch} now.")]


def _mend_index(
    engine: Engine, connection: Connection, held: Lease, check: Check, index: Path
) -> None:
    """Raise the ends of topics, and delete the index, unless the log is damaged.

    If an end is raised, the index may lack the messages beyond the old end.
    """
    if check.has(OF_THE_LOG):
        check.answer(OF_THE_INDEX, Severity.ERROR, _KEPT)
        return
    if check.ends:
        ends = checkpoint.Checkpoint(next_offsets=check.ends)
        checkpoint.write(engine, connection, held, ends)
        check.answer({Kind.TOPIC_END}, Severity.NOTICE, "Mended: the end was raised.")
    with writing(index):
        if index.is_dir():
            DelayedIndex.discard(index)
            sync_directory(index)
    text = "Mended: the index was deleted. The next start of the broker builds it from the log."
    check.answer(OF_THE_INDEX, Severity.NOTICE, text)


def _set_aside(check: Check, aside: Path) -> None:
    """Move the orphaned files into a new folder."""
    with writing(aside):
        aside.mkdir()
        for path in check.orphans:
            if path.exists():
                path.rename(aside / path.name)
        sync_directory(aside)
    text = f"Mended: it is in {aside} now. Delete that folder when the broker works again."
    check.answer({Problem.FILES}, Severity.NOTICE, text)
