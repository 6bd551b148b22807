"""The public names of the package, and the cost of importing it."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

import click
import pytest

import escapement
from escapement.cli.main import escapement as commands

# The packages that take most of the import time.
HEAVY: Final = {"numpy", "trio", "anyio", "pymysql", "rich"}


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a new interpreter has loaded after a statement."""
    script = f"import sys\n{statement}\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())


def test_every_public_name_is_the_object_of_its_module() -> None:
    tree = ast.parse(Path(escapement.__file__).read_text())
    imported = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("escapement.")
        for alias in node.names
    }
    assert set(imported) == set(escapement.__all__)
    for name, home in imported.items():
        assert home is not None
        assert getattr(escapement, name) is getattr(import_module(home), name)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        escapement.nothing  # noqa: B018


def test_help_imports_no_heavy_packages() -> None:
    loaded = loaded_by("from escapement.cli.main import run\nassert run(['--help']) == 0")
    assert "escapement.cli.main" in loaded
    assert not loaded & HEAVY


def test_producing_does_not_import_the_broker_or_a_database() -> None:
    loaded = loaded_by("from escapement.cli.main import run\nassert run(['produce', '-h']) == 0")
    assert "escapement.client.producing.producer" in loaded
    assert not loaded & {"pymysql", "rich", "escapement.broker.broker", "escapement.storage"}


def test_every_command_is_found_by_its_name() -> None:
    context = click.Context(commands)
    for name in [*commands.list_commands(context), "send"]:
        found = commands.get_command(context, name)
        assert found is not None
        assert found.name == {"send": "produce"}.get(name, name)
    assert commands.get_command(context, "nothing") is None


@pytest.mark.parametrize("module", ["click", "trio", "numpy"])
def test_an_interrupt_while_modules_are_imported_leaves_no_traceback(
    module: str, tmp_path: Path
) -> None:
    """The interrupt arrives in a class body, where Python turns an exception into another one."""
    (tmp_path / f"{module}.py").write_text(
        "import os, signal\n"
        "class Late:\n"
        "    def __set_name__(self, owner, name):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "class Owner:\n"
        "    late = Late()\n"
    )
    command = [sys.executable, "-m", "escapement", "peek", "orders"]
    # Restore the default handler: a child process inherits an ignored SIGINT.
    ended = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")
