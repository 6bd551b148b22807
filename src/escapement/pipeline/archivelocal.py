"""Files of an archive that a task itself writes, on a local file system, and reads back.

They go past the system's cache, so what is read back is what the disk has. Names are new ones for
each attempt at a task: what a failed one leaves stays in the run's directory until that is deleted.

No Spark in here.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from escapement.errors import StorageError
from escapement.pipeline.archivedigest import Digest
from escapement.pipeline.archivefile import Encoded, FoundFile, decode
from escapement.pipeline.shown import Shown
from escapement.storage.index.directfile import DirectFile, read_direct

_SUFFIX: Final = ".parquet"


class Stored(NamedTuple):
    """A file that was written, and read back."""

    name: str  # in its directory
    digest: Digest  # of the messages that went into it
    found: FoundFile


def store(shown: Shown, number: int, files: Iterable[Encoded]) -> Iterator[Stored]:
    """Write each file into the driver's directory, and read it back; it is durable then.

    Args:
      number: of the task, for the names.

    Raises:
      InvalidRequest: if the directory is not the driver's; nothing is written.
      StorageError: if the disk refuses, or has something that is no file of an archive.
    """
    shown.check()
    attempt = secrets.token_hex(8)
    for count, (content, digest) in enumerate(files):
        name = f"part-{number:05}-{attempt}-{count:05}{_SUFFIX}"
        path = shown.directory / name
        try:
            _write(path, content)
            there = read_direct(path)
        except OSError as error:
            raise StorageError(f"{path}: {error.strerror or error}") from error
        yield Stored(name, digest, decode(there))


def _write(path: Path, content: Any) -> None:
    file = DirectFile(path)
    try:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    finally:
        file.close()
