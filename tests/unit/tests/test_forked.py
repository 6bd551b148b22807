"""Programs that run in forks of a process that has imported the broker."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from support.processes.forked import ForkedProcess, run_forked

TIMEOUT_S = 60


def forked(tmp_path: Path, code: str, *arguments: str) -> ForkedProcess:
    """Run a script that begins by saying that it runs."""
    script = tmp_path / "script.py"
    script.write_text("import os, sys, time\nprint('runs', flush=True)\n" + code)
    program = [str(script), *arguments]
    return ForkedProcess(program, {"HERE": "yes"}, tmp_path / "out", tmp_path / "err")


def test_program_has_its_own_arguments_environment_session_and_files(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("of an earlier process\n" * 9)
    (tmp_path / "err").write_text("earlier\n")
    code = "print(__name__, sys.argv[1:], dict(os.environ), os.getsid(0))\nsys.exit('ends')"
    process = forked(tmp_path, code, "a", "b")
    assert process.wait(TIMEOUT_S) == process.returncode == 1
    said = f"runs\n__main__ ['a', 'b'] {{'HERE': 'yes'}} {process.pid}\n"
    assert (tmp_path / "out").read_text() == said
    assert (tmp_path / "err").read_text() == "earlier\nends\n"
    assert process.pid != os.getpid()


def test_module_runs_as_on_the_command_line() -> None:
    done = run_forked("-m", "escapement", "serve", "--listen", "nowhere", environment=os.environ)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("escapement: cannot listen on nowhere")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_signal_ends_a_program(number: signal.Signals, tmp_path: Path) -> None:
    process = forked(tmp_path, "time.sleep(3600)")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    assert process.poll() is None
    while not (tmp_path / "out").exists() or not (tmp_path / "out").read_text():
        assert process.poll() is None
    process.send_signal(number)
    assert process.wait(TIMEOUT_S) == -number
    process.kill()  # does nothing more
    assert process.poll() == -number
