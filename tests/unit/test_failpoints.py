"""Failpoints: what an environment variable may say, and what a point then does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import escapement
from escapement import failpoints
from escapement.errors import InvalidRequest, OutcomeUnknown
from escapement.failpoints import POINTS, VARIABLE, failpoint, parse, passes, set_actions


@pytest.fixture(autouse=True)
def cleared() -> Iterator[None]:
    yield
    failpoints.clear()


def test_point_raises_its_error_only_in_the_chosen_pass() -> None:
    set_actions(*parse("after_commit=error@2"))
    failpoint("after_commit")
    with pytest.raises(OutcomeUnknown):
        failpoint("after_commit")
    failpoint("after_commit")
    failpoint("reply")
    assert passes() == {"after_commit": 3, "reply": 1}


def test_point_without_a_number_acts_in_each_pass() -> None:
    set_actions(*parse("before_fsync=error, cancel=pause:0"))
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            failpoint("before_fsync")
        failpoint("cancel")


@pytest.mark.parametrize("do", ["kill", "stop"])
def test_process_is_killed_or_stopped_in_the_chosen_pass(do: str) -> None:
    script = (
        "from escapement.failpoints import *\n"
        "set_by_environment()\n"
        "for number in (1, 2, 3):\n"
        "    print(number, flush=True)\n"
        "    failpoint('reply')\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, VARIABLE: f"reply={do}@2"},
        stdout=subprocess.PIPE,
    ) as process:
        how = os.WSTOPPED if do == "stop" else os.WEXITED | os.WNOWAIT
        ended = os.waitid(os.P_PID, process.pid, how)
        process.kill()
        assert process.communicate() == (b"1\n2\n", None)
    assert ended is not None
    assert ended.si_code == (os.CLD_STOPPED if do == "stop" else os.CLD_KILLED)


@pytest.mark.parametrize("text", ["comit=kill", "reply", "reply=explode", "reply=kill@0", "=kill"])
def test_wrong_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=VARIABLE):
        parse(text)


def test_each_point_stands_at_one_place_of_the_code() -> None:
    """A failpoint that no code reaches would make its tests succeed without a fault."""
    root = Path(escapement.__file__).parent
    calls = [
        name
        for path in root.rglob("*.py")
        for name in re.findall(r"^ +failpoint\(\"(\w+)\"\)$", path.read_text(), re.MULTILINE)
    ]
    assert sorted(calls) == sorted(POINTS)
