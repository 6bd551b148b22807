"""TLS between clients and a broker in a process of its own."""

from __future__ import annotations

import os
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
import trio

import escapement
import escapement.sync
from escapement.access.token import Token
from escapement.broker.front.certificates import Certificates, TlsFiles
from escapement.broker.front.front import certificate_role
from escapement.cli.main import run
from escapement.errors import AccessDenied, Disconnected, InvalidRequest, Unauthenticated
from escapement.storage.bootstrap_request import BootstrapRequest
from support.certificates import Authority, Files
from support.processes.broker import PATIENT, BrokerProcess, broker_process, until


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def files(authority: Authority) -> Files:
    return authority.certify("127.0.0.1")


@pytest.fixture(scope="module")
def broker(
    files: Files, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    options = ["--tls-cert", files.cert, "--tls-key", files.key]
    home = tmp_path_factory.mktemp("tls")
    with broker_process(home / "data", None, *options) as started:
        yield started


def url_of(broker: BrokerProcess, host: str = "127.0.0.1") -> str:
    return f"escapements://{host}:{broker.port}"


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_messages_of_any_size_travel_over_tls(
    backend: str, broker: BrokerProcess, authority: Authority
) -> None:
    """O2, with the async client on both event loops."""

    async def exchange() -> None:
        sizes = [0, 1, 1000, 3_000_000]
        async with escapement.connect(
            url_of(broker), ca_file=authority.ca, settings=PATIENT
        ) as client:
            async with client.consumer(f"sizes-{backend}", "s") as inbox:
                producer = await client.producer(f"sizes-{backend}")
                for size in sizes:
                    await producer.send(os.urandom(size))
                got = []
                for _ in sizes:
                    message = await inbox.receive(timeout_s=30)
                    assert message is not None
                    got.append(len(message.payload))
                    await message.ack()
                assert got == sizes

    anyio.run(exchange, backend=backend)


def test_blocking_client_and_commands_use_tls(
    broker: BrokerProcess,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with escapement.sync.connect(url_of(broker), ca_file=authority.ca) as client:
        client.producer("blocking").send(b"one")
    monkeypatch.delenv("ESCAPEMENT_CA_FILE", raising=False)
    words = ["peek", "blocking", "--broker", url_of(broker)]
    assert run(words) == 1
    assert "certificate is not trusted" in capsys.readouterr().err
    assert run(["--ca-file", authority.ca, *words]) == 0
    capsys.readouterr()
    monkeypatch.setenv("ESCAPEMENT_CA_FILE", authority.ca)
    assert run(["read", "blocking", "--broker", url_of(broker), "--count", "1"]) == 0
    assert "one" in capsys.readouterr().out
    monkeypatch.setenv("ESCAPEMENT_BROKER", url_of(broker))
    assert run(["admin", "topics", "list"]) == 0
    assert "blocking" in capsys.readouterr().out


async def refused(url: str, **options: str) -> str:
    """Return why a client cannot connect."""
    with pytest.raises(Disconnected) as caught:
        async with escapement.connect(url, settings=PATIENT, **options):  # type: ignore[arg-type]
            pass
    return str(caught.value)


async def test_certificate_and_name_of_the_broker_are_verified(
    broker: BrokerProcess, authority: Authority, tmp_path: Path
) -> None:
    """O2: verification is on by default."""
    assert "certificate is not trusted" in await refused(url_of(broker))
    stranger = Authority(tmp_path / "stranger")
    assert "certificate is not trusted" in await refused(url_of(broker), ca_file=stranger.ca)
    reason = await refused(url_of(broker, "localhost"), ca_file=authority.ca)
    assert "localhost" in reason
    assert "connect to a name in the certificate" in reason


async def test_client_without_tls_is_told_to_use_it(broker: BrokerProcess, tmp_path: Path) -> None:
    with pytest.raises(escapement.EscapementError, match="connect to escapements://"):
        async with escapement.connect(broker.url):
            pass
    with broker_process(tmp_path / "plain") as plain:
        assert "does not speak TLS" in await refused(url_of(plain))


def test_files_without_tls_and_unusable_files_are_refused(broker: BrokerProcess) -> None:
    with pytest.raises(InvalidRequest, match="need escapements://"):
        escapement.connect("escapement://localhost", ca_file="ca.pem")
    with pytest.raises(InvalidRequest, match="key_file needs a cert_file"):
        escapement.connect("escapements://localhost", key_file="key.pem")
    with pytest.raises(InvalidRequest, match=r"cannot use ca_file /missing.pem: No such file"):
        with escapement.sync.connect(url_of(broker), ca_file="/missing.pem"):
            pass


def content(path: str) -> bytes:
    return Path(path).read_bytes()


def replace(path: str, with_: bytes) -> None:
    Path(path).write_bytes(with_)


async def test_certificate_is_reloaded_without_dropping_connections(tmp_path: Path) -> None:
    """O2: SIGHUP; a bad file changes nothing, a good one is used for new connections."""
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    files = old.certify("127.0.0.1")
    options = ["--tls-cert", files.cert, "--tls-key", files.key]
    with broker_process(tmp_path / "data", None, *options) as broker:
        async with escapement.connect(url_of(broker), ca_file=old.ca, settings=PATIENT) as client:
            link = client._lines.first.link
            producer = await client.producer("t")
            replace(files.cert, b"no certificate")
            broker.process.send_signal(signal.SIGHUP)
            await until(lambda: "certificate in use stays" in broker.complaints())
            await producer.send(b"1")
            async with escapement.connect(url_of(broker), ca_file=old.ca, settings=PATIENT):
                pass
            renewed = new.certify("127.0.0.1")
            replace(files.cert, content(renewed.cert))
            replace(files.key, content(renewed.key))
            broker.process.send_signal(signal.SIGHUP)
            await until(lambda: "reloaded the TLS certificate" in broker.complaints())
            await producer.send(b"2")
            assert client._lines.first.link is link, "the connection was dropped"
            async with escapement.connect(url_of(broker), ca_file=new.ca, settings=PATIENT):
                pass
            assert "not trusted" in await refused(url_of(broker), ca_file=old.ca)
        assert broker.stop() == 0


async def test_client_certificate_is_required_and_names_the_role(
    authority: Authority, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O2: a broker with --tls-client-ca accepts only certificates of this authority."""
    stranger = Authority(tmp_path / "stranger")
    good = authority.certify("client.example", file="client", role="billing")
    bad = stranger.certify("client.example", file="client", role="billing")
    options = ["--tls-cert", files.cert, "--tls-key", files.key, "--tls-client-ca", authority.ca]
    with broker_process(tmp_path / "data", None, *options) as broker:
        url = url_of(broker)
        reason = await refused(url, ca_file=authority.ca)
        assert "client certificate" in reason
        await refused(url, ca_file=authority.ca, cert_file=bad.cert, key_file=bad.key)
        monkeypatch.setenv("ESCAPEMENT_CA_FILE", authority.ca)
        monkeypatch.setenv("ESCAPEMENT_CERT_FILE", good.cert)
        monkeypatch.setenv("ESCAPEMENT_KEY_FILE", good.key)
        async with escapement.connect(url, settings=PATIENT) as client:
            await (await client.producer("t")).send(b"x")


async def test_session_knows_the_role_of_the_certificate(
    authority: Authority, files: Files
) -> None:
    theirs = Certificates(TlsFiles(Path(files.cert), Path(files.key), Path(authority.ca)))
    mine = authority.certify("client.example", file="role", role="billing")
    context = ssl.create_default_context(cafile=authority.ca)
    context.load_cert_chain(mine.cert, mine.key)
    left, right = trio.testing.memory_stream_pair()
    server = trio.SSLStream(right, theirs.context, server_side=True, https_compatible=True)
    client = trio.SSLStream(left, context, server_hostname="127.0.0.1", https_compatible=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.do_handshake)
        nursery.start_soon(client.do_handshake)
    assert certificate_role(server) == "billing"
    assert certificate_role(right) is None


async def test_certificate_gives_its_role_the_rights_of_its_grants(
    files: Files, authority: Authority, tmp_path: Path
) -> None:
    """O1, O2: a token that the client sends besides takes precedence."""
    mine = authority.certify("client.example", file="billing", role="billing")
    root = Token.new()
    options = ["--tls-cert", files.cert, "--tls-key", files.key, "--tls-client-ca", authority.ca]
    certified = {"ca_file": authority.ca, "cert_file": mine.cert, "key_file": mine.key}
    with broker_process(tmp_path / "data", None, *options) as started:
        request = BootstrapRequest("root", root.id, root.digest).write(started.data)
        await until(lambda: not request.exists())
        url = url_of(started)
        async with escapement.connect(url, token=root.text, **certified) as broker:
            await broker.admin("grants.add", role="billing", pattern="a/b/*", actions=["admin"])
        async with escapement.connect(url, **certified) as broker:
            await broker.admin("namespaces.create", namespace="a/b")
            await broker.admin("topics.create", topic="a/b/t")
            with pytest.raises(AccessDenied, match="Role billing lacks"):
                await broker.admin("topics.create", topic="a/c/t")
            assert await broker.admin("access.own") == {
                "role": "billing", "token_id": None, "expires_at_ms": None,
                "grants": [{"pattern": "a/b/*", "actions": ["admin"]}],
            }  # fmt: skip


async def test_optional_certificate_or_token_admits_a_client(
    files: Files, authority: Authority, tmp_path: Path
) -> None:
    """O2: a certificate of the authority, or a token. The token decides if there are both."""
    mine = authority.certify("client.example", file="optional", role="billing")
    foreign = Authority(tmp_path / "stranger").certify("client.example", role="billing")
    root, other = Token.new(), Token.new()
    options = ["--tls-cert", files.cert, "--tls-key", files.key, "--tls-client-ca", authority.ca]
    options += ["--tls-client-certificates", "optional"]
    ca = {"ca_file": authority.ca}
    certified = {**ca, "cert_file": mine.cert, "key_file": mine.key}
    with broker_process(tmp_path / "data", None, *options) as started:
        request = BootstrapRequest("root", root.id, root.digest).write(started.data)
        await until(lambda: not request.exists())
        url = url_of(started)

        async def create(topic: str, **options: str) -> None:
            async with escapement.connect(url, settings=PATIENT, **options) as broker:
                await broker.admin("topics.create", topic=topic)

        async with escapement.connect(url, token=root.text, **ca) as broker:
            await broker.admin("tokens.create", role="other", id=other.id, digest=other.digest)
            for role, namespace in (("billing", "a/b/*"), ("other", "a/c/*")):
                await broker.admin("grants.add", role=role, pattern=namespace, actions=["admin"])
        await create("a/b/1", **certified)
        await create("a/c/1", **ca, token=other.text)
        await create("a/c/2", **certified, token=other.text)
        with pytest.raises(AccessDenied, match="Role other lacks"):
            await create("a/b/2", **certified, token=other.text)
        # A wrong token is refused, whatever the certificate.
        for options_ in (ca, {**certified, "token": Token.new().text}):
            with pytest.raises(Unauthenticated):
                await create("a/b/2", **options_)
        await refused(url, **ca, cert_file=foreign.cert, key_file=foreign.key, token=root.text)
        async with escapement.connect(url, token=root.text, **ca) as broker:
            await broker.admin("tokens.revoke", id=other.id)
        with pytest.raises(Unauthenticated, match=r"revoked|does not know"):
            await create("a/b/2", **certified, token=other.text)


def test_options_that_need_each_other_are_refused(
    files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, reason in (
        (["--tls-cert", files.cert], "need each other"),
        (["--tls-client-ca", files.cert], "--tls-client-ca needs"),
        (["--tls-client-certificates", "optional"], "optional needs --tls-client-ca"),
        (["--tls-cert", files.cert, "--tls-key", "/missing"], "No such file"),
    ):
        assert run(["serve", "--data", str(tmp_path / "data"), *words]) == 1
        assert reason in capsys.readouterr().err
