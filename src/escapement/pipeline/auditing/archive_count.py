"""The audit of an archive: its files exist, are intact, and have the recorded messages.

The database records the archived offsets of each topic, and manifests that name the files
(storage/archive_record.py). Each file must match its checksum. All files of a topic together must
have each archived offset exactly once. Tasks compute a digest of the offsets in the files, which
the driver compares with the digest of the recorded offsets. A contradiction is a *finding*, as
text.

This module does not use Spark.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

import numpy as np

from escapement.errors import EscapementError
from escapement.pipeline.archive_manifest import ArchivedFile
from escapement.pipeline.arrow import values_of
from escapement.pipeline.auditing.recount import Digest
from escapement.pipeline.selection import Selection
from escapement.pipeline.source.archived_reading import ArchivedPart, archived_parts, opened
from escapement.pipeline.source.part import stated_again
from escapement.storage import archive_record
from escapement.storage.engine.base import Connection
from escapement.storage.offsets import OffsetSet
from escapement.storage.state.topic_state import TopicState

_STEP_BYTES: Final = 8 << 20
# The range of offsets that is added to a digest in one step.
_AT_ONCE: Final = 1 << 20
_NONE: Final = np.zeros(0, np.int64)


@dataclass(slots=True)
class FileCount:
    """The result of reading some archive files of one topic."""

    topic: str
    found: Digest = field(default_factory=Digest)  # of the offsets in the files
    findings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class RecordedArchive:
    """The archived offsets and files of a topic, as the database records them at one moment."""

    archived: OffsetSet
    parts: list[ArchivedPart]

    @classmethod
    def look(cls, connection: Connection, topic: str, topic_id: int) -> RecordedArchive:
        """Read the topic's archive records from the database, in one snapshot."""
        connection.snapshot()
        try:
            parts = archived_parts(connection, topic, topic_id, Selection(), _NONE, None)
            return cls(archive_record.archived(connection, topic_id), parts)
        finally:
            connection.rollback()

    def forgotten(self, state: TopicState) -> int:
        """Return the number of the topic's messages that are neither in the log nor archived."""
        begin = state.begin_offset
        there = stated_again(state, 0, begin)
        there = there[~self.archived.contains(there)]
        return begin - self.archived.count_below(begin) - len(there)

    def held_against(self, state: TopicState, counted: list[FileCount]) -> list[str]:
        """Compare the records with the topic's log and with the counted files. Return findings."""
        findings = [what for one in counted for what in one.findings]
        behind = len(self.archived) - self.archived.count_below(state.end_offset)
        if behind:
            findings.append(f"{behind:,} archived offsets are beyond the end of the log")
        found = Digest()
        for one in counted:
            found += one.found
        if not findings and found != self._digest():
            findings.append(
                f"the archive does not have the {len(self.archived):,} messages that the database"
                f" records: its files have {found.count:,}"
            )
        return findings

    def _digest(self) -> Digest:
        found = Digest()
        low = 0
        while found.count < len(self.archived):
            offsets = self.archived.to_array(low, low + _AT_ONCE)
            found.add(np.zeros(len(offsets), np.int64), offsets)
            low += _AT_ONCE
        return found


def count_files(part: ArchivedPart) -> FileCount:
    """Check the files of a part and compute the digest of their offsets; blocking."""
    counted = FileCount(part.topic)
    for root, file in part.files:
        try:
            _count(root, file, counted)
        except (EscapementError, OSError) as error:
            counted.findings.append(str(error))
    return counted


def _count(root: str, file: ArchivedFile, counted: FileCount) -> None:
    with opened(root, file) as (stream, path):
        if _checksum(stream) != file.sha256:
            counted.findings.append(f"{path} does not match its checksum")
            return
        stream.seek(0)
        from pyarrow import parquet

        messages = 0
        for batch in parquet.ParquetFile(stream).iter_batches(columns=["offset"]):
            offsets = values_of(batch.column("offset"), np.int64)
            counted.found.add(np.zeros(len(offsets), np.int64), offsets)
            messages += len(offsets)
    if messages != file.messages:
        counted.findings.append(f"{path} has {messages:,} messages, not {file.messages:,}")


def _checksum(stream: Any) -> str:
    found = sha256()
    while step := stream.read(_STEP_BYTES):
        found.update(step)
    return found.hexdigest()
