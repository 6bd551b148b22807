"""Parsing of the data source's options, which Spark passes as text.

Spark passes names in lower case. It keeps options with the plan of a query, which is shown and
logged, so options must not contain secrets. The process that connects reads the password from a
file or from its environment. No object that is sent between processes has the password.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from escapement.durations import parse as parse_duration
from escapement.errors import InvalidRequest
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.mysql.engine import MysqlEngine
from escapement.storage.engine.sqlite import FILE_NAME, SqliteEngine

# Environment variables with the defaults of options, and the password.
URL_VARIABLE: Final = "ESCAPEMENT_LOG"
USER_VARIABLE: Final = "ESCAPEMENT_USER"
PASSWORD_VARIABLE: Final = "ESCAPEMENT_PASSWORD"

# The largest integer of Spark and of the database.
_LARGEST: Final = (1 << 63) - 1

# The options for the address of the log.
ADDRESS_OPTIONS: Final = ("url", "data", "user", "passwordFile")


class Options:
    """The options that a user gives. Their names are case-insensitive."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}

    def check(self, known: Iterable[str]) -> None:
        """Raise ``InvalidRequest`` if a given option is not among the ``known`` names."""
        names = sorted(known)
        unknown = self._given.keys() - {name.lower() for name in names}
        if "password" in unknown:
            raise InvalidRequest(
                "the password cannot be given as an option, because Spark shows options: name a"
                f" file that has it with passwordFile, or set {PASSWORD_VARIABLE} where Spark's"
                " Python runs"
            )
        if unknown:
            raise InvalidRequest(
                f"unknown option {min(unknown)!r}; known options: {', '.join(names)}"
            )

    def text(self, name: str) -> str | None:
        """Return the option's text, or None if it is missing or blank."""
        return self._given.get(name.lower(), "").strip() or None

    def number(self, name: str, default: int | None = None, least: int = 1) -> int | None:
        """Return the option as an integer, or ``default`` if it is missing.

        Raises:
          InvalidRequest: if it is not a 64-bit integer of at least ``least``.
        """
        text = self.text(name)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= _LARGEST:
            raise InvalidRequest(
                f"the option {name} must be an integer from {least} to {_LARGEST}, not {text!r}"
            )
        return value

    def duration(self, name: str, default_ms: int) -> int:
        """Return the option, text such as ``30s`` or ``5d``, in milliseconds.

        Raises:
          InvalidRequest: if it is not a duration.
        """
        text = self.text(name)
        if text is None:
            return default_ms
        try:
            return parse_duration(text)
        except InvalidRequest as error:
            raise InvalidRequest(f"the option {name}: {error}") from None

    def flag(self, name: str, default: bool) -> bool:
        """Return the option as a boolean, or ``default`` if it is missing.

        Raises:
          InvalidRequest: if it is neither ``true`` nor ``false``.
        """
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise InvalidRequest(f"the option {name} must be true or false, not {text!r}")
        return text.lower() == "true"

    def choice(self, name: str, words: Sequence[str]) -> str:
        """Return the option in lower case, or the first of ``words`` if it is missing.

        Raises:
          InvalidRequest: if it is not one of ``words``.
        """
        text = self.text(name)
        if text is None:
            return words[0]
        if text.lower() not in words:
            raise InvalidRequest(f"the option {name} must be {' or '.join(words)}, not {text!r}")
        return text.lower()


@dataclass(frozen=True, slots=True)
class LogAddress:
    """The address of the log, and the file with its password, but never the password itself."""

    url: str | None = None
    data: str | None = None  # the data directory of a broker on SQLite
    user: str | None = None
    password_file: str | None = None

    @classmethod
    def of(cls, options: Options) -> LogAddress:
        """Return the address that the options give.

        Raises:
          InvalidRequest: if the options contradict each other, or contain a password.
        """
        url, data = options.text("url"), options.text("data")
        if url is not None and data is not None:
            raise InvalidRequest("give the option url or the option data, but not both")
        if url is not None:
            MysqlAddress.parse(url)
            if urlsplit(url).password is not None:
                raise InvalidRequest(
                    "a password in the option url would be shown with Spark's plans: name a file"
                    f" that has it with passwordFile, or set {PASSWORD_VARIABLE} where Spark's"
                    " Python runs"
                )
        return cls(url, data, options.text("user"), options.text("passwordFile"))

    def engine(self) -> Engine:
        """Return the database engine for this address; for the process that connects.

        The engine has the password. It does not create a missing database.

        Raises:
          InvalidRequest: if no address is given, or the log or the password file is not readable.
        """
        if self.data is not None:
            file = Path(self.data, FILE_NAME)
            if not file.is_file():
                raise InvalidRequest(
                    f"{self.data} has no SQLite log: {FILE_NAME} does not exist. Give the data"
                    " directory of the broker"
                )
            return SqliteEngine(file)
        url = self.url or os.environ.get(URL_VARIABLE)
        if not url:
            raise InvalidRequest(
                "the address of the log is missing. Give url (in a command: --log) as"
                " mysql://host:port/database, or data (the data directory of a broker on SQLite),"
                f" or set {URL_VARIABLE}"
            )
        address = MysqlAddress.parse(url)
        named = self.url is not None and bool(urlsplit(self.url).username)
        user = self.user or (None if named else os.environ.get(USER_VARIABLE))
        password = self._password()
        return MysqlEngine(
            replace(
                address,
                user=address.user if user is None else user,
                password=address.password if password is None else password,
            ),
            creates=False,
        )

    @contextmanager
    def connected(self) -> Iterator[tuple[Engine, Connection]]:
        """Yield an engine and a connection, and close both at the end of the ``with`` block."""
        with closing(self.engine()) as engine, closing(engine.connect()) as connection:
            yield engine, connection

    def _password(self) -> str | None:
        if self.password_file is None:
            return os.environ.get(PASSWORD_VARIABLE)
        try:
            return Path(self.password_file).read_text("utf-8").rstrip("\r\n")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise InvalidRequest(
                f"the password file {self.password_file} cannot be read: {reason}"
            ) from None
