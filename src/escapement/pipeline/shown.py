"""A directory that driver and tasks must see as one: where tasks write, and the driver takes it up.

The driver leaves a mark in it, and a task that does not see the mark refuses, before it has
written anything on a disk of its own, where nobody would ever look.

No Spark in here.
"""

from __future__ import annotations

import secrets
import socket
from pathlib import Path
from typing import Final, NamedTuple

from escapement.errors import InvalidRequest
from escapement.pipeline.localplace import LocalPlace

_MARK: Final = "MARK"


class Shown(NamedTuple):
    """A directory, and what is marked there."""

    directory: Path
    mark: str

    @classmethod
    def mark_in(cls, directory: Path) -> Shown:
        """Leave a mark that nobody else can have left; the directory is made if it is missing."""
        mark = secrets.token_hex(16)
        LocalPlace(f"file:{directory.absolute()}").write(_MARK, mark.encode())
        return cls(directory, mark)

    def check(self) -> None:
        """Raise ``InvalidRequest`` where it is not to be seen."""
        try:
            seen = (self.directory / _MARK).read_bytes()
        except OSError:
            seen = b""
        if seen != self.mark.encode():
            raise InvalidRequest(
                f"{socket.gethostname()} does not see {self.directory} as the driver does: name a"
                " directory on a file system that driver and workers share under one name, or a"
                " master that is a local one"
            )
