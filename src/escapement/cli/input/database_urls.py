"""Options with the URL of a database, whose password may come from elsewhere.

``--log URL`` comes with ``--log-password-file`` and the variable ``ESCAPEMENT_LOG_PASSWORD``. They
give the password of a URL that has none, so a URL in a configuration file needs no secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit

import click

from escapement.cli.input.configuration import SecretSetting, Setting
from escapement.cli.input.log_url import log_url
from escapement.errors import InvalidRequest

Command = TypeVar("Command", bound=Callable[..., Any])

# The longest password. A longer file is not a password file.
_MOST_CHARACTERS: Final = 1024


class DatabaseUrl(Setting):
    """The URL of a database, or several. A URL without a password gets it from other settings."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        found = super().process_value(ctx, value)
        if self.multiple:
            return tuple(self._with_password(ctx, url) for url in found)
        return self._with_password(ctx, found) if isinstance(found, str) else found

    def _with_password(self, ctx: click.Context, url: str) -> str:
        parts = urlsplit(url)
        if parts.password:
            return url
        password = _password(ctx, self.key)
        if password is None:
            return url
        _, _, host = parts.netloc.rpartition("@")
        user = parts.username or "root"
        return parts._replace(netloc=f"{user}:{quote(password, safe='')}@{host}").geturl()


def database_url_option(
    flag: str, name: str, *, multiple: bool = False, help: str
) -> Callable[[Command], Command]:
    """Return a decorator that adds the option ``flag`` and the options of its password."""
    variable = "ESCAPEMENT_" + flag.removeprefix("--").replace("-", "_").upper()
    # The settings of the password are eager: they must be known when the URL is processed.
    options = (
        click.option(
            flag,
            name,
            cls=DatabaseUrl,
            type=log_url,
            multiple=multiple,
            metavar="mysql://USER:PASSWORD@HOST:PORT/DB",
            envvar=variable,
            show_envvar=True,
            help=help,
        ),
        click.option(
            f"{flag}-password-file",
            cls=Setting,
            type=click.Path(path_type=Path),
            metavar="FILE",
            envvar=f"{variable}_PASSWORD_FILE",
            show_envvar=True,
            is_eager=True,
            expose_value=False,
            help=f"File with the password for {flag}, if the URL has none;"
            f" or set {variable}_PASSWORD.",
        ),
        click.option(
            f"{flag}-password",
            cls=SecretSetting,
            metavar="PASSWORD",
            envvar=f"{variable}_PASSWORD",
            is_eager=True,
            expose_value=False,
            hidden=True,
        ),
    )

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _password(ctx: click.Context, key: str) -> str | None:
    """Return the password of a URL from its variable, file or setting, the nearest source first."""
    by_key: Mapping[str, Setting] = {
        option.key: option for option in ctx.command.params if isinstance(option, Setting)
    }
    plain, file = by_key[f"{key}_password"], by_key[f"{key}_password_file"]
    password: str | None = plain.given(ctx)
    path = file.given(ctx)
    if path is None or (password is not None and _rank(plain, ctx) < _rank(file, ctx)):
        return password
    if password is not None and _rank(plain, ctx) == _rank(file, ctx):
        raise InvalidRequest(f"{plain.key} and {file.key} are both given; give only one of them")
    try:
        with open(path, encoding="utf-8") as opened:
            text = opened.read(_MOST_CHARACTERS + 2).removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidRequest(f"cannot read the password of {file.key} from {path}: {why}") from None
    if not text or "\n" in text or len(text) > _MOST_CHARACTERS:
        raise InvalidRequest(f"{path}, the file of {file.key}, must contain one line: the password")
    return text


def _rank(setting: Setting, ctx: click.Context) -> int:
    return ("flag", "variable", "file", "default").index(setting.source(ctx)[0])
