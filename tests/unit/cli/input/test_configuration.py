"""Settings of `escapement serve` from flags, variables and a file; `escapement config`."""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any, Final

import click
import pytest

from escapement.cli.input.configuration import (
    SecretSetting,
    Setting,
    read_configuration,
    settings_of,
)
from escapement.cli.main import run
from escapement.cli.operation.serve import serve
from escapement.errors import InvalidRequest

ROOT: Final = Path(__file__).parents[4]
EXAMPLE: Final = ROOT / "deploy" / "escapement.toml"
SETTINGS: Final = settings_of(serve)
SECRET: Final = "s3cr3t-and-never-shown"
# Texts of which each setting accepts at least one.
TEXTS: Final = ("3h", "64MiB", "mysql://user@host/db", "debug", "json", "required", "127.0.0.1:1")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ESCAPEMENT_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs `config show` and returns the rows by the name of the setting."""

    def shown(*options: str | Path) -> dict[str, dict[str, Any]]:
        assert run(["config", "show", "-o", "json", *map(str, options)]) == 0
        return {row["setting"]: row for row in json.loads(capsys.readouterr().out)}

    return shown


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(InvalidRequest) as refused:
        read_configuration(path, serve)
    return str(refused.value)


def valid_value(setting: Setting) -> Any:
    """Return a value that is valid in the file."""
    if setting.is_flag:
        return True
    if isinstance(setting.type, click.IntRange | click.FloatRange):
        return int(setting.type.min or 0) + 1
    for text in TEXTS:
        try:
            setting.type.convert(text, setting, None)
        except click.BadParameter:
            continue
        return [text] if setting.multiple else text
    raise AssertionError(f"no text of TEXTS is valid for {setting.key}")


# -- precedence --------------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_flag_beats_variable_beats_file_beats_default(
    setting: Setting, tmp_path: Path, show: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O6: `config show` says where each value comes from."""
    value = valid_value(setting)
    text = value[0] if setting.multiple else "true" if value is True else str(value)
    if setting.key.endswith("_password_file"):
        text = value = str(written(tmp_path / "password", "p"))
    file = written(tmp_path / "file.toml", f"{setting.key} = {json.dumps(value)}\n")

    def source(*options: str | Path) -> tuple[str, str | None]:
        row = show(*options).get(setting.key, {"source": "default", "origin": None})
        return row["source"], row["origin"]

    assert source() == ("default", None)
    assert source("--config", file) == ("file", str(file))
    assert isinstance(setting.envvar, str)
    monkeypatch.setenv(setting.envvar, text)
    assert source("--config", file) == ("variable", setting.envvar)
    if not isinstance(setting, SecretSetting):
        flag = [setting.flag] if setting.is_flag else [setting.flag, text]
        assert source("--config", file, *flag) == ("flag", setting.flag)


def test_every_option_of_serve_is_a_setting() -> None:
    """So a new option is a key of the file, and `config show` shows it."""
    others = [option.name for option in serve.params if not isinstance(option, Setting)]
    assert others == ["config"]
    for setting in SETTINGS:
        assert setting.envvar == f"ESCAPEMENT_{setting.key.upper()}", setting.key


def test_variable_names_the_file(
    tmp_path: Path, show: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path / "file.toml", 'ack_wait = "7s"')
    monkeypatch.setenv("ESCAPEMENT_CONFIG", str(file))
    assert show()["ack_wait"]["value"] == "7s"


def test_table_shows_values_as_they_were_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", "--index-memory", "64MiB", "--binlog"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"index_memory +64MiB +flag --index-memory", out)
    assert re.search(r"binlog +true +flag --binlog", out)
    assert re.search(r"listen +127.0.0.1:7650 +default", out)


