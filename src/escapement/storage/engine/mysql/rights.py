"""The rights that a user has on a MySQL or MariaDB server, from ``SHOW GRANTS``.

A right is granted for all databases, for a database or a pattern of databases, or for a table. The
server may leave out the rights of roles. So an answer "no" is only sure for a user without roles.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from escapement.identifier import quoted
from escapement.storage.engine.base import Connection

ALL: Final = "ALL PRIVILEGES"

# The server quotes names with backticks, or in our sessions with double quotes.
_NAME: Final = r"""(`(?:[^`]|``)*`|"(?:[^"]|"")*"|\*)"""
_GRANT: Final = re.compile(rf"GRANT (.+?) ON (?:TABLE )?{_NAME}\.{_NAME} TO {_NAME}@{_NAME}")
_ROLE: Final = re.compile(rf"GRANT {_NAME}.* TO ")
# The columns of a right that is granted for some columns of a table only.
_COLUMNS: Final = re.compile(r" \([^)]*\)")


@dataclass(frozen=True, slots=True)
class _Grant:
    rights: frozenset[str]
    database: str  # "*" for all; otherwise a pattern, as in LIKE
    table: str  # "*" for all

    def covers(self, database: str, table: str) -> bool:
        return (self.database == "*" or _like(self.database, database)) and (
            self.table in ("*", table)
        )


class Rights:
    """The rights of one user.

    Args:
      lines: what ``SHOW GRANTS`` returned.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self._grants: list[_Grant] = []
        self.has_role = False  # whether there may be more rights than are known here
        self.user = "this user"  # as in GRANT ... TO
        for line in lines:
            self._add(line)

    def missing(self, wanted: Iterable[str], database: str, table: str = "*") -> list[str]:
        """Return those rights that the user does not have for a database or for one table.

        Args:
          database: the database; "*" for all.
          table: the table; "*" for all of the database.
        """
        had: set[str] = set()
        for grant in self._grants:
            if grant.covers(database, table):
                had |= grant.rights
        return [] if ALL in had else [right for right in wanted if right not in had]

    def everywhere(self) -> set[str]:
        """Return the rights that the user has for all databases."""
        found: set[str] = set()
        for grant in self._grants:
            if grant.database == "*":
                found |= grant.rights
        return found - {"USAGE"}

    def grant(self, rights: Iterable[str], database: str, table: str = "*") -> str:
        """Return the GRANT statement that gives rights to the user."""
        where = ".".join(one if one == "*" else quoted(one) for one in (database, table))
        return f"GRANT {', '.join(rights)} ON {where} TO {self.user};"

    def _add(self, line: str) -> None:
        found = _GRANT.match(line)
        if found is None:
            self.has_role = self.has_role or _ROLE.match(line) is not None
            return
        rights, *names = found.groups()
        database, table, user, host = map(_unquoted, names)
        # A right for some columns is not the right for the table.
        whole = [right.upper() for right in _split(rights) if not _COLUMNS.search(right)]
        self._grants.append(_Grant(frozenset(whole), database, table))
        self.user = f"'{user}'@'{host}'"


def rights_of(connection: Connection) -> Rights:
    """Return the rights of the user of a connection."""
    return Rights(str(line) for (line,) in connection.execute("SHOW GRANTS").rows)


def _split(rights: str) -> Iterator[str]:
    """Yield the rights of a list. A right may have a list of columns in parentheses."""
    for right in re.split(r", ?(?![^(]*\))", rights):
        yield right.strip()


def _unquoted(name: str) -> str:
    quote = name[0]
    return name if name == "*" else name[1:-1].replace(quote * 2, quote)


def _like(pattern: str, name: str) -> bool:
    """Return whether a name matches a pattern of LIKE."""
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    wild = {"%": ".*", "_": "."}
    text = "".join(wild.get(part) or re.escape(part[-1]) for part in parts)
    return re.fullmatch(text, name, re.DOTALL) is not None
