"""The audit of a broker's delayed index on disk.

The index is a set of immutable files, the *segments*. A segment has *runs* of consecutive keys,
where a key is a message's due time and offset, and a directory with the bounds of each run. The
*manifest* names the current segments and the positions in the journal that they cover.

The audit only reads the index, block by block, and checks all checksums. The broker may run
meanwhile. Its checkpoints and compactions replace the manifest. So the audit opens the index, reads
the log's states, and then asks :meth:`IndexCount.unchanged` whether both belong together. Open
segments stay readable when the broker deletes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from escapement.errors import IndexDamaged, InvalidRequest
from escapement.pipeline.selection import Span
from escapement.storage.data_directory import index_directory
from escapement.storage.engine.base import Connection
from escapement.storage.index.keys import Keys, is_sorted, merge
from escapement.storage.index.segments.block import BlockCache
from escapement.storage.index.segments.manifest import Manifest, ManifestFile
from escapement.storage.index.segments.segment import Segment
from escapement.storage.index.segments.segment_set import Segments
from escapement.storage.journal import journal
from escapement.storage.log.log_table import RowKey
from escapement.storage.state.state import fits

# The cache of blocks is small, because the audit does not read a block several times in a row.
_CACHE_BYTES: Final = 4 << 20


class IndexCount:
    """The index of one bundle, as one manifest describes it."""

    def __init__(
        self, directory: Path, manifest: Manifest | None, segments: Segments, bundle_id: int
    ) -> None:
        self.bundle_id = bundle_id
        self._directory = directory
        self._manifest = manifest
        self._segments = segments

    @classmethod
    def open(cls, data: Path, bundle_id: int = 0) -> IndexCount:
        """Open the index of a bundle in the data directory ``data``; blocking.

        Raises:
          InvalidRequest: if the directory has no index.
          IndexDamaged: if the manifest or a segment is damaged.
        """
        directory = index_directory(data, bundle_id)
        if not directory.is_dir():
            raise InvalidRequest(
                f"{data} has no index of a broker: give the data directory of the broker"
            )
        while True:
            manifest = ManifestFile(directory).current
            named = {} if manifest is None else manifest.segments
            try:
                segments = Segments.open(directory, named, BlockCache(_CACHE_BYTES))
            except IndexDamaged:
                if ManifestFile(directory).current == manifest:
                    raise
                continue  # a merge has replaced the manifest meanwhile
            return cls(directory, manifest, segments, bundle_id)

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def forgotten_until_ms(self) -> int:
        """The time up to which finished messages may be missing; 0 without a manifest."""
        return 0 if self._manifest is None else self._manifest.forgotten_until_ms

    def unchanged(self) -> bool:
        """Return whether the broker still has the same manifest. Raises ``IndexDamaged``."""
        return ManifestFile(self._directory).current == self._manifest

    def unindexed(self, connection: Connection) -> list[RowKey] | None:
        """Return the keys of the log rows that are not in the index yet.

        Returns None if the index does not fit the log (storage/state/state.py). A broker discards
        such an index when it starts. The database is read as of one moment: otherwise a checkpoint
        could trim the journal between two queries, and the newest index would seem not to fit.
        """
        connection.snapshot()
        try:
            return self._unindexed(connection)
        finally:
            connection.rollback()

    def _unindexed(self, connection: Connection) -> list[RowKey] | None:
        manifest, bundle_id = self._manifest, self.bundle_id
        if manifest is None:
            if any(at.seq for at in journal.trims(connection, bundle_id).values()):
                return None
        elif not fits(connection, bundle_id, manifest):
            return None
        positions = {} if manifest is None else manifest.positions
        after = {lane: seq for lane, (seq, _) in positions.items()}
        rows = journal.read(connection, bundle_id, after)
        return [key for row in rows for key in row.entry.rows]

    def check(self, tell: Callable[[str], None] = lambda text: None) -> Iterator[str]:
        """Read every block of the index, and yield a text about each defect.

        Args:
          tell: called with a text about the progress, once for each segment.
        """
        for number, segment in enumerate(self._segments, 1):
            tell(f"index segment {number} of {len(self._segments)}")
            try:
                for run in range(len(segment.run_rows)):
                    keys = segment.key_block(run).keys
                    if not is_sorted(*keys) or _bounds(keys) != _said(segment, run):
                        yield (
                            f"{segment.path}: the keys of run {run} do not ascend, or do not match"
                            " the bounds in the directory of the segment"
                        )
                    segment.message_block(run)
                    segment.traits(run)
            except IndexDamaged as error:
                yield str(error)

    def end_offset(self, topic_id: int) -> int:
        """Return the offset after the topic's highest one in the index, by the directories."""
        return max((part.offset_range[1] + 1 for part in self._segments.of(topic_id)), default=0)

    def keys(self, topic_id: int, span: Span) -> Keys:
        """Return the keys of a topic with offsets in a range, sorted, each once.

        Raises ``IndexDamaged``.
        """
        found = []
        for part in self._segments.of(topic_id):
            segment = part.segment
            for run in part.runs:
                if span.meets(int(segment.low_offset[run]), int(segment.high_offset[run])):
                    due_ms, offsets = segment.key_block(run).keys
                    inside = (offsets >= span.low) & (offsets < span.high)
                    found.append((due_ms[inside], offsets[inside]))
        return merge(found)


def _bounds(keys: Keys) -> tuple[int, ...]:
    due_ms, offsets = keys
    ends = (int(due_ms[0]), int(offsets[0]), int(due_ms[-1]), int(offsets[-1]))
    return (*ends, int(offsets.min()), int(offsets.max()))


def _said(segment: Segment, run: int) -> tuple[int, ...]:
    keys = (segment.first_ms, segment.first_offset, segment.last_ms, segment.last_offset)
    columns = (*keys, segment.low_offset, segment.high_offset)
    return tuple(int(column[run]) for column in columns)
