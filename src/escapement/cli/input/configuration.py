"""The configuration file: settings in TOML, which are the options of a command.

A ``Setting`` is an option that may also come from its environment variable or from the file. The
key of ``--ack-wait`` in the file is ``ack_wait``. A flag overrides the variable, the variable
overrides the file, and the file overrides the default.

The file is read once, before the other options: its values become the ``default_map`` of click. The
whole file is checked then, also the settings that a flag overrides. Settings are never declared
twice: a new option of `escapement serve` is a key of the file by itself.
"""

from __future__ import annotations

import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal

import click

from escapement.cli.input.parameters import FlagOrVariable
from escapement.cli.output.redaction import HIDDEN, redacted
from escapement.errors import InvalidRequest

VARIABLE: Final = "ESCAPEMENT_CONFIG"

# Keys of ``Context.meta``: the file that was read, and the values as they were given.
_FILE: Final = "escapement.configuration"
_GIVEN: Final = "escapement.given"
# How alike a wrong key and the key that an error suggests must be.
_LIKENESS: Final = 0.5
_TOML_NAMES: Final[Mapping[type, str]] = {
    bool: "a boolean",
    int: "an integer",
    float: "a float",
    str: "a string",
    list: "an array",
    dict: "a table",
}
_SOURCE: Final = click.core.ParameterSource

Source = Literal["flag", "variable", "file", "default"]


class Setting(FlagOrVariable):
    """An option that may come from a flag, an environment variable, or the configuration file."""

    is_secret = False

    @property
    def key(self) -> str:
        """The key of the setting in the file."""
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def flag(self) -> str:
        return max(self.opts, key=len)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> Any:
        value, source = super().consume_value(ctx, opts)
        ctx.meta.setdefault(_GIVEN, {})[self.name] = value
        return value, source

    def given(self, ctx: click.Context) -> Any:
        """Return the value before its conversion, or None if there is no value."""
        value = ctx.meta.get(_GIVEN, {}).get(self.name)
        # click has a sentinel for options without a value.
        return value if isinstance(value, str | int | float | list | tuple | Path) else None

    def shown(self, ctx: click.Context) -> Any:
        """Return the value as it was given, for people, without secrets."""
        value = self.given(ctx)
        if value is None:
            return None
        if self.is_secret:
            return HIDDEN
        if self.multiple:
            return [redacted(str(one)) for one in value]
        return value if isinstance(value, bool | int | float) else redacted(str(value))

    def source(self, ctx: click.Context) -> tuple[Source, str | None]:
        """Return the kind of source of the value, and the flag, the variable or the file."""
        assert self.name is not None
        match ctx.get_parameter_source(self.name):
            case _SOURCE.COMMANDLINE | _SOURCE.PROMPT:
                return "flag", self.flag
            case _SOURCE.ENVIRONMENT:
                return "variable", str(self.envvar)
            case _SOURCE.DEFAULT_MAP:
                return "file", str(ctx.meta[_FILE].path)
            case _:
                return "default", None


class SecretSetting(Setting):
    """A secret: it comes from a variable or the file, because command lines are visible to all."""

    is_secret = True

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> Any:
        value, source = super().consume_value(ctx, opts)
        if source is _SOURCE.COMMANDLINE:
            raise click.UsageError(
                "Every user of this machine can see a secret on the command line. Set"
                f" {self.envvar} or use {self.flag}-file."
            )
        return value, source


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration file that was read.

    Attributes:
      values: the value of each option, by the name of the option.
      warnings: what the operator should change.
    """

    path: Path
    values: Mapping[str, Any]
    warnings: tuple[str, ...]


class ConfiguredCommand(click.Command):
    """A command whose options are settings. It has the option ``--config``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # It is first among the eager options, because it gives the others their values.
        self.params.insert(
            0,
            click.Option(
                ["--config"],
                type=click.Path(dir_okay=False, path_type=Path),
                envvar=VARIABLE,
                show_envvar=True,
                is_eager=True,
                expose_value=False,
                callback=_read_first,
                help="TOML file with settings; a setting has the name of its option.",
            ),
        )