# -- mistakes ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('ack-wait = "1m"', "there is no setting ack-wait. Did you mean ack_wait?"),
        ('acc_wait = "1m"', "there is no setting acc_wait. Did you mean ack_wait?"),
        ("[log]", "log is a table, and must be a string such as"),
        ("qqqqqq = 1", "there is no setting qqqqqq. escapement config show lists all settings."),
        ("ack_wait = 30", 'ack_wait is an integer, and must be a string such as "30s".'),
        ('binlog = "true"', "binlog is a string, and must be true or false."),
        ("binlog = 1", "binlog is an integer, and must be true or false."),
        ("ready_messages = true", "ready_messages is a boolean, and must be a number."),
        ("ready_messages = 1.5", "ready_messages is a float, and must be a number."),
        ("data = 2026-01-01", "data is a date or time, and must be a string"),
        ('tables = "mysql://a@b/c"', "tables is a string, and must be an array of strings such as"),
        ("tables = [1]", "tables is an array, and must be an array of strings such as"),
        ("ready_messages = 0", "ready_messages: 0 is not in the range"),
        ('index_memory = "1MiB"', "index_memory: 1MiB is less than 16MiB."),
        ('ack_wait = "soon"', "ack_wait: 'soon' is not a duration"),
        ('log_level = "loud"', "log_level: 'loud' is not one of"),
        (f'log = "mysql://a:{SECRET}@b"', "log: a database URL ends with the database's name"),
        ("log_password = 5", "log_password is an integer, and must be a string"),
        ("data = ", "is not valid TOML: Invalid value (at"),
        ('data = "x"\ndata = "y"', "is not valid TOML: Cannot overwrite a value (at"),
    ],
)
def test_mistake_is_refused_with_file_key_and_what_is_expected(
    line: str, said: str, tmp_path: Path
) -> None:
    """O6"""
    file = written(tmp_path / "file.toml", line)
    found = refusal(file)
    assert found.startswith(str(file))
    assert said in found
    assert SECRET not in found


def test_all_mistakes_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    file = written(tmp_path / "file.toml", 'acc_wait = "1m"\nbinlog = 1\nlog_level = "loud"')
    assert len(refusal(file).splitlines()) == 3


def test_mistake_is_refused_although_a_flag_overrides_the_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path / "file.toml", 'ack_wait = "soon"')
    assert run(["serve", "--config", str(file), "--ack-wait", "1m"]) == 1
    assert capsys.readouterr().err.startswith(f"escapement: {file}: ack_wait: 'soon'")


def test_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    missing = tmp_path / "none.toml"
    assert refusal(missing) == f"cannot read the configuration file {missing}: " + os.strerror(2)
    (tmp_path / "latin.toml").write_bytes(b'data = "\xe9"')
    assert "is not valid TOML" in refusal(tmp_path / "latin.toml")


