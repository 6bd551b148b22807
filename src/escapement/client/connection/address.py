"""The address of a broker: ``escapement://host:port``."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from escapement.errors import InvalidRequest
from escapement.protocol.limits import DEFAULT_PORT


class Address(NamedTuple):
    """The host, by name or IP address, and the port of a broker."""

    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> Address:
        """Parse the address of a broker: ``escapement://host:port``, or without ``:port``.

        Raises:
          InvalidRequest: if ``url`` has another form.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:  # the port, or the brackets of an IP address, are not valid
            raise InvalidRequest(_refusal(url)) from None
        rest = parts.path.strip("/") or parts.query or parts.fragment or parts.username
        if parts.scheme != "escapement" or not host or rest or port == 0:
            raise InvalidRequest(_refusal(url))
        return cls(host, DEFAULT_PORT if port is None else port)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"escapement://{host}:{self.port}"


def _refusal(url: str) -> str:
    return (
        f"{url!r} is not a broker's address: write escapement://host:port, with a port from 1 to "
        f"65535 (port {DEFAULT_PORT} may be left out)"
    )
