"""`escapement serve`: its output, the reasons for which it refuses to start, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from escapement.broker.node.own_address import warn_if_unknown
from escapement.broker.server import listen
from escapement.cli.main import run
from escapement.errors import StorageError
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.sqlite import FILE_NAME
from support.database.servers import MysqlServer, SqlServer
from support.processes.broker import BrokerProcess, broker_process
from support.processes.forked import run_forked

SECRET = "s3cr3t-and-never-shown"
TIMEOUT_S = 60


def command(*options: str | Path) -> list[str]:
    return ["-m", "escapement", "serve", *map(str, options)]


def clean_environment(**variables: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("ESCAPEMENT_")}
    return kept | variables


def refused(*options: str | Path, **variables: str) -> str:
    """Return the one line in which `serve` says why it does not start."""
    program = [*command(*options), "--log-level", "error"]
    done = run_forked(*program, environment=clean_environment(**variables))
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert done.stderr.startswith("escapement: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_http_address_that_other_machines_reach_is_refused(tmp_path: Path) -> None:
    """O4: the error names the option that allows it."""
    said = refused("--data", tmp_path, "--http", "0.0.0.0")
    assert "--http 0.0.0.0 is not a loopback address" in said
    assert "--http-insecure" in said


@pytest.fixture(params=["sqlite", "mysql"])
def log_url(request: pytest.FixtureRequest) -> str | None:
    """No URL for SQLite, and the URL of a new MySQL database."""
    return request.getfixturevalue("mysql_url") if request.param == "mysql" else None


class Served:
    """A `serve` process with pipes, on a free port."""

    def __init__(self, *options: str | Path, **variables: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command(*options)],
            env=clean_environment(**{"ESCAPEMENT_LISTEN": "127.0.0.1:0"} | variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.ready = self.process.stdout.readline()
        self.rest = ""
        self.complaints = ""

    @property
    def address(self) -> str:
        found = re.match(r"escapement is ready on (\S+), log in ", self.ready)
        assert found, self.ready or self.end(signal.SIGKILL) or self.complaints
        return found[1]

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        self.rest, self.complaints = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.process.poll() is None:
            self.end(signal.SIGKILL)


# -- starting and stopping ---------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_prints_one_ready_line_and_exits_0_on_a_signal(
    tmp_path: Path, number: signal.Signals
) -> None:
    """P6: a clean stop exits with 0. With port 0, the ready line names the port."""
    with Served("--data", tmp_path / "data") as served:
        host, _, port = served.address.rpartition(":")
        assert host == "127.0.0.1"
        with socket.create_connection((host, int(port)), TIMEOUT_S):
            pass
        assert served.ready.endswith(f", log in SQLite at {tmp_path / 'data' / FILE_NAME}\n")
        assert served.end(number) == 0
        assert served.rest == ""
        assert f"stopping: {number.name}" in served.complaints


def test_ready_line_names_the_database_and_no_output_shows_the_password(
    tmp_path: Path, mysql_server: SqlServer, mysql_url: str
) -> None:
    to = MysqlAddress.parse(mysql_url)
    user = "escapement_secretive"
    mysql_server.admin(f"CREATE USER {user}@'%' IDENTIFIED BY '{SECRET}'")
    mysql_server.admin(f"GRANT ALL ON {to.database}.* TO {user}@'%'")
    try:
        url = f"mysql://{user}:{SECRET}@{to.host}:{to.port}/{to.database}"
        data = tmp_path / "data"
        with Served("--data", data, "--log-level", "debug", ESCAPEMENT_LOG=url) as served:
            where = f"log in MySQL at {to.host}:{to.port}/{to.database}\n"
            assert served.address
            assert served.ready.endswith(where)
            assert served.end(signal.SIGTERM) == 0
            assert SECRET not in served.rest + served.complaints
        mysql_server.admin(f"ALTER USER {user}@'%' IDENTIFIED BY 'another'")
        said = refused("--data", data, "--listen", "127.0.0.1:0", ESCAPEMENT_LOG=url)
        assert user in said
        assert SECRET not in said
    finally:
        mysql_server.admin(f"DROP USER {user}@'%'")


def test_flags_beat_the_environment_which_beats_defaults(tmp_path: Path) -> None:
    flagged, elsewhere = tmp_path / "flagged", tmp_path / "elsewhere"
    with Served("--data", flagged, ESCAPEMENT_DATA=str(elsewhere)) as served:
        assert served.address
        assert (flagged / FILE_NAME).exists()
        assert not elsewhere.exists()
        assert served.end(signal.SIGTERM) == 0


def test_options_reach_the_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Served("--data", tmp_path / "data", "--no-create-topics", "--max-delay", "1h") as served:
        at = ["--broker", served.address]
        assert run(["send", "orders", "x", *at]) == 1
        assert "orders" in capsys.readouterr().err
        assert run(["admin", "topics", "create", "orders", *at]) == 0
        assert run(["send", "orders", "x", "--delay", "61m", *at]) == 1
        assert "maximum delay" in capsys.readouterr().err
        assert run(["send", "orders", "x", "--delay", "59m", *at]) == 0
        assert served.end(signal.SIGTERM) == 0


# -- refusing to start -------------------------------------------------------------


def test_a_data_directory_in_use_is_refused(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data") as broker:
        said = refused("--data", tmp_path / "data", "--listen", "127.0.0.1:0")
        assert f"in use by process {broker.process.pid}" in said
        assert "--data" in said


def test_a_data_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = refused("--data", tmp_path / "file" / "data")
    assert f"cannot use the data directory {tmp_path / 'file' / 'data'}: Not a directory" in said


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        at = f"127.0.0.1:{holder.getsockname()[1]}"
        said = refused("--data", tmp_path / "data", "--listen", at)
    assert f"cannot listen on {at}: Address already in use" in said


def test_a_port_without_a_host_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The port alone would be read as the number of a host."""
    assert run(["serve", "--listen", "7650"]) == 2
    assert "Write HOST:PORT, such as 127.0.0.1:7650." in capsys.readouterr().err


