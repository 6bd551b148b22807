"""Help texts and the version of the command line, and the demo."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pytest
import trio

from escapement.bench.host import Host
from escapement.cli.demo.demo import Demo
from escapement.cli.main import escapement as commands
from escapement.cli.main import run
from escapement.errors import InvalidRequest
from escapement.storage.engine.open import open_engine
from escapement.storage.schema import log_identity, migrate
from support.processes.command_lines import TIMEOUT_S

# -- help --------------------------------------------------------------------------


def all_commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*path, name), command
        if hasattr(command, "commands"):
            yield from all_commands(command, (*path, name))


def context_of(path: Sequence[str]) -> click.Context:
    """Return the context of a group, as if one of its commands had been called."""
    group: Any = commands
    context: click.Context = group.make_context("escapement", ["x"])
    for name in path:
        group = group.get_command(context, name)
        context = group.make_context(name, ["x"], parent=context)
    return context


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for path, command in all_commands(commands):
        assert run([*path, "--help"]) == 0
        output = capsys.readouterr().out
        assert f"Usage: escapement {' '.join(path)}" in output
        assert command.help, path
        for option in command.params:
            if option.param_type_name == "option" and not option.hidden:
                assert option.help, (path, option.name)


def test_examples_of_every_command_parse(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for path, command in all_commands(commands):
        assert run([*path, "--help"]) == 0
        output = re.sub(r"\\\n +", "", capsys.readouterr().out)  # an example of several lines
        examples = re.findall(r"^ {4}(?:jq .* \| )?escapement (.*?)(?: &)?$", output, re.MULTILINE)
        if hasattr(command, "commands"):
            continue
        name = " ".join(path)
        assert any(example.startswith(name) for example in examples), path
        for example in examples:
            if example.startswith(name):
                above = context_of(path[:-1])
                words = shlex.split(example.removeprefix(name))
                if "--config" in words:  # this machine lacks the file of the example
                    with pytest.raises(InvalidRequest, match="cannot read the configuration file"):
                        command.make_context(path[-1], words, parent=above)
                else:
                    command.make_context(path[-1], words, parent=above)


def test_version_option_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("escapement, version ")


# -- the demo ----------------------------------------------------------------------


def test_the_demo_keeps_every_promise_over_a_kill(tmp_path: Path) -> None:
    """P6: the demo kills the broker and checks its promises."""
    picture = tmp_path / "demo.svg"
    command = [sys.executable, "-m", "escapement", "demo", "--messages", "500", "--seconds", "3"]
    done = subprocess.run(
        [*command, "--svg", str(picture)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "killed it with SIGKILL" in done.stdout
    assert done.stdout.endswith("Every promise was kept.\n")
    assert "Every promise was kept." in picture.read_text().replace("&#160;", " ")


class ForgetfulHost(Host):
    """A broker whose log has nothing but its identity after a kill."""

    def kill(self) -> None:
        super().kill()
        with closing(open_engine(None, self._data)) as engine, closing(engine.connect()) as found:
            identity = log_identity(found)
        shutil.rmtree(self._data)
        self._data.mkdir()
        with closing(open_engine(None, self._data)) as engine:
            migrate(engine)
            with closing(engine.connect()) as found:
                found.execute("UPDATE log_identity SET identity = ?", (identity,))


def test_the_demo_notices_a_broken_promise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = ForgetfulHost(tmp_path / "data", None)
    (tmp_path / "data").mkdir()
    try:
        assert trio.run(Demo(host, 200, 2.0, 0.5).run) is False
    finally:
        host.kill()
    assert "A promise was broken." in capsys.readouterr().out
