"""The addresses of brokers: ``escapement://host:port``, or ``escapements://host:port`` with TLS."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import urlsplit

from escapement.errors import InvalidRequest
from escapement.protocol.limits import DEFAULT_PORT

PLAIN_SCHEME: Final = "escapement"
TLS_SCHEME: Final = "escapements"


class Address(NamedTuple):
    """The host, by name or IP address, and the port of a broker, and whether to use TLS."""

    host: str
    port: int
    tls: bool = False

    @classmethod
    def parse(cls, url: str) -> Address:
        """Parse the address of a broker. Without ``:port``, the port is 7650, also with TLS.

        Raises:
          InvalidRequest: if ``url`` has another form.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:  # the port, or the brackets of an IP address, are not valid
            raise InvalidRequest(_refusal(url)) from None
        rest = parts.path.strip("/") or parts.query or parts.fragment or parts.username
        if parts.scheme not in (PLAIN_SCHEME, TLS_SCHEME) or not host or rest or port == 0:
            raise InvalidRequest(_refusal(url))
        return cls(host, DEFAULT_PORT if port is None else port, parts.scheme == TLS_SCHEME)

    def beside(self, place: str) -> Address:
        """Return the address of another broker, ``host:port``, which uses TLS as this one does.

        Raises:
          InvalidRequest: if ``place`` has another form.
        """
        return self.parse(f"{TLS_SCHEME if self.tls else PLAIN_SCHEME}://{place}")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{TLS_SCHEME if self.tls else PLAIN_SCHEME}://{host}:{self.port}"


class Addresses(tuple[Address, ...]):
    """The addresses of brokers on one database, at least one: ``escapement://a:7650,b:7650``.

    Either all of them use TLS, or none.
    """

    __slots__ = ()

    @classmethod
    def parse(cls, url: str) -> Addresses:
        """Parse the addresses of brokers, with commas between them.

        Raises:
          InvalidRequest: if ``url`` has another form.
        """
        scheme, separator, rest = url.partition("://")
        if "," not in rest:
            return cls([Address.parse(url)])
        return cls(Address.parse(f"{scheme}{separator}{part}") for part in rest.split(","))

    @property
    def tls(self) -> bool:
        """Whether the connections use TLS."""
        return self[0].tls

    def __str__(self) -> str:
        first, *others = map(str, self)
        return ",".join([first, *(other.partition("://")[2] for other in others)])


def _refusal(url: str) -> str:
    return (
        f"{url!r} is not a broker's address: write escapement://host:port, or escapements:// for "
        f"TLS, with a port from 1 to 65535 (port {DEFAULT_PORT} may be left out)"
    )
