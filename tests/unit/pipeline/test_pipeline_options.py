"""Options of the data source: their meaning, refusals, and protection of secrets."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from escapement.cli.pipeline.source import refusals
from escapement.errors import InvalidRequest, StorageError
from escapement.pipeline.options import LogAddress, Options
from escapement.storage.engine.mysql.engine import MysqlEngine

SECRET = "s3cr3t-of-the-log"

# Runs some jobs. Prints the exit code of each, and whether Spark was not started.
ASK = """
import json, sys
from escapement.cli.main import run
codes = [run(["pipeline", *words]) for words in json.loads(sys.argv[1])]
context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
print(codes, context is None or context._gateway is None)
"""


def test_password_among_the_options_is_refused_and_not_printed() -> None:
    """B7."""
    with pytest.raises(InvalidRequest, match="passwordFile") as in_url:
        LogAddress.of(Options({"url": f"mysql://me:{SECRET}@db/log"}))
    with pytest.raises(InvalidRequest, match="passwordFile") as by_itself:
        Options({"Password": SECRET}).check(["url"])
    assert SECRET not in f"{in_url.value} {by_itself.value}"


def test_password_is_read_from_a_file_or_the_environment_and_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B7."""
    file = tmp_path / "password"
    file.write_text(SECRET + "\n")
    by_file = LogAddress.of(Options({"url": "mysql://db/log", "passwordFile": str(file)}))
    by_variable = LogAddress.of(Options({"url": "mysql://db/log", "user": "reader"}))
    monkeypatch.setenv("ESCAPEMENT_PASSWORD", SECRET)
    for address, user in ((by_file, "root"), (by_variable, "reader")):
        engine = address.engine()
        assert isinstance(engine, MysqlEngine)
        assert (engine._address.user, engine._address.password) == (user, SECRET)
        for shared in (repr(address), engine.location, pickle.dumps(address).decode("latin1")):
            assert SECRET not in shared


def test_environment_names_the_log_if_no_option_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B7."""
    monkeypatch.delenv("ESCAPEMENT_LOG", raising=False)
    nowhere = LogAddress.of(Options({}))
    with pytest.raises(InvalidRequest, match="the address of the log is missing"):
        nowhere.engine()
    monkeypatch.setenv("ESCAPEMENT_LOG", f"mysql://broker:{SECRET}@db:3307/log")
    assert nowhere.engine().location == "mysql://broker@db:3307/log"
    monkeypatch.setenv("ESCAPEMENT_USER", "reader")
    assert nowhere.engine().location == "mysql://reader@db:3307/log"
    for options, user in (
        ({"url": "mysql://db/log"}, "reader"),
        ({"url": "mysql://writer@db/log"}, "writer"),
        ({"url": "mysql://writer@db/log", "user": "auditor"}, "auditor"),
    ):
        at = LogAddress.of(Options(options)).engine().location
        assert at == f"mysql://{user}@db:3306/log"


def test_invalid_option_is_refused_by_name() -> None:
    """B7."""
    for number in ("many", "0", f"{1 << 63}"):
        options = Options({"minPartitions": number, "failOnDataLoss": "maybe", "TOPIC": " "})
        with pytest.raises(
            InvalidRequest, match=f"minPartitions must be an integer from 1 to .* not '{number}'"
        ):
            options.number("minPartitions")
    assert Options({"txnVersion": f"{(1 << 63) - 1}"}).number("txnVersion") == (1 << 63) - 1
    with pytest.raises(InvalidRequest, match="failOnDataLoss must be true or false, not 'maybe'"):
        options.flag("failOnDataLoss", True)
    with pytest.raises(
        InvalidRequest, match="unknown option 'minpartitions'; known options: failOnDataLoss, topic"
    ):
        options.check(["topic", "failOnDataLoss"])
    assert options.text("topic") is None
    with pytest.raises(InvalidRequest, match="not both"):
        LogAddress.of(Options({"url": "mysql://db/log", "data": "/var/lib/x"}))


def test_spark_failure_is_one_line_unless_it_may_be_a_bug() -> None:
    """B7."""
    begun = "An error occurred while calling o67.text.\n: org.apache.spark.SparkException: Job"
    stopped = "Caused by: java.io.IOException: Mkdirs failed to create file:/archive\n\tat x\n"
    with (
        pytest.raises(StorageError, match=r"^Spark failed: java.io.IOException: Mkdirs .*ve$"),
        refusals(),
    ):
        raise RuntimeError(f"{begun}\n\tat y\nCaused by: another\n{stopped}\t... 1 more")
    for kind in ("org.apache.hadoop.fs.ParentNotDirectoryException", "java.io.IOException"):
        with pytest.raises(StorageError, match=f"^Spark failed: {kind}: /archive$"), refusals():
            raise RuntimeError(f"An error occurred while calling o1.parquet.\n: {kind}: /archive\n")
    refused = "Caused by: org.apache.spark.api.python.PythonException: Traceback"
    with (
        pytest.raises(InvalidRequest, match=r"^the log begins at 5$"),
        refusals(),
    ):
        raise RuntimeError(
            f"{begun}\n{refused}\nescapement.errors.LogForgotten: the log begins at 5"
        )
    for mistake in (f"{begun}\n{refused}\nKeyError: 1", begun):
        with pytest.raises(RuntimeError), refusals():
            raise RuntimeError(mistake)


def test_no_log_is_created_in_a_directory_without_one(tmp_path: Path) -> None:
    """B7."""
    with pytest.raises(InvalidRequest, match="has no SQLite log"):
        LogAddress.of(Options({"data": str(tmp_path)})).engine()
    assert not list(tmp_path.iterdir())


def test_job_without_a_usable_log_is_refused_before_spark_starts(tmp_path: Path) -> None:
    """B7: a typing mistake costs no time, and no secret reaches a session."""
    jobs = [["forecast", "t"], ["lag"], ["audit"], ["archive", "--to", "a"]]
    asked = [[*job, "--log", f"mysql://broker:{SECRET}@db/log"] for job in jobs]
    asked += [[*job, "--data", str(tmp_path)] for job in jobs]
    asked += jobs
    rebuild = ["rebuild", "--data", str(tmp_path)]
    asked += [[*rebuild, *by] for by in (["--engine", "spark"], ["--master", "spark://host:7077"])]
    ran = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(asked)],
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "ESCAPEMENT_LOG"},
    )
    assert ran.stdout == f"{[1] * len(asked)} True\n", ran.stderr
    assert ran.stderr.count("the URL of --log must have no password") == len(jobs)
    assert ran.stderr.count(
        "the address of the log is missing. Give url (in a command: --log)"
    ) == len(jobs)
    assert SECRET not in ran.stderr
