"""The configuration of the HTTP side port, and what makes it unsafe or impossible."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Final

from escapement.errors import InvalidRequest
from escapement.loopback import is_loopback

DEFAULT_HTTP_PORT: Final = 7651
_PACKAGES: Final = ("starlette", "hypercorn", "prometheus_client")


@dataclass(frozen=True, slots=True)
class SidePortConfig:
    """Where the side port listens, and whether it serves /admin/v1."""

    host: str
    port: int
    admin: bool = False

    def check(self, *, insecure: bool) -> None:
        """Check that the side port can be served and may be.

        Args:
          insecure: whether the operator allows addresses that other machines reach.

        Raises:
          InvalidRequest: if a package is missing, or the address is not a loopback address.
        """
        missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
        if missing:
            raise InvalidRequest(
                f"--http needs packages that are not installed ({', '.join(missing)}). Install "
                "them with: pip install 'escapement[http]'"
            )
        if not insecure and not is_loopback(self.host):
            raise InvalidRequest(
                f"--http {self.host} is not a loopback address. Everyone who reaches the port can "
                "read the names of topics and subscriptions. Choose 127.0.0.1, or allow it with "
                "--http-insecure."
            )
