"""The options that a user gives to the data source, as text, turned into what is meant.

Spark hands names over in lower case and keeps all options with the plan of a query, which is
shown and logged. So none of them may be a secret: a password comes from a file or from the
environment of whichever process connects, and is in no object that travels.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from escapement.durations import parse as parse_duration
from escapement.errors import InvalidRequest
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import Engine
from escapement.storage.engine.mysql import MysqlEngine
from escapement.storage.engine.sqlite import FILE_NAME, SqliteEngine

# Where a process looks for what no option says.
URL_VARIABLE: Final = "ESCAPEMENT_LOG"
USER_VARIABLE: Final = "ESCAPEMENT_USER"
PASSWORD_VARIABLE: Final = "ESCAPEMENT_PASSWORD"

# The largest integer that Spark, and the database, have a type for.
_LARGEST: Final = (1 << 63) - 1

# The options that say where the log is.
ADDRESS_OPTIONS: Final = ("url", "data", "user", "passwordFile")


class Options:
    """Options by name, whatever the case of its letters."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}

    def check(self, known: Iterable[str]) -> None:
        """Raise ``InvalidRequest`` naming an option that is none of these."""
        names = sorted(known)
        unknown = self._given.keys() - {name.lower() for name in names}
        if "password" in unknown:
            raise InvalidRequest(
                "a password is no option, because Spark shows options: name a file that has it"
                f" with passwordFile, or set {PASSWORD_VARIABLE} where Spark's Python runs"
            )
        if unknown:
            raise InvalidRequest(
                f"the unknown option {min(unknown)!r}; known here: {', '.join(names)}"
            )

    def text(self, name: str) -> str | None:
        """What was given; None for nothing, or nothing but spaces."""
        return self._given.get(name.lower(), "").strip() or None

    def number(self, name: str, default: int | None = None, least: int = 1) -> int | None:
        """An integer of at least ``least``, of 64 bits. Raises ``InvalidRequest``."""
        text = self.text(name)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= _LARGEST:
            raise InvalidRequest(
                f"the option {name} is an integer from {least} on, {_LARGEST} at most, not {text!r}"
            )
        return value

    def duration(self, name: str, default_ms: int) -> int:
        """Milliseconds, of a text such as ``30s`` or ``5d``. Raises ``InvalidRequest``."""
        text = self.text(name)
        if text is None:
            return default_ms
        try:
            return parse_duration(text)
        except InvalidRequest as error:
            raise InvalidRequest(f"the option {name}: {error}") from None

    def flag(self, name: str, default: bool) -> bool:
        """``true`` or ``false``. Raises ``InvalidRequest``."""
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise InvalidRequest(f"the option {name} is true or false, not {text!r}")
        return text.lower() == "true"

    def choice(self, name: str, words: Sequence[str]) -> str:
        """One of these words, in any case; the first is the default. Raises ``InvalidRequest``."""
        text = self.text(name)
        if text is None:
            return words[0]
        if text.lower() not in words:
            raise InvalidRequest(f"the option {name} is {' or '.join(words)}, not {text!r}")
        return text.lower()


@dataclass(frozen=True, slots=True)
class LogAddress:
    """Where the log is, and where its password is to be found; never the password itself."""

    url: str | None = None
    data: str | None = None
    user: str | None = None
    password_file: str | None = None

    @classmethod
    def of(cls, options: Options) -> LogAddress:
        """What the options say.

        Raises:
          InvalidRequest: if they contradict each other, or have a password in them.
        """
        url, data = options.text("url"), options.text("data")
        if url is not None and data is not None:
            raise InvalidRequest("the log is at the option url, or in the directory data: not both")
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
        """The engine, with the password; for the process that connects.

        It makes no database that is missing. Raises ``InvalidRequest``.
        """
        if self.data is not None:
            file = Path(self.data, FILE_NAME)
            if not file.is_file():
                raise InvalidRequest(f"there is no log on SQLite in {self.data}: no {FILE_NAME}")
            return SqliteEngine(file)
        url = self.url or os.environ.get(URL_VARIABLE)
        if not url:
            raise InvalidRequest(
                "where is the log? Give the option url (mysql://host:port/database), or data (the"
                f" directory of a broker on SQLite), or set {URL_VARIABLE}"
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

    def _password(self) -> str | None:
        if self.password_file is None:
            return os.environ.get(PASSWORD_VARIABLE)
        try:
            return Path(self.password_file).read_text("utf-8").rstrip("\r\n")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise InvalidRequest(f"the password file {self.password_file}: {reason}") from None
