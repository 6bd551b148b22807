"""A directory shared between Spark's driver and tasks, in which tasks write files for the driver.

The driver writes a *mark*, a file with a random text, into the directory. A task that does not see
the mark fails before it writes anything. Otherwise it would write to the disk of its own machine,
where the driver does not find the files.

This module does not use Spark.
"""

from __future__ import annotations

import secrets
import socket
from pathlib import Path
from typing import Final, NamedTuple

from escapement.errors import InvalidRequest
from escapement.pipeline.directories.local_directory import LocalDirectory

_MARK: Final = "MARK"


class SharedDirectory(NamedTuple):
    """A shared directory and its mark. The driver sends this object to the tasks."""

    directory: Path
    mark: str  # the content of the file with the mark

    @classmethod
    def mark_in(cls, directory: Path) -> SharedDirectory:
        """Write a random mark into a directory, which is created if it is missing."""
        mark = secrets.token_hex(16)
        LocalDirectory(f"file:{directory.absolute()}").write(_MARK, mark.encode())
        return cls(directory, mark)

    def check(self) -> None:
        """Raise ``InvalidRequest`` if this process does not see the mark."""
        try:
            seen = (self.directory / _MARK).read_bytes()
        except OSError:
            seen = b""
        if seen != self.mark.encode():
            raise InvalidRequest(
                f"{socket.gethostname()} does not see {self.directory} as the driver does: use a"
                " directory on a file system that driver and workers share under one name, or a"
                " local master"
            )
