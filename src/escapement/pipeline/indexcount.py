"""A broker's delayed index, as it lies on disk, counted again beside the broker.

Only read, block by block, with all checksums. The broker may run: its checkpoints and
compactions replace the manifest, so whoever compares the index with the log looks at the log
between :meth:`IndexCount.open` and :meth:`IndexCount.unchanged`. Files stay open, also when
the broker deletes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from escapement.errors import IndexDamaged, InvalidRequest
from escapement.storage.engine.base import Connection
from escapement.storage.index.block import BlockCache
from escapement.storage.index.keys import Keys, is_sorted, merge
from escapement.storage.index.manifest import Manifest, ManifestFile, no_failpoint
from escapement.storage.index.segment import Segment
from escapement.storage.index.segments import Segments
from escapement.storage.journal import journal
from escapement.storage.log.logtable import RowKey
from escapement.storage.state import fits

# Each block is read once.
_CACHE_BYTES: Final = 4 << 20


class IndexCount:
    """See the module's docstring."""

    def __init__(self, directory: Path, manifest: Manifest | None, segments: Segments) -> None:
        self._directory = directory
        self._manifest = manifest
        self._segments = segments

    @classmethod
    def open(cls, data: Path) -> IndexCount:
        """That of the broker with this data directory; blocking.

        Raises:
          InvalidRequest: if there is none.
          IndexDamaged: if manifest or segments are not what was written.
        """
        directory = data / "index"
        if not directory.is_dir():
            raise InvalidRequest(f"there is no index of a broker in {data}")
        while True:
            manifest = ManifestFile(directory, no_failpoint).current
            named = {} if manifest is None else manifest.segments
            try:
                segments = Segments.open(directory, named, BlockCache(_CACHE_BYTES))
            except IndexDamaged:
                if ManifestFile(directory, no_failpoint).current == manifest:
                    raise
                continue  # merged away since
            return cls(directory, manifest, segments)

    def unchanged(self) -> bool:
        """Whether this is still the broker's index. Raises ``IndexDamaged``."""
        return ManifestFile(self._directory, no_failpoint).current == self._manifest

    def unindexed(self, connection: Connection, bundle_id: int) -> list[RowKey] | None:
        """The rows of the log that it does not have yet.

        None if it does not fit the log (storage/checkpoint.py): then a broker throws it away
        when it starts.
        """
        manifest = self._manifest
        if manifest is None:
            if any(at.seq for at in journal.trims(connection, bundle_id).values()):
                return None
        elif not fits(connection, bundle_id, manifest):
            return None
        positions = {} if manifest is None else manifest.positions
        after = {lane: seq for lane, (seq, _) in positions.items()}
        rows = journal.read(connection, bundle_id, after)
        return [key for row in rows for key in row.entry.rows]

    def check(self) -> Iterator[str]:
        """What is wrong with it by itself: every block is read, and its keys must ascend."""
        for segment in self._segments:
            try:
                for run in range(len(segment.run_rows)):
                    keys = segment.key_block(run).keys
                    if not is_sorted(*keys) or _ends(keys) != _said(segment, run):
                        yield f"{segment.path}: the keys of run {run} are not those it names"
                    segment.message_block(run)
                    segment.traits(run)
            except IndexDamaged as error:
                yield str(error)

    def keys(self, topic_id: int) -> Keys:
        """A topic's keys, sorted, each once. Raises ``IndexDamaged``."""
        return merge(
            [
                part.segment.key_block(run).keys
                for part in self._segments.of(topic_id)
                for run in part.runs
            ]
        )


def _ends(keys: Keys) -> tuple[int, ...]:
    due_ms, offsets = keys
    return int(due_ms[0]), int(offsets[0]), int(due_ms[-1]), int(offsets[-1])


def _said(segment: Segment, run: int) -> tuple[int, ...]:
    columns = (segment.first_ms, segment.first_offset, segment.last_ms, segment.last_offset)
    return tuple(int(column[run]) for column in columns)
