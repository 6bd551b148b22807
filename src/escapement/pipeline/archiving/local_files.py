"""Archive files on a local file system, which the task itself writes and reads back.

Writes and reads bypass the page cache, so a task reads back the data on the disk. All tasks write
into one directory, which the driver shares with them. Each attempt at a task uses new file names.
The files of a failed attempt stay there until the directory is deleted.

This module does not use Spark.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

from escapement.pipeline.archiving.archive_file import Encoded, FoundFile, decode
from escapement.pipeline.archiving.digest import Digest
from escapement.pipeline.directories.local_directory import naming
from escapement.pipeline.directories.shared_directory import SharedDirectory
from escapement.storage.index.segments.direct_file import DirectFile, read_direct

_SUFFIX: Final = ".parquet"


class Stored(NamedTuple):
    """A file that was written and read back."""

    name: str  # the file's name in the shared directory
    digest: Digest  # of the messages that were encoded
    found: FoundFile  # facts about the file, as computed from the bytes read back


def store(shared: SharedDirectory, number: int, files: Iterable[Encoded]) -> Iterator[Stored]:
    """Write each file into the shared directory and read it back. Yielded files are durable.

    Args:
      number: the task's number, which is part of the file names.

    Raises:
      InvalidRequest: if this machine does not see the shared directory. Nothing is written.
      StorageError: if writing or reading fails, or the file read back is not valid.
    """
    shared.check()
    attempt = secrets.token_hex(8)
    for count, (content, digest) in enumerate(files):
        name = f"part-{number:05}-{attempt}-{count:05}{_SUFFIX}"
        path = shared.directory / name
        with naming(path):
            _write(path, content)
            there = read_direct(path)
        yield Stored(name, digest, decode(there))


def _write(path: Path, content: Any) -> None:
    with closing(DirectFile(path)) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