def test_an_unreachable_database_is_refused_without_its_password(tmp_path: Path) -> None:
    url = f"mysql://broker:{SECRET}@127.0.0.1:1/escapement"
    said = refused("--data", tmp_path / "data", "--listen", "127.0.0.1:0", ESCAPEMENT_LOG=url)
    assert "mysql://broker@127.0.0.1:1/escapement" in said
    assert SECRET not in said


def test_a_read_only_database_is_refused(tmp_path: Path, mysql_to_break: MysqlServer) -> None:
    mysql_to_break.admin("CREATE DATABASE IF NOT EXISTS read_only_at_start")
    mysql_to_break.admin("SET GLOBAL read_only = 1")
    url = mysql_to_break.url("read_only_at_start")
    said = refused("--data", tmp_path / "data", "--listen", "127.0.0.1:0", ESCAPEMENT_LOG=url)
    assert "read_only is ON" in said


def test_a_table_without_transactions_is_refused(
    tmp_path: Path, mysql_server: SqlServer, mysql_url: str
) -> None:
    database = MysqlAddress.parse(mysql_url).database
    mysql_server.admin(f"CREATE TABLE {database}.old (id INT) ENGINE=MyISAM")
    said = refused("--data", tmp_path / "data", "--listen", "127.0.0.1:0", ESCAPEMENT_LOG=mysql_url)
    assert "the table old uses MyISAM" in said


def test_a_newer_schema_is_refused(
    tmp_path: Path, mysql_server: SqlServer, log_url: str | None
) -> None:
    data = tmp_path / "data"
    with broker_process(data, log_url) as broker:
        assert broker.stop() == 0
    newer = "INSERT INTO {} (version, name, checksum, applied_at_ms) VALUES (99, 'later', 'x', 0)"
    if log_url is None:
        with sqlite3.connect(data / FILE_NAME) as connection:
            connection.execute(newer.format("schema_migrations"))
        connection.close()
        said = refused("--data", data, "--listen", "127.0.0.1:0")
    else:
        database = MysqlAddress.parse(log_url).database
        mysql_server.admin(newer.format(f"{database}.schema_migrations"))
        said = refused("--data", data, "--listen", "127.0.0.1:0", ESCAPEMENT_LOG=log_url)
    assert "newer version of the program" in said


def test_the_same_broker_takes_its_lease_back_at_once_after_a_kill(
    tmp_path: Path, log_url: str | None
) -> None:
    """P6: a different broker would have to wait ten seconds for the lease."""
    broker = BrokerProcess(tmp_path / "data", log_url)
    try:
        broker.start()
        broker.kill()
        broker.start()
        assert broker.stop() == 0
    finally:
        broker.remove()


