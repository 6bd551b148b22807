"""A manifest: the list of files that one step of the job ``archive`` wrote for one topic.

Each manifest is stored twice. The database stores it with the record that makes the files part of
the archive. A JSON file in the archive is for readers without access to the database.

This module does not use Spark.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from escapement.errors import LogDamaged
from escapement.pipeline.columns import READ_COLUMNS
from escapement.pipeline.selection import Selection

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """One Parquet file of an archive. Times are Unix milliseconds; all bounds are inclusive."""

    path: str  # relative to the root of the archive
    size_bytes: int
    sha256: str
    messages: int
    first_offset: int
    last_offset: int
    min_due_ms: int
    max_due_ms: int
    min_published_ms: int
    max_published_ms: int
    content: str  # the digest of all columns of all messages (pipeline/archiving/digest.py)

    def may_have(self, selection: Selection) -> bool:
        """Return whether the file may have messages of the selection, by the file's bounds."""
        return (
            selection.offsets.meets(self.first_offset, self.last_offset)
            and selection.due.meets(self.min_due_ms, self.max_due_ms)
            and selection.published.meets(self.min_published_ms, self.max_published_ms)
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files that one step of the job ``archive`` wrote for one topic."""

    topic: str  # the topic's full name when its messages were archived
    topic_id: int
    log: str  # the identity of the log, in hexadecimal
    run: str  # the unique name of the step
    root: str  # the root directory of the archive, as a URI in Spark's notation
    archived_at_ms: int
    files: tuple[ArchivedFile, ...]

    @property
    def messages(self) -> int:
        """The number of messages in all files."""
        return sum(file.messages for file in self.files)

    @property
    def size_bytes(self) -> int:
        """The size of all files, in bytes."""
        return sum(file.size_bytes for file in self.files)

    @property
    def first_offset(self) -> int:
        """The lowest offset in all files."""
        return min(file.first_offset for file in self.files)

    @property
    def last_offset(self) -> int:
        """The highest offset in all files."""
        return max(file.last_offset for file in self.files)

    def encode(self) -> bytes:
        """Return the manifest as JSON."""
        plain: dict[str, Any] = {"format": FORMAT, **asdict(self), "schema": READ_COLUMNS}
        return json.dumps(plain, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Return the manifest that ``encode`` made.

        Raises:
          LogDamaged: if the data has another format, or is damaged.
        """
        try:
            plain = json.loads(data)
            if plain.pop("format") != FORMAT:
                raise ValueError("unknown format")
            del plain["schema"]
            files = tuple(ArchivedFile(**file) for file in plain.pop("files"))
            return cls(files=files, **plain)
        except (ValueError, KeyError, TypeError) as error:
            raise LogDamaged(f"the manifest of an archive cannot be read: {error}") from error
