"""Access control of a broker in a process of its own: the first token, files, logs, the port."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

import escapement.sync
from escapement.access.token import Token
from escapement.client.connection.token_source import FILE_VARIABLE, TOKEN_VARIABLE
from escapement.errors import AccessDenied, Disconnected, StorageError, Unauthenticated
from support.database.servers import free_port
from support.processes.broker import PATIENT, BrokerProcess, broker_process
from support.processes.forked import run_forked

TIMEOUT_S = 120


@pytest.fixture(params=["sqlite", "mysql"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerProcess]:
    """Run a broker on each kind of log."""
    url = request.getfixturevalue("mysql_url") if request.param == "mysql" else None
    with broker_process(tmp_path / "data", url) as running:
        yield running


def said(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    environment = {n: v for n, v in os.environ.items() if n not in (TOKEN_VARIABLE, FILE_VARIABLE)}
    return run_forked("-m", "escapement", *words, environment=environment | variables)


def ok(*words: str, **variables: str) -> str:
    done = said(*words, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_first_token_roles_and_revocation_on_a_running_broker(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """O1: from a broker without tokens to one on which a role may do only what it was granted."""
    at = {"ESCAPEMENT_BROKER": f"127.0.0.1:{broker.port}"}
    ok("admin", "topics", "create", "shop/eu/orders", **at)
    root = ok("admin", "bootstrap", "--data", str(broker.data))
    assert not list(broker.data.glob("bootstrap*"))
    refused = said("admin", "topics", "list", **at)
    assert refused.returncode == 1
    assert "requires a token" in refused.stderr

    root_file, billing_file = tmp_path / "root.token", tmp_path / "billing.token"
    root_file.write_text(root + "\n")
    as_root = ("--token-file", str(root_file), "admin")
    billing_file.write_text(ok(*as_root, "tokens", "create", "billing", **at))
    as_billing = at | {FILE_VARIABLE: str(billing_file)}
    refused = said("produce", "shop/eu/orders", "x", **as_billing)
    assert "--actions produce" in refused.stderr
    ok(*as_root, "grants", "add", "billing", "shop/eu/*", "--actions", "produce,consume", **at)
    assert ok("produce", "shop/eu/orders", "x", **as_billing) == "shop/eu/orders@0"
    consumed = ok(
        "consume", "shop/eu/orders", "s", "--from", "earliest", "--count", "1", **as_billing
    )
    assert consumed.endswith("x")
    assert "billing  shop/eu/*  produce,consume" in ok(*as_root, "grants", "list", **at)
    own = ok("admin", "grants", "own", **as_billing)
    assert f"token id  {Token.parse(billing_file.read_text()).id}" in own
    assert "billing  shop/eu/*  produce,consume" in own

    with (
        escapement.sync.connect(broker.url, token=root, settings=PATIENT) as admin,
        escapement.sync.connect(broker.url, token_file=billing_file, settings=PATIENT) as client,
    ):
        producer = client.producer("shop/eu/orders")
        producer.send(b"y")
        admin.admin("grants.remove", role="billing", pattern="shop/eu/*", actions=["produce"])
        with pytest.raises(AccessDenied, match="'produce' on shop/eu/orders"):
            _repeat(lambda: producer.send(b"z"))
        id = Token.parse(billing_file.read_text()).id
        admin.admin("tokens.revoke", id=id)
        with pytest.raises(Unauthenticated, match="revoked"):
            _repeat(lambda: client.admin("outboxes.poll"))

    # Another bootstrap works although a superuser exists, for an operator who lost all tokens.
    again = ok("admin", "bootstrap", "--data", str(broker.data))
    assert "revoked" in ok("admin", "tokens", "list", **at, **{TOKEN_VARIABLE: again})
    broker.stop()
    log = broker.complaints()
    for token in (root, billing_file.read_text().strip(), again):
        assert Token.parse(token).secret not in log


def _repeat(call: Callable[[], object]) -> None:
    """Repeat a call until it raises. The outcome of one in progress may be unknown.

    Tests on a virtual clock show that two seconds are enough. A busy machine may need more.
    """
    until_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until_s:
        with contextlib.suppress(Disconnected):
            call()


def test_broker_without_tokens_listens_on_loopback_only(tmp_path: Path) -> None:
    """O1: the error names both ways out, and both work."""
    data, port = str(tmp_path / "data"), free_port()
    refused = said("serve", "--data", data, "--listen", f"0.0.0.0:{port}")
    assert refused.returncode == 1
    assert f"escapement admin bootstrap --data {data}" in refused.stderr
    assert "--insecure" in refused.stderr
    assert not (tmp_path / "data" / "index").exists()
    open_to_all = _serves("--insecure", "--data", data, "--listen", f"0.0.0.0:{port}")
    assert open_to_all is None

    token = ok("admin", "bootstrap", "--data", data)
    request = tmp_path / "data" / "bootstrap.request"
    assert stat.S_IMODE(request.stat().st_mode) == 0o600
    assert Token.parse(token).secret not in request.read_text()
    assert _serves("--data", data, "--listen", f"0.0.0.0:{port}", token=token) == 0
    assert not request.exists()
    assert _serves("--data", data, "--listen", f"0.0.0.0:{port}", token=token) == 0


def _serves(*options: str, token: str | None = None) -> int | None:
    """Start a broker on all addresses; with a token, return the exit code of a command with it."""
    with subprocess.Popen(
        [sys.executable, "-m", "escapement", "serve", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert "ready" in process.stdout.readline()
            if token is None:
                return None
            at = options[-1].replace("0.0.0.0", "127.0.0.1")
            assert said("admin", "topics", "list", "--broker", at).returncode == 1
            done = said("admin", "topics", "list", "--broker", at, **{TOKEN_VARIABLE: token})
            return done.returncode
        finally:
            process.terminate()


def test_mistyped_token_is_refused_before_a_connection_is_made(tmp_path: Path) -> None:
    """O1: nothing listens there, and the error is about the token."""
    token = Token.new()
    file = tmp_path / "token"
    file.write_text(token.text[:-1])
    at = f"127.0.0.1:{free_port()}"
    refused = said("--token-file", str(file), "admin", "topics", "list", "--broker", at)
    assert refused.returncode == 1
    assert f"In the file {file}: The token is mistyped" in refused.stderr
    assert token.secret not in refused.stderr


def test_bootstrap_at_a_broker_that_does_not_take_it_names_the_owner_of_bundle_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B8: the process that has locked the directory does not own bundle 0."""
    module = import_module("escapement.cli.admin.bootstrap")
    monkeypatch.setattr(module, "_TIMEOUT_S", 0.0)
    with open(tmp_path / "broker.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ran = CliRunner().invoke(module.bootstrap, ["--data", str(tmp_path)])
    assert isinstance(ran.exception, StorageError)
    assert "only the owner of bundle 0" in str(ran.exception)
