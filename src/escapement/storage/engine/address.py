"""The address of a database on a MySQL or MariaDB server, parsed from a URL.

The URL is ``mysql://user:password@host:port/database?option=value``, percent-encoded where needed.
The password never appears in ``str`` or ``repr`` of an address, or in errors. The options are:

============================  ====================================================
option                        meaning
============================  ====================================================
unix_socket                   path of a local socket, instead of host and port
ssl_ca                        file of certificates to trust: TLS is then required,
                              and the server's certificate and name are checked
ssl_cert, ssl_key             files of the client's certificate and its key
ssl_verify_identity=0         with ssl_ca: do not check the server's name
connect_timeout, read_timeout in seconds; by default 5 and 30
============================  ====================================================
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from escapement.errors import InvalidRequest

DEFAULT_PORT: Final = 3306
# A server that takes longer to open a connection counts as unreachable.
CONNECT_TIMEOUT_S: Final = 5
# How long to wait for a reply. It bounds the time for which a server that hangs blocks a writer.
# Our slowest statement, dropping a set of log tables, takes far less.
READ_TIMEOUT_S: Final = 30

_SHAPE: Final = "mysql://user:password@host:port/database"
_TEXTS: Final = frozenset({"unix_socket", "ssl_ca", "ssl_cert", "ssl_key"})
_SECONDS: Final = frozenset({"connect_timeout", "read_timeout"})
_FLAGS: Final = frozenset({"ssl_verify_identity"})


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
    ssl_verify_identity: bool = True
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

    def __str__(self) -> str:
        where = self.unix_socket or f"{self.host}:{self.port}"
        return f"mysql://{self.user}@{where}/{self.database}"


def _options(query: str) -> dict[str, str | int | bool]:
    found: dict[str, str | int | bool] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in _TEXTS:
            found[name] = value
        elif name in _SECONDS and value.isdecimal() and 0 < int(value) <= 86_400:
            found[name] = int(value)
        elif name in _FLAGS and value in ("0", "1"):
            found[name] = value == "1"
        elif name in _SECONDS | _FLAGS:
            raise InvalidRequest(f"the database URL's option {name} cannot be {value!r}")
        else:
            known = ", ".join(sorted(_TEXTS | _SECONDS | _FLAGS))
            raise InvalidRequest(
                f"the database URL has the unknown option {name!r}; known: {known}"
            )
    return found