def settings_of(command: click.Command) -> list[Setting]:
    """Return the settings of a command."""
    return [option for option in command.params if isinstance(option, Setting)]


def config_warnings(ctx: click.Context) -> Sequence[str]:
    """Return what the operator should change about the configuration file of this command."""
    return ctx.meta[_FILE].warnings if _FILE in ctx.meta else ()


def read_configuration(path: Path, command: click.Command) -> Configuration:
    """Read a configuration file and check all of it.

    Args:
      command: the command whose options are the settings.

    Raises:
      InvalidRequest: if the file cannot be read, or with all problems of its settings.
    """
    try:
        text = path.read_text("utf-8")
        is_open = bool(path.stat().st_mode & stat.S_IROTH)
        table = tomllib.loads(text)
    except OSError as error:
        raise InvalidRequest(
            f"cannot read the configuration file {path}: {error.strerror}"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        why = error.reason if isinstance(error, UnicodeDecodeError) else error
        raise InvalidRequest(f"{path} is not valid TOML: {why}") from None
    known = {setting.key: setting for setting in settings_of(command)}
    problems = list(_problems(table, known, command))
    if problems:
        raise InvalidRequest("\n".join(f"{path}: {problem}" for problem in problems))
    secrets = [key for key, value in table.items() if _has_secret(known[key], value)]
    warnings: tuple[str, ...] = ()
    if secrets and is_open:
        warnings = (
            f"{path} contains a password ({', '.join(secrets)}), and every user of this machine can"
            f" read it. Run chmod o-r {path}, or keep the password in a file of its own.",
        )
    values = {known[key].name or key: value for key, value in table.items()}
    return Configuration(path, values, warnings)


def _read_first(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    if path is not None and not ctx.resilient_parsing:
        ctx.meta[_FILE] = found = read_configuration(path, ctx.command)
        ctx.default_map = dict(found.values)


def _problems(
    table: Mapping[str, Any], known: Mapping[str, Setting], command: click.Command
) -> Iterator[str]:
    with click.Context(command) as ctx:
        for key, value in table.items():
            if key not in known:
                yield _unknown(key, known)
            elif not _has_type(known[key], value):
                type_name = _TOML_NAMES.get(type(value), "a date or time")
                yield f"{key} is {type_name}, and must be {_expected(known[key])}."
            else:
                try:
                    known[key].type_cast_value(ctx, value)
                except click.BadParameter as error:
                    why = "the value is not valid." if known[key].is_secret else error.message
                    yield f"{key}: {why}"


def _unknown(key: str, known: Mapping[str, Setting]) -> str:
    near = get_close_matches(key.lower().replace("-", "_"), known, n=1, cutoff=_LIKENESS)
    advice = f"Did you mean {near[0]}?" if near else "escapement config show lists all settings."
    return f"there is no setting {key}. {advice}"


def _types(setting: Setting) -> tuple[type, ...]:
    """Return the types of TOML that a value of the setting may have."""
    if setting.is_flag:
        return (bool,)
    if isinstance(setting.type, click.types.IntParamType):
        return (int,)
    if isinstance(setting.type, click.types.FloatParamType):
        return (int, float)
    return (str,)


def _has_type(setting: Setting, value: Any) -> bool:
    # Not ``isinstance``, because a bool is an int.
    types = _types(setting)
    if setting.multiple:
        return type(value) is list and all(type(one) in types for one in value)
    return type(value) in types


def _expected(setting: Setting) -> str:
    if setting.is_flag:
        return "true or false"
    if _types(setting) != (str,):
        return "a number"
    example = setting.default if isinstance(setting.default, str) else setting.metavar
    such_as = f" such as {_quoted(setting, example)}" if example else ""
    return f"{'an array of strings' if setting.multiple else 'a string'}{such_as}"


def _quoted(setting: Setting, example: str) -> str:
    return f'["{example}"]' if setting.multiple else f'"{example}"'


def _has_secret(setting: Setting, value: Any) -> bool:
    texts = value if isinstance(value, list) else [value]
    return setting.is_secret or any(redacted(str(one)) != str(one) for one in texts)
