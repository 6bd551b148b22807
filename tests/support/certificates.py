"""Certificates for tests, in files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Files:
    """The files of one certificate and its key."""

    cert: str
    key: str


class Authority:
    """A certificate authority with its certificate in a file."""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._home = home
        self._ca = trustme.CA()
        self.ca = str(home / "ca.pem")
        self._ca.cert_pem.write_to_path(self.ca)

    def certify(self, *names: str, file: str = "broker", role: str | None = None) -> Files:
        """Write a certificate for these names, over an older one of the same ``file``.

        Args:
          role: the common name.
        """
        made = self._ca.issue_cert(*names, common_name=role)
        files = Files(str(self._home / f"{file}.pem"), str(self._home / f"{file}-key.pem"))
        made.cert_chain_pems[0].write_to_path(files.cert)
        made.private_key_pem.write_to_path(files.key)
        return files