# -- invalid options ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--listen", ":80"], "is not host:port"),
        (["--listen", "host:port"], "is not host:port"),
        (["--listen", "host:70000"], "is not host:port"),
        (["--listen", "user@host:1"], "is not host:port"),
        (["--log", f"postgres://a:{SECRET}@b/c"], "begins with mysql://"),
        (["--log", f"mysql://a:{SECRET}@b/"], "database's name"),
        (["--log", f"mysql://a:{SECRET}@b/c?unknown=1"], "unknown option"),
        (["--ack-wait", "0s"], "too short"),
        (["--ack-wait", "3 minutes"], "is not a duration"),
        (["--max-delay", "-1d"], "is not a duration"),
        (["--table-parallelism", "0"], "--table-parallelism"),
        (["--max-commits-per-second", "0"], "--max-commits-per-second"),
        (["--index-memory", "1MiB"], "less than 16MiB"),
        (["--index-memory", "plenty"], "is not a size"),
        (["--ready-messages", "0"], "--ready-messages"),
        (["--log-level", "loud"], "--log-level"),
    ],
)
def test_invalid_serve_options_are_usage_errors(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert options[0] in error
    assert SECRET not in error
    assert "ESCAPEMENT_" not in error, "a flag was given, not a variable"


def test_error_names_the_invalid_variable_and_not_its_flag(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ESCAPEMENT_INDEX_MEMORY", "plenty")
    assert run(["serve"]) == 2
    error = capsys.readouterr().err
    assert "variable ESCAPEMENT_INDEX_MEMORY: 'plenty' is not a size" in error
    assert "--index-memory" not in error


class Names(trio.abc.HostnameResolver):
    """A resolver that knows one host with two addresses, as localhost may have."""

    async def getaddrinfo(self, host: Any, port: Any, *rest: Any) -> Any:
        if host == b"two":
            tcp = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
            return [(*tcp, (address, port)) for address in ("127.0.0.1", "127.0.0.2")]
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def getnameinfo(self, *rest: Any) -> Any:
        raise NotImplementedError


async def test_a_free_port_is_the_same_on_every_address_of_the_host() -> None:
    trio.socket.set_custom_hostname_resolver(Names())
    listeners = await listen("two", 0)
    ports = {listener.socket.getsockname() for listener in listeners}
    for listener in listeners:
        await listener.aclose()
    assert {address for address, _ in ports} == {"127.0.0.1", "127.0.0.2"}
    assert len({port for _, port in ports}) == 1


async def test_listen_releases_a_port_that_is_in_use_on_another_address() -> None:
    trio.socket.set_custom_hostname_resolver(Names())
    (taken,) = await trio.open_tcp_listeners(0, host="127.0.0.2")
    port = taken.socket.getsockname()[1]
    with pytest.raises(StorageError, match="is another broker running"):
        await listen("two", port)
    (free,) = await trio.open_tcp_listeners(port, host="127.0.0.1")
    await free.aclose()
    await taken.aclose()


@pytest.mark.parametrize(
    ("host", "port", "said"),
    [
        ("nowhere", 0, "no address is known for 'nowhere'"),
        ("192.0.2.1", 0, "this machine does not have the address"),
    ],
)
async def test_listen_error_names_its_cause(host: str, port: int, said: str) -> None:
    trio.socket.set_custom_hostname_resolver(Names())
    with pytest.raises(StorageError) as refused:
        await listen(host, port)
    assert said in str(refused.value)
    assert "another broker" not in str(refused.value)


async def test_advertised_host_that_nobody_knows_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trio.socket.set_custom_hostname_resolver(Names())
    await warn_if_unknown("two:7650")
    assert not caplog.records
    await warn_if_unknown("typo.invalid:7650")
    (logged,) = caplog.messages
    assert "typo.invalid:7650, and this machine knows no 'typo.invalid'" in logged


def test_a_broker_is_named_by_its_address_for_clients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """B8: brokers on several machines, which all listen on 0.0.0.0:7650, have different names."""
    with Served("--data", tmp_path / "data", "--advertise", "b.example:7650") as served:
        at = ["--broker", served.address]
        assert run(["admin", "-o", "json", "cluster", "status", *at]) == 0
        (node,) = json.loads(capsys.readouterr().out)["nodes"]
        assert (node["name"], node["address"]) == ("b.example:7650", "b.example:7650")
        assert served.end(signal.SIGTERM) == 0
    assert "; clients are told b.example:7650" in served.complaints


def test_advertised_host_without_a_port_has_the_port_of_listen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """B8: also if it is a free port. With 7650, other nodes would send clients nowhere."""
    with Served("--data", tmp_path / "data", "--advertise", "b.example") as served:
        at = ["--broker", served.address]
        assert run(["admin", "-o", "json", "cluster", "status", *at]) == 0
        (node,) = json.loads(capsys.readouterr().out)["nodes"]
        assert node["address"] == f"b.example:{served.address.rpartition(':')[2]}"
        assert not node["address"].endswith(":7650")
        assert served.end(signal.SIGTERM) == 0


def test_schedule_with_an_unknown_time_zone_is_shown_as_broken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with broker_process(tmp_path / "data") as broker:
        at = ["--broker", f"127.0.0.1:{broker.port}"]
        cron = ["--cron", "* * * * * *", "--timezone", "Asia/Tokyo"]
        assert run(["schedule", "create", "lost", "beats", *cron, *at]) == 0
        broker.kill()
        database = sqlite3.connect(broker.data / FILE_NAME)
        database.execute("UPDATE schedules SET timezone = 'Asia/Edo'")
        database.commit()
        database.close()
        broker.start()
        said = ""
        while "broken" not in said:
            assert run(["schedule", "list", *at]) == 0
            said = capsys.readouterr().out
        assert run(["schedule", "show", "lost", *at]) == 0
        assert "'Asia/Edo' is not a time zone" in capsys.readouterr().out


# -- the configuration file, and the log in JSON -----------------------------------


def events(text: str) -> list[dict[str, Any]]:
    """Return the events of a log in JSON. Each line must be one."""
    return [json.loads(line) for line in text.splitlines()]


def test_settings_of_the_file_reach_the_broker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """O6"""
    file = tmp_path / "escapement.toml"
    text = 'max_delay = "1h"\ncreate_topics = false\nlog_format = "json"'
    file.write_text(f'data = "{tmp_path / "data"}"\n{text}')
    with Served("--config", file, "--create-topics") as served:
        at = ["--broker", served.address]
        assert run(["send", "orders", "x", "--delay", "61m", *at]) == 1
        assert "maximum delay" in capsys.readouterr().err
        assert run(["send", "orders", "x", *at]) == 0, "a flag overrides the file"
        assert (tmp_path / "data" / FILE_NAME).exists()
        assert served.end(signal.SIGTERM) == 0
        assert events(served.complaints)


def test_log_in_json_has_the_broker_and_the_connection(tmp_path: Path) -> None:
    """O6: each line of a whole run is one object, and events of a connection name it."""
    with Served("--data", tmp_path / "data", "--log-format", "json") as served:
        host, _, port = served.address.rpartition(":")
        with socket.create_connection((host, int(port)), TIMEOUT_S) as peer:
            own = "{}:{}".format(*peer.getsockname())
            peer.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
            while peer.recv(4096):
                pass
        assert served.end(signal.SIGTERM) == 0
    found = events(served.complaints)
    names = [one["event"] for one in found]
    assert names[-2:] == ["broker.stopping", "broker.stopped"]
    assert "broker.ready" in names
    identity = {one["broker"] for one in found}
    assert len(identity) == 1
    (refused,) = [one for one in found if one["event"] == "connection.protocol_error"]
    assert refused["connection"] == own
    assert all(set(one) >= {"time", "level", "event", "message"} for one in found)


def test_failure_to_start_is_an_event_in_json_without_the_password(tmp_path: Path) -> None:
    url = f"mysql://broker:{SECRET}@127.0.0.1:1/escapement"
    with Served(
        *("--data", tmp_path / "data", "--log-format", "json", "--log-level", "debug"),
        ESCAPEMENT_LOG=url,
    ) as served:
        _, complaints = served.process.communicate(timeout=TIMEOUT_S)
        assert served.process.returncode == 1
    assert SECRET not in complaints
    (failed,) = [one for one in events(complaints) if one["event"] == "broker.failed"]
    assert failed["code"] == "storage_unavailable"


def test_readable_configuration_file_with_a_password_is_logged(tmp_path: Path) -> None:
    file = tmp_path / "escapement.toml"
    file.write_text(f'log_password = "{SECRET}"')
    file.chmod(0o644)
    with Served("--config", file, "--data", tmp_path / "data") as served:
        assert served.address
        assert served.end(signal.SIGTERM) == 0
        assert "WARNING config.readable_by_others: " in served.complaints
        assert SECRET not in served.complaints
