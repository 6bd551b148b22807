"""The URL of an endpoint to which messages are posted, and which URLs are allowed.

A URL is refused if it could mean different things to different programs, or has parts that a target
does not need. So the broker and the process that posts agree on the host. Whether the address of
the host may be reached is decided when the host is resolved (``escapement.push.addresses``). Pure.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from escapement.errors import InvalidRequest

MAX_URL_CHARS: Final = 2000
# Ports below this belong to other protocols, such as SMTP, except those of HTTP.
_FIRST_FREE_PORT: Final = 1024
_PORTS: Final = {"https": 443, "http": 80}
# Visible ASCII without a backslash, which some programs read as a slash.
_CHARACTERS: Final = re.compile(r"[!-\[\]-~]+")
_LABEL: Final = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
# The last label of a host name begins with a letter. So 127.1 and 0x7f000001, which some programs
# read as addresses, are none.
_NAME: Final = re.compile(rf"({_LABEL}\.)*[a-z]([a-z0-9-]{{0,61}}[a-z0-9])?")
_MAX_NAME_CHARS: Final = 253


class Endpoint(NamedTuple):
    """A parsed URL.

    Attributes:
      scheme: "https" or "http".
      host: a name in lower case, or an address without brackets.
      target: the path and the query.
    """

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """The host and port as the header Host has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL in its usual form."""
        return f"{self.scheme}://{self.authority}{self.target}"

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Parse a URL. Raises ``InvalidRequest`` if it is not allowed."""
        if len(text) > MAX_URL_CHARS or not _CHARACTERS.fullmatch(text):
            raise _refused(text, f"it must have 1 to {MAX_URL_CHARS} visible ASCII characters")
        try:
            parts = urlsplit(text)
            host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise _refused(text, str(error)) from None
        if parts.scheme not in _PORTS:
            raise _refused(text, "it must begin with https://, or with http:// for a network that "
                           "`escapement push --allow-network` names")  # fmt: skip
        if "@" in parts.netloc:
            raise _refused(_without_user(text), "it must not have a user or a password")
        if parts.fragment or "#" in text:
            raise _refused(text, "it must not have a fragment")
        if not _is_host(host):
            raise _refused(text, "it does not name a host")
        port = _PORTS[parts.scheme] if port is None else port
        if port < _FIRST_FREE_PORT and port not in _PORTS.values():
            raise _refused(text, f"port {port} is not 80, 443 or at least {_FIRST_FREE_PORT}")
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(parts.scheme, host, port, target)


def _is_host(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return len(text) <= _MAX_NAME_CHARS and _NAME.fullmatch(text) is not None
    return "%" not in text  # an IPv6 address with a zone is one of this machine's links


def _without_user(text: str) -> str:
    scheme, _, rest = text.partition("://")
    return f"{scheme}://***@{rest.rpartition('@')[2]}"


def _refused(text: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{text[:100]!r} cannot be the URL of a push target: {why}.")
