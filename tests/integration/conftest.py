"""A broker in its own process for the tests of a file, and command lines to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from escapement.cli.main import run
from support.processes.broker import BrokerProcess, broker_process
from support.processes.command_lines import Say


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("cli") / "data") as started:
        yield started


@pytest.fixture
def say(
    broker: BrokerProcess,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> Say:
    """Return a function that runs a command line.

    The function returns stdout, or stderr if the command is to fail with exit code ``fails``.
    ``notes`` is a part of stderr that the command prints without failing.
    """
    monkeypatch.setenv("ESCAPEMENT_BROKER", f"127.0.0.1:{broker.port}")

    def run_command(*words: str, fails: int = 0, notes: str = "") -> str:
        code = run(words)
        out, err = (text.decode() for text in capsysbinary.readouterr())
        assert code == fails, err
        assert out == "" if fails else (notes in err and bool(notes) == bool(err))
        return err if fails else out

    return run_command
