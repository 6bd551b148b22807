"""A manifest: which files one run of the job ``archive`` wrote of one topic, and what is in them.

It is kept twice: in the database, with the record that makes the files count, and beside the
files as JSON, for whoever has them and no database. Plain values only; no Spark in here.
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
    """One Parquet file; times are Unix milliseconds, all bounds are included."""

    path: str  # below the manifest's root
    size_bytes: int
    sha256: str
    messages: int
    first_offset: int
    last_offset: int
    min_due_ms: int
    max_due_ms: int
    min_published_ms: int
    max_published_ms: int
    content: str  # a sum over all columns of all messages, whatever their order: see archivedigest

    def may_have(self, selection: Selection) -> bool:
        """Whether any of its messages may be in these ranges."""
        return (
            selection.offsets.meets(self.first_offset, self.last_offset)
            and selection.due.meets(self.min_due_ms, self.max_due_ms)
            and selection.published.meets(self.min_published_ms, self.max_published_ms)
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """See the module's docstring."""

    topic: str  # its full name when it was archived
    topic_id: int
    log: str  # the identity of the log, in hexadecimal
    run: str
    root: str  # a URI, as Spark writes it
    archived_at_ms: int
    files: tuple[ArchivedFile, ...]

    @property
    def messages(self) -> int:
        """Of all files."""
        return sum(file.messages for file in self.files)

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def first_offset(self) -> int:
        """Of all files."""
        return min(file.first_offset for file in self.files)

    @property
    def last_offset(self) -> int:
        """Of all files."""
        return max(file.last_offset for file in self.files)

    def encode(self) -> bytes:
        """As JSON."""
        plain: dict[str, Any] = {"format": FORMAT, **asdict(self), "schema": READ_COLUMNS}
        return json.dumps(plain, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """What ``encode`` made.

        Raises:
          LogDamaged: if it is of another format, or damaged.
        """
        try:
            plain = json.loads(data)
            if plain.pop("format") != FORMAT:
                raise ValueError("unknown format")
            del plain["schema"]
            files = tuple(ArchivedFile(**file) for file in plain.pop("files"))
            return cls(files=files, **plain)
        except (ValueError, KeyError, TypeError) as error:
            raise LogDamaged(f"a manifest of an archive cannot be read: {error}") from error
