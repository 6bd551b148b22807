"""The repair of a stopped broker: what can be derived from the log is mended, and nothing else.

The repair takes the lock of the data directory and the leases of all bundles of topics, as brokers
do. So no broker runs meanwhile. It mends these problems:

- A lost lease, or one with too low an epoch, is restored.
- If the log has messages beyond the end that the catalog names for the topic, the end is raised.
- A damaged or contradictory index in the data directory is deleted. The next start of the broker of
  its bundle builds it again.
- Files that nothing names are moved into a new folder of the data directory.

Rows of the log are never deleted. While the log itself is damaged, the index is kept too, because
it may have the only copy of a message.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from secrets import token_hex

from escapement.check.check import Check
from escapement.check.problem import OF_THE_INDEX, OF_THE_LOG, Problem, of_bundle
from escapement.clock import Clock, moment
from escapement.doctor.finding import Finding, Severity, notice
from escapement.pipeline.auditing.finding import Kind
from escapement.pipeline.rebuilding.held_lease import Renewal, held_lease
from escapement.storage import lease
from escapement.storage.bundles import bundle_count
from escapement.storage.catalog.catalog import read_topics
from escapement.storage.data_directory import DataDirectory
from escapement.storage.directory import sync_directory
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.index import DelayedIndex
from escapement.storage.index.segments.manifest import Mark
from escapement.storage.index.segments.writer import writing
from escapement.storage.journal import journal
from escapement.storage.lease import Identity
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
      LeaseHeld: if a broker owns a bundle.
      LeaseLost: if another broker took the lease because this process stood still.
      StorageError: if the database or the disk fails.
    """
    identity = Identity(directory.identity, "check --repair", directory.place)
    with closing(engine.connect()) as connection:
        require(connection)
        findings: list[Finding] = []
        bundles = range(bundle_count(connection))
        for bundle_id in bundles:
            mended = _mend_lease(engine, connection, identity, bundle_id)
            findings += [of_bundle(one, bundle_id, len(bundles)) for one in mended]
        with held_lease(engine, identity, clock, bundles) as renewal:
            check = Check(engine, directory.path, tell, identity.owner_id)
            renewal.during(check.run)
            renewal.at_once()
            tell("the repair")
            if check.spoilt:
                _mend_indexes(engine, renewal, check, directory)
            if check.orphans:
                aside = directory.path / f"set-aside-{moment(clock.now_ms()):%Y%m%dT%H%M%SZ}"
                _set_aside(check, aside)
    return findings + check.findings


def _mend_lease(
    engine: Engine, connection: Connection, identity: Identity, bundle_id: int
) -> list[Finding]:
    last_epoch = journal.last_epoch(connection, bundle_id)
    row = lease.look(engine, connection, bundle_id)
    if row is not None and row.epoch >= last_epoch:
        return []
    lease.restore(engine, connection, identity, last_epoch, bundle_id)
    lost = "was missing" if row is None else f"had epoch {row.epoch}"
    return [notice(Problem.LEASE, f"the lease {lost}", f"Mended: it has epoch {last_epoch} now.")]


def _mend_indexes(engine: Engine, renewal: Renewal, check: Check, directory: DataDirectory) -> None:
    """Raise the ends of topics, and delete spoilt indexes, unless the log is damaged.

    If an end is raised, the index of the bundle may lack the messages beyond the old end. It may
    also be in the data directory of another node. So a new mark of the last checkpoint makes any
    index of the bundle unusable.
    """
    if check.has(OF_THE_LOG):
        check.answer(OF_THE_INDEX, Severity.ERROR, _KEPT)
        return
    with renewal.connection.use() as connection:
        for bundle_id, held in renewal.leases.items() if check.ends else ():
            there = {topic.id for topic in read_topics(connection, bundle_id)}
            if ends := {id: end for id, end in check.ends.items() if id in there}:
                mark = Mark(token_hex(16), 1)
                raised = checkpoint.Checkpoint(mark=mark, next_offsets=ends)
                checkpoint.write(engine, connection, held, raised)
    check.answer({Kind.TOPIC_END}, Severity.NOTICE, "Mended: the end was raised.")
    for index in map(directory.index_of, sorted(check.spoilt)):
        with writing(index):
            if index.is_dir():
                DelayedIndex.discard(index)
                sync_directory(index)
    text = "Mended: the index was deleted. The next start of the broker builds it from the log."
    check.answer(OF_THE_INDEX, Severity.NOTICE, text)


def _set_aside(check: Check, aside: Path) -> None:
    """Move the orphaned files into a new folder, those of an index into a folder of its name."""
    with writing(aside):
        aside.mkdir()
        for path in check.orphans:
            if path.exists():
                to = aside / path.relative_to(aside.parent)
                to.parent.mkdir(exist_ok=True)
                path.rename(to)
                sync_directory(to.parent)
        sync_directory(aside)
    text = f"Mended: it is in {aside} now. Delete that folder when the broker works again."
    check.answer({Problem.FILES}, Severity.NOTICE, text)
