"""The address of a MySQL or MariaDB server, parsed from a URL.

``mysql://user:password@host:port/database?option=value``, percent-encoded where
needed. Owns the password. It never appears in ``str``, ``repr`` or errors.

============================  ====================================================
option                        meaning
============================  ====================================================
unix_socket                   path of a local socket, instead of host and port
ssl_ca                        file of certificates to trust: TLS is then required,
                              and the server's certificate and name are checked
ssl_cert, ssl_key             the client's certificate and its key
ssl_verify_identity=0         with ssl_ca: do not compare the server's name
connect_timeout, read_timeout seconds; 5 and 30
============================  ====================================================
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from escapement.errors import InvalidRequest

DEFAULT_PORT: Final = 3306
# A server that takes longer to accept counts as unreachable.
CONNECT_TIMEOUT_S: Final = 5
# Bounds how long a hanging server blocks a lane. Our slowest statement, dropping a
# generation of log tables, takes far less.
READ_TIMEOUT_S: Final = 30

_SHAPE: Final = "mysql://user:password@host:port/database"
_TEXTS: Final = frozenset({"unix_socket", "ssl_ca", "ssl_cert", "ssl_key"})
_SECONDS: Final = frozenset({"connect_timeout", "read_timeout"})
_FLAGS: Final = frozenset({"ssl_verify_identity"})


@dataclass(frozen=True, slots=True)
class MysqlAddress:
    """The parts of a database URL. ``str`` of it is safe to log."""

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
        """Parse ``url``.

        Raises:
          InvalidRequest: names the part that is wrong, and never quotes the URL.
        """
        try:
            parts = urlsplit(url)
            port = parts.port or DEFAULT_PORT
        except ValueError:
            # Not "from error": the parser's message may quote the password.
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