def test_config_check_reports_whether_a_file_is_valid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path / "file.toml", 'data = "x"\nbinlog = false')
    assert run(["config", "check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file} is valid: 2 settings.\n"
    written(file, "datta = 1")
    assert run(["config", "check", str(file)]) == 1
    assert "Did you mean data?" in capsys.readouterr().err


# -- secrets -----------------------------------------------------------------------


def urls(*options: str | Path) -> tuple[str | None, tuple[str, ...]]:
    """Return the URLs of the log and of the outboxes that `serve` gets from these options."""
    with serve.make_context("serve", list(map(str, options))) as ctx:
        return ctx.params["log_url"], ctx.params["outbox_urls"]


def test_password_comes_from_a_file_a_variable_or_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O6: the URL in the configuration file needs no password."""
    password = written(tmp_path / "password", "p@ss/w:rd\n")
    url = 'log = "mysql://broker@db:1/x?read_timeout=3"\n'
    file = written(tmp_path / "file.toml", f'{url}log_password_file = "{password}"\n')
    assert urls("--config", file)[0] == "mysql://broker:p%40ss%2Fw%3Ard@db:1/x?read_timeout=3"
    written(file, f'{url}log_password = "own"\n')
    assert urls("--config", file)[0] == "mysql://broker:own@db:1/x?read_timeout=3"
    monkeypatch.setenv("ESCAPEMENT_LOG_PASSWORD", "of a variable")
    found = urls("--config", file, "--outbox", "mysql://a@b/c")
    assert found[0] == "mysql://broker:of%20a%20variable@db:1/x?read_timeout=3"
    assert found[1] == ("mysql://a@b/c",), "an outbox has its own password"
    assert (
        urls("--config", file, "--log-password-file", password)[0]
        == "mysql://broker:p%40ss%2Fw%3Ard@db:1/x?read_timeout=3"
    ), "a flag beats a variable"


def test_password_of_a_url_is_kept_and_all_others_get_the_one_of_the_file(tmp_path: Path) -> None:
    password = written(tmp_path / "password", "q")
    found = urls(
        *("--outbox", "mysql://a@b/c", "--outbox", "mysql://a:p@b/d", "--outbox", "mysql://b/e"),
        *("--outbox-password-file", password),
    )
    assert found[1] == ("mysql://a:q@b/c", "mysql://a:p@b/d", "mysql://root:q@b/e")


@pytest.mark.parametrize("content", ["", "\n", "a\nb\n", "x" * 2000])
def test_password_file_without_exactly_one_line_is_refused(content: str, tmp_path: Path) -> None:
    file = written(tmp_path / "password", content)
    with pytest.raises(InvalidRequest, match="must contain one line"):
        urls("--log", "mysql://a@b/c", "--log-password-file", file)


def test_two_passwords_from_one_source_are_refused(tmp_path: Path) -> None:
    text = 'log = "mysql://a@b/c"\nlog_password = "x"\nlog_password_file = "y"'
    with pytest.raises(InvalidRequest, match="give only one of them"):
        urls("--config", written(tmp_path / "file.toml", text))


def test_password_on_the_command_line_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--log", "mysql://a@b/c", "--log-password", SECRET]) == 2
    error = capsys.readouterr().err
    assert "ESCAPEMENT_LOG_PASSWORD" in error
    assert SECRET not in error


@pytest.mark.parametrize("output", ["table", "json"])
def test_config_show_hides_every_secret(
    output: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """O6"""
    monkeypatch.setenv("ESCAPEMENT_TABLES", f"mysql://a:{SECRET}@b/c mysql://a:{SECRET}@b/d")
    monkeypatch.setenv("ESCAPEMENT_OUTBOX_PASSWORD", SECRET)
    text = f'log = "mysql://a:{SECRET}@b/c"\noutbox = ["mysql://a@b/c"]\nlog_password = "{SECRET}"'
    file = written(tmp_path / "file.toml", text)
    assert run(["config", "show", "--config", str(file), "-o", output]) == 0
    captured = capsys.readouterr()
    assert SECRET not in captured.out + captured.err
    assert captured.out.count("mysql://a:***@b/c") == 2
    assert "outbox_password" in captured.out


@pytest.mark.parametrize(
    ("text", "mode", "warns"),
    [
        (f'log = "mysql://a:{SECRET}@b/c"', 0o644, True),
        (f'tables = ["mysql://a:{SECRET}@b/c"]', 0o644, True),
        (f'log_password = "{SECRET}"', 0o604, True),
        (f'log = "mysql://a:{SECRET}@b/c"', 0o640, False),
        ('log = "mysql://a@b/c"', 0o644, False),
    ],
)
def test_file_with_a_password_that_others_can_read_gives_a_warning(
    text: str, mode: int, warns: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """O6"""
    file = written(tmp_path / "file.toml", text, mode)
    assert run(["config", "check", str(file)]) == 0
    error = capsys.readouterr().err
    assert (f"chmod o-r {file}" in error) is warns
    assert SECRET not in error


# -- the example -------------------------------------------------------------------


def test_example_file_is_valid(tmp_path: Path) -> None:
    found = read_configuration(EXAMPLE, serve)
    assert found.warnings == ()
    assert "data" in found.values


def test_example_file_shows_every_setting_with_a_valid_value(tmp_path: Path) -> None:
    """A new option of `serve` needs a few lines in deploy/escapement.toml."""
    text = re.sub(r"^# (\w+ = )", r"\1", EXAMPLE.read_text(), flags=re.MULTILINE)
    assert set(tomllib.loads(text)) == {setting.key for setting in SETTINGS}
    read_configuration(written(tmp_path / "all.toml", text), serve)
