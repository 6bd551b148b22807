"""The request for a first token: a file in the data directory that the broker takes.

``escapement admin bootstrap`` writes the file, and the broker reads it, stores the token and
deletes the file. Only the user of the broker, and root, can do that, because the file must belong
to one of them and be closed to all others. The file has the SHA-256 of the token, not the token.

    bootstrap.request   a JSON object with role, id and digest (hexadecimal)
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from escapement.access.grant import check_role
from escapement.access.token import DIGEST_BYTES, is_token_id
from escapement.errors import EscapementError, StorageError

FILE_NAME: Final = "bootstrap.request"
# A request has less than half of this.
_MOST_BYTES: Final = 1024
_ROOT: Final = 0


@dataclass(frozen=True, slots=True)
class BootstrapRequest:
    """The request to store a token for a superuser."""

    role: str
    id: str
    digest: bytes

    def write(self, directory: Path) -> Path:
        """Write the request into a data directory, and return the path of the file.

        Raises:
          StorageError: if the file cannot be written.
        """
        path = directory / FILE_NAME
        temporary = directory / f"{FILE_NAME}.{self.id}"
        plain = {"role": self.role, "id": self.id, "digest": self.digest.hex()}
        try:
            directory.mkdir(parents=True, exist_ok=True)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with open(fd, "w", encoding="ascii") as file:
                if os.geteuid() == _ROOT:  # the broker may run as another user
                    os.fchown(fd, directory.stat().st_uid, -1)
                file.write(json.dumps(plain))
                file.flush()
                os.fsync(fd)
            os.rename(temporary, path)
        except OSError as error:
            raise StorageError(
                f"Cannot write {path}: {error.strerror}. Run this command as the user of the "
                "broker, with the broker's --data directory."
            ) from error
        return path

    @classmethod
    def read(cls, directory: Path) -> BootstrapRequest | None:
        """Return the request in a data directory, or None if there is none.

        Raises:
          StorageError: if the file is not to be trusted, or is not a request.
        """
        path = directory / FILE_NAME
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}") from error
        with open(fd, "rb") as file:
            found = os.fstat(fd)
            ours = found.st_uid in (os.geteuid(), _ROOT)
            if not (stat.S_ISREG(found.st_mode) and ours) or found.st_mode & 0o077:
                raise StorageError(f"{path} must be a file of the broker's user with mode 0600")
            data = file.read(_MOST_BYTES)
        try:
            plain = json.loads(data)
            request = cls(check_role(plain["role"]), plain["id"], bytes.fromhex(plain["digest"]))
            if not is_token_id(request.id) or len(request.digest) != DIGEST_BYTES:
                raise ValueError
        except (ValueError, TypeError, KeyError, EscapementError):
            raise StorageError(f"{path} is not a request of `escapement admin bootstrap`") from None
        return request

    @staticmethod
    def remove(directory: Path) -> None:
        """Delete the request of a data directory, if there is one."""
        (directory / FILE_NAME).unlink(missing_ok=True)
