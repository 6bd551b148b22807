"""`escapement stream` beside a running broker that serves a message table."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from support.processes.broker import BrokerProcess, broker_process
from support.tables.shops import Shop

START_TIMEOUT_S = 30


def stream(broker: BrokerProcess, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "escapement", "stream"),
            *arguments,
            *("--broker", f"127.0.0.1:{broker.port}"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_rows_are_printed_as_they_arrive(mysql_url: str, tmp_path: Path) -> None:
    """V19."""
    shop = Shop(mysql_url)
    shop.create()
    first = shop.insert(tenant_id=7, message='{"to": "ada"}')
    with broker_process(tmp_path / "data", None, "--tables", mysql_url) as broker:
        rows = stream(broker, "STREAM * FROM mails", "--ack", "--format", "json")
        assert rows.stdout is not None
        assert json.loads(rows.stdout.readline())["id"] == first
        second = shop.insert(message="[]")
        assert json.loads(rows.stdout.readline())["id"] == second
        rows.send_signal(signal.SIGINT)
        _, errors = rows.communicate(timeout=START_TIMEOUT_S)
        assert (rows.returncode, errors.strip()) == (130, "")
        assert [row[0] is None for row in shop.rows("time_acked")] == [False, False]

        third = shop.insert(tenant_id=8, message="{}")
        table = stream(broker, "STREAM id, tenant_id FROM mails", "--count", "1")
        printed, errors = table.communicate(timeout=START_TIMEOUT_S)
        assert (table.returncode, errors) == (0, "")
        header, *_, line = printed.splitlines()
        assert header.split() == ["id", "tenant_id"]
        assert line.split() == [str(third), "8"]
        assert shop.row(third, "time_acked") == (None,)

        wrong = stream(broker, "STREAM * FROM letters")
        _, errors = wrong.communicate(timeout=START_TIMEOUT_S)
        assert wrong.returncode == 1
        assert "Write the database of table letters" in errors


def test_column_that_is_not_sent_ends_the_command_before_the_first_row(
    mysql_url: str, tmp_path: Path
) -> None:
    """V19."""
    shop = Shop(mysql_url)
    shop.create()
    with broker_process(tmp_path / "data", None, "--tables", mysql_url) as broker:
        rows = stream(broker, "STREAM id, priority FROM mails")
        _, errors = rows.communicate(timeout=START_TIMEOUT_S)
        assert rows.returncode == 1
        assert "Table mails has no column priority. It has id, tenant_id, message." in errors


def test_rows_are_acknowledged_by_the_name_of_their_table(mysql_url: str, tmp_path: Path) -> None:
    """V17: as ``stream`` finds the table."""
    shop = Shop(mysql_url)
    shop.create()
    id = shop.insert()
    with broker_process(tmp_path / "data", None, "--tables", mysql_url) as broker:

        def ack(table: str, *ids: str) -> tuple[int, str]:
            words = [sys.executable, "-m", "escapement", "tables", "ack", table, *ids]
            words += ["--broker", f"127.0.0.1:{broker.port}"]
            said = subprocess.run(words, capture_output=True, text=True, check=False)
            return said.returncode, said.stdout + said.stderr

        code, said = ack("mails", "abc")
        assert code == 1
        assert "'abc' cannot be an id, because the column has the type bigint" in said
        assert f"ids of table://{shop.address.database}/mails" in said
        assert ack("mails", str(id)) == (0, "acknowledged 1 row\n")
        code, said = ack("letters", "1")
        assert code == 1
        assert "Write the database of table letters" in said
