"""Recovery: from the stored state to a broker that serves.

1. Read the catalog, the bitmaps and the attempts of the last checkpoint.
2. Open the index, if its manifest, the file that describes it, fits this log and the last
   checkpoint. Otherwise discard it, and read the whole log again.
3. Replay the journal behind the checkpoint: acknowledgements, attempts, producers. The journal
   names the log rows that the index lacks. ``Topic.recover`` adds the messages of each row, as a
   live group commit does.

This module does the first two steps, and :mod:`~escapement.broker.recovery.replay` the third.
Replaying a journal entry that the state already contains changes nothing, so the checkpoint may be
newer than the manifest. The cost depends on the log since the last checkpoint, not on the number of
pending messages (B5).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from escapement.errors import IndexDamaged
from escapement.event_log import EventLog
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.index import DelayedIndex, IndexLimits
from escapement.storage.index.segments.manifest import Manifest
from escapement.storage.journal import journal
from escapement.storage.journal.journal import JournalPosition
from escapement.storage.journal.tail import JournalTail
from escapement.storage.lease import Lease
from escapement.storage.log.log import Log
from escapement.storage.log.log_table import LogRow, RowKey
from escapement.storage.state.lag_table import Ends, read_ends
from escapement.storage.state.state import State, fits, load_state

_log = EventLog(__name__)

# The most bytes of log rows read at once: a few group commits.
_STEP_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Ground:
    """The stored state that a broker starts from, as read from the database and the index."""

    connection: Connection
    log: Log
    state: State
    log_identity: str
    tail: JournalTail
    lag_ends: Ends  # up to where in the journal the stored lag statistics reach
    index: DelayedIndex
    # By lane, up to where in the journal the index has the messages; empty if the index is empty.
    index_positions: dict[int, JournalPosition]
    # Whether the whole log must be read, because no usable index exists. The broker does so while
    # it serves (broker/upkeep/backfiller.py).
    rebuild: bool

    def missing(self) -> Iterator[list[LogRow]]:
        """Return the log rows of the journal that the index lacks, in bounded steps. Blocking."""
        return self.log.read_rows(self.connection, self._missing_keys(), _STEP_BYTES)

    def _missing_keys(self) -> Iterator[RowKey]:
        # Leave out topics that were deleted since: their rows may be freed already.
        there = {topic.id for topic in self.state.topics}
        for row in self.tail.rows:
            known = self.index_positions.get(row.lane)
            if known is None or row.position.seq > known.seq:
                yield from (key for key in row.entry.rows if key.topic_id in there)


def survey(
    engine: Engine,
    lease: Lease,
    directory: Path,
    limits: IndexLimits,
    parallelism: int,
    now_ms: int,
) -> Ground:
    """Read the stored state. Blocking. The caller closes the connection when recovery has ended."""
    connection = engine.connect()
    try:
        log = Log.open(engine, connection, lease, parallelism, now_ms)
        state = load_state(connection, lease.bundle_id)
        tail = JournalTail(list(journal.read(connection, lease.bundle_id)))
        lag_ends = read_ends(connection, tail.rows)
        identity = state.log_identity.hex()
        index = _open_index(directory, limits)
        manifest = index.manifest
        positions: dict[int, JournalPosition] = {}
        if manifest is not None:
            if fits(connection, lease.bundle_id, manifest):
                positions = {n: JournalPosition(*at) for n, at in manifest.positions.items()}
            else:
                _report_unusable(manifest, identity, lease)
                index, manifest = _fresh_index(directory, limits), None
        # Without a usable index, all log rows are needed. The journal names all of them only if no
        # checkpoint has ever trimmed it.
        rebuild = manifest is None and any(at.seq for at in state.trims.values())
        return Ground(connection, log, state, identity, tail, lag_ends, index, positions, rebuild)
    except BaseException:
        connection.close()
        raise


def _report_unusable(manifest: Manifest, log_identity: str, lease: Lease) -> None:
    """Report an index that does not fit the database. It does no harm if bundles moved."""
    other_had_it = lease.former_owner_id not in ("", lease.identity.owner_id)
    if other_had_it and manifest.log_identity == log_identity:
        _log.info(
            "index.outdated",
            "another broker owned the bundle since this index was written; replacing the index",
        )
        return
    _log.warning(
        "index.foreign",
        "the delayed index belongs to another log or to another time of this log, or it was not"
        " filled to its end; rebuilding it",
    )


def _open_index(directory: Path, limits: IndexLimits) -> DelayedIndex:
    try:
        return DelayedIndex.open(directory, limits)
    except IndexDamaged as error:
        _log.error(
            "index.damaged", "the delayed index is damaged; rebuilding it from the log: %s", error
        )
        return _fresh_index(directory, limits)


def _fresh_index(directory: Path, limits: IndexLimits) -> DelayedIndex:
    DelayedIndex.discard(directory)
    return DelayedIndex.open(directory, limits)
