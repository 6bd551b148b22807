"""The address of a database on a MySQL or MariaDB server, parsed from a URL.

The URL is ``mysql://user:password@host:port/database?option=value``, percent-encoded where needed.
The password never appears in ``str`` or ``repr`` of an address, or in errors. The options are:

============================  ====================================================
option                        meaning
============================  ====================================================
unix_socket                   path of a local socket, instead of host and port
ssl_mode                      whether to use TLS and what to verify: see ``SslMode``
ssl_ca                        file of certificates to trust, instead of the system's
ssl_cert, ssl_key             files of the client's certificate and its key
ssl_verify_identity=0         the same as ssl_mode=verify_ca
connect_timeout, read_timeout in seconds; by default 5 and 30
============================  ====================================================

Names may have hyphens, as MySQL writes them (``ssl-mode``). An option for TLS asks for TLS: with
any of them the connection is encrypted, and the certificate and the name of the server are
verified. Only ``ssl_mode`` and ``ssl_verify_identity`` can weaken that. A URL without any of them
uses TLS if the server offers it, without verification.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from escapement.errors import InvalidRequest
from escapement.loopback import is_loopback

DEFAULT_PORT: Final = 3306
# A server that takes longer to open a connection counts as unreachable.
CONNECT_TIMEOUT_S: Final = 5
# How long to wait for a reply. It bounds the time for which a server that hangs blocks a writer.
# Our slowest statement, dropping a set of log tables, takes far less.
READ_TIMEOUT_S: Final = 30

_SHAPE: Final = "mysql://user:password@host:port/database"
_FILES: Final = frozenset({"ssl_ca", "ssl_cert", "ssl_key"})
_TEXTS: Final = _FILES | {"unix_socket"}
_SECONDS: Final = frozenset({"connect_timeout", "read_timeout"})
_FLAGS: Final = frozenset({"ssl_verify_identity"})
_MODE: Final = "ssl_mode"


class SslMode(enum.Enum):
    """Whether a connection uses TLS, and what it verifies. The values are those of ``ssl_mode``."""

    DISABLED = "disabled"  # no TLS
    PREFERRED = "preferred"  # TLS if the server offers it; nothing is verified
    UNVERIFIED = "unverified"  # TLS; nothing is verified
    # TLS; certificate and name are verified, unless the server is local and there is no ``ssl_ca``.
    REQUIRED = "required"
    VERIFY_CA = "verify_ca"  # TLS; the certificate is verified, but not its name
    VERIFY_IDENTITY = "verify_identity"  # TLS; certificate and name are verified


@dataclass(frozen=True, slots=True)
class MysqlAddress:
    """The parts of a database URL. ``str(address)`` leaves the password out, for logs."""

    user: str
    password: str = field(repr=False)
    host: str
    port: int
    database: str
    unix_socket: str | None = None
    ssl_ca: str | None = None
    ssl_cert: str | None = None
    ssl_key: str | None = None
    ssl_mode: SslMode = SslMode.PREFERRED
    connect_timeout: int = CONNECT_TIMEOUT_S
    read_timeout: int = READ_TIMEOUT_S

    @classmethod
    def parse(cls, url: str) -> MysqlAddress:
        """Parse a database URL.

        Raises:
          InvalidRequest: if the URL is not valid. The message names the wrong part, and never
            quotes the URL, which has a password.
        """
        try:
            parts = urlsplit(url)
            port = parts.port or DEFAULT_PORT
        except ValueError:
            # "from None", because the parser's message may quote the password.
            raise InvalidRequest(f"a database URL needs the shape {_SHAPE}") from None
        if parts.scheme not in ("mysql", "mariadb"):
            raise InvalidRequest(f"a database URL begins with mysql:// and has the shape {_SHAPE}")
        database = unquote(parts.path.removeprefix("/"))
        if not database or "/" in database or "\0" in database:
            raise InvalidRequest(f"a database URL ends with the database's name: {_SHAPE}")
        options = _options(parts.query)
        return cls(
            user=unquote(parts.username or "root"),
            password=unquote(parts.password or ""),
            host=unquote(parts.hostname or "localhost"),
            port=port,
            database=database,
            **options,  # type: ignore[arg-type]
        )

    @property
    def is_local(self) -> bool:
        """Whether the server is on this machine: a socket, or a loopback address."""
        return self.unix_socket is not None or is_loopback(self.host)

    @property
    def verification(self) -> SslMode:
        """The mode of the connection, with ``REQUIRED`` replaced by what it means here."""
        if self.ssl_mode is not SslMode.REQUIRED:
            return self.ssl_mode
        unverified = self.is_local and self.ssl_ca is None
        return SslMode.UNVERIFIED if unverified else SslMode.VERIFY_IDENTITY

    def __str__(self) -> str:
        where = self.unix_socket or f"{self.host}:{self.port}"
        return f"mysql://{self.user}@{where}/{self.database}"


def _options(query: str) -> dict[str, str | int | SslMode]:
    found: dict[str, str | int | SslMode] = {}
    verify_identity: bool | None = None
    for given, value in parse_qsl(query, keep_blank_values=True):
        name = given.replace("-", "_")
        if name in _TEXTS:
            found[name] = value
        elif name in _SECONDS and value.isdecimal() and 0 < int(value) <= 86_400:
            found[name] = int(value)
        elif name in _FLAGS and value in ("0", "1"):
            verify_identity = value == "1"
        elif name == _MODE:
            found[name] = _mode(value)
        elif name in _SECONDS | _FLAGS:
            raise InvalidRequest(f"the database URL's option {given} cannot be {value!r}")
        else:
            known = ", ".join(sorted(_TEXTS | _SECONDS | _FLAGS | {_MODE}))
            raise InvalidRequest(
                f"the database URL has the unknown option {given!r}; known: {known}"
            )
    if _MODE in found and verify_identity is not None:
        raise InvalidRequest("the database URL has ssl_mode and ssl_verify_identity: leave out one")
    if found.keys() & _FILES and found.get(_MODE) in (SslMode.DISABLED, SslMode.PREFERRED):
        raise InvalidRequest(
            "the database URL names files for TLS, and an ssl_mode that does not require TLS"
        )
    if _MODE not in found and (found.keys() & _FILES or verify_identity is not None):
        weak = verify_identity is False
        found[_MODE] = SslMode.VERIFY_CA if weak else SslMode.VERIFY_IDENTITY
    return found


def _mode(value: str) -> SslMode:
    try:
        return SslMode(value.lower().replace("-", "_"))
    except ValueError:
        known = ", ".join(mode.value for mode in SslMode)
        raise InvalidRequest(
            f"the database URL's option ssl_mode cannot be {value!r}; known: {known}"
        ) from None
