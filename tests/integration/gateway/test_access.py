"""The gateway uses the token of each request, and protects requests without one."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

import escapement
from escapement.access.token import Token
from escapement.client.connection.token_source import TOKEN_VARIABLE
from escapement.errors import RemoteProtocolError
from support.certificates import Authority
from support.processes.broker import PATIENT, BrokerProcess, broker_process
from support.processes.http_server import COMMAND, HttpServerProcess, gateway_process
from support.roles import new_token

TOPIC = "shop/eu/orders"
# Far below the 60 s of a long poll, and enough for a busy machine.
TIMEOUT_S = 30


@dataclass(frozen=True)
class Guarded:
    """A broker with access control, and a gateway whose process has the token of a superuser."""

    broker: BrokerProcess
    gateway: HttpServerProcess
    root: str

    def connect(self) -> Any:
        return escapement.connect(self.broker.url, token=self.root, settings=PATIENT)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    home = tmp_path_factory.mktemp("guarded")
    with broker_process(home / "data") as broker:
        root = first_token(broker)
        with gateway_process(home, broker.url, **{TOKEN_VARIABLE: root}) as gateway:
            yield Guarded(broker, gateway, root)


def first_token(broker: BrokerProcess) -> str:
    """Create the token of the superuser "root"."""
    bootstrap = [*COMMAND, "admin", "bootstrap", "--data", str(broker.data)]
    done = subprocess.run(bootstrap, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def code(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["code"]


async def test_each_request_has_the_rights_of_its_token(guarded: Guarded) -> None:
    """B15, O1: no token, a wrong one and one without the right are refused, despite the process's
    own token.
    """
    async with guarded.connect() as root, guarded.gateway.client(TOPIC) as http:
        await root.admin("topics.create", topic=TOPIC)
        token = await new_token(root, "sender")
        await root.admin("grants.add", role="sender", pattern=TOPIC, actions=["produce"])
        wrong = ["x", "zażółć", Token.new().text, token.text[:-1], f"{token.text} {token.text}"]
        for one in ("Bearer", "Basic eDp5", *(f"Bearer {text}" for text in wrong)):
            headers = {"Authorization": one.encode()}
            answer = await http.post("messages", content=b"x", headers=headers)
            assert code(answer) == (401, "unauthenticated"), one
            assert answer.headers["www-authenticate"] == "Bearer"
        missing = await http.post("messages", content=b"x")
        assert code(missing) == (401, "unauthenticated")
        assert "Authorization: Bearer TOKEN" in missing.json()["detail"]

        mine = bearer(token.text)
        sent = await http.post("messages", content=b"x", headers=mine)
        assert sent.status_code == 201, sent.text
        for refused in (
            await http.post("subscriptions/s/receive", json={"wait": "0s"}, headers=mine),
            await http.get("messages", headers=mine),
            await http.delete("messages/0", headers=mine),
            await http.post("../other/messages", content=b"x", headers=mine),
        ):
            assert code(refused) == (403, "access_denied")
            assert "grant" in refused.json()["detail"]
        assert (await http.get("messages/0", headers=bearer(guarded.root))).status_code == 200
        secrets = (token.text, guarded.root)
        assert not any(secret in guarded.gateway.complaints() for secret in secrets)


async def test_revoked_token_is_refused_soon(guarded: Guarded) -> None:
    """B15, O1: revocation ends long polls, and later requests, although connections stay open.

    The tests of the broker show on a virtual clock that two seconds are enough.
    """
    async with guarded.connect() as root, guarded.gateway.client(TOPIC) as http:
        token = await new_token(root, "receiver")
        mine = bearer(token.text)
        await root.admin("grants.add", role="receiver", pattern=TOPIC, actions=["consume"])
        demand = {"wait": "0s"}
        first = await http.post("subscriptions/r/receive", json=demand, headers=mine)
        assert first.status_code == 200, first.text
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                with trio.fail_after(TIMEOUT_S):
                    answer = await http.post(
                        "subscriptions/r/receive", json={"wait": "60s"}, headers=mine
                    )
                assert code(answer) == (401, "unauthenticated")

            nursery.start_soon(wait)
            await root.admin("tokens.revoke", id=token.id)
            with trio.fail_after(TIMEOUT_S):
                while True:
                    answer = await http.post("subscriptions/r/receive", json=demand, headers=mine)
                    if answer.status_code != 200:
                        break
            assert code(answer) == (401, "unauthenticated")
        again = await http.post("subscriptions/r/receive", json=demand, headers=mine)
        assert code(again) == (401, "unauthenticated")


async def test_request_without_a_token_must_be_local(gateway: HttpServerProcess) -> None:
    """B15: web sites and clients of proxies cannot use a broker without access control."""
    async with gateway.client(TOPIC) as http:
        port = gateway.url.rpartition(":")[2]
        foreign = {"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Origin": "null"}
        forwarded = {"X-Forwarded-For": "127.0.0.1"}, {"Forwarded": "for=::1"}, {"Via": "1.1 a"}
        rebound = {"Host": f"evil.example:{port}", "Origin": f"http://evil.example:{port}"}
        for headers in (*foreign, *forwarded, rebound):
            answer = await http.post("messages", content=b"x", headers=headers)
            assert code(answer) == (403, "forbidden"), headers
        # A page of another site may send these requests without asking the gateway first.
        form = {"Content-Type": "text/plain", "Origin": "http://127.0.0.1:1"}
        answer = await http.post("batches", content=b'{"messages": []}', headers=form)
        assert code(answer) == (403, "forbidden")
        assert code(await http.get("messages")) == (404, "not_found")
        own = {"Origin": gateway.url}
        assert (await http.post("messages", content=b"x", headers=own)).status_code == 201


def test_requests_beyond_bounds_are_refused(gateway: HttpServerProcess) -> None:
    """B15: large bodies, repeated and huge headers, and unknown parameters are refused."""
    base_url = f"{gateway.url}/v1/topics/{TOPIC}/"
    with httpx.Client(base_url=base_url, timeout=60, trust_env=False) as http:
        bad = (400, "invalid_request")
        assert code(http.post("messages", content=bytes((8 << 20) + 1))) == bad
        twice = [("Escapement-Delay", "1h"), ("Escapement-Delay", "2h")]
        assert code(http.post("messages", content=b"x", headers=twice)) == bad
        assert code(http.post("messages?delay=1h", content=b"x")) == bad
        assert code(http.post("batches", content=b"{}")) == bad
        huge = {"Escapement-Properties": '{"p": "' + "x" * 200_000 + '"}'}
        assert http.post("messages", content=b"x", headers=huge).status_code in {400, 431}
        assert code(http.put("messages")) == (405, "method_not_allowed")
        assert code(http.get("nothing")) == (404, "not_found")


async def test_half_and_endless_bodies_publish_nothing(gateway: HttpServerProcess) -> None:
    """B15: the gateway ends endless bodies, and does not log senders that leave as bugs."""
    async with gateway.client("shop/eu/halves") as http:
        address = ("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        head = b"POST /v1/topics/shop/eu/halves/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        async with await trio.open_tcp_stream(*address) as stream:
            await stream.send_all(head + b"Content-Length: 100\r\n\r\nhalf")
        async with await trio.open_tcp_stream(*address) as stream:
            await stream.send_all(head + b"Transfer-Encoding: chunked\r\n\r\n")
            part = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
            with trio.fail_after(30), suppress(trio.BrokenResourceError):
                while True:
                    await stream.send_all(part)
        assert (await http.post("messages", content=b"whole")).json()["offset"] == 0
        assert (await http.get("messages/0/payload")).content == b"whole"


async def test_https_with_a_certificate(broker: BrokerProcess, tmp_path: Path) -> None:
    """B15: with a certificate, the gateway accepts HTTPS only."""
    authority = Authority(tmp_path)
    files = authority.certify("127.0.0.1")
    options = ["--tls-cert", files.cert, "--tls-key", files.key]
    with gateway_process(tmp_path, broker.url, *options) as gateway:
        assert gateway.url.startswith("https://")
        trust = ssl.create_default_context(cafile=authority.ca)
        async with gateway.client(TOPIC, verify=trust) as http:
            assert (await http.post("messages", content=b"x")).status_code == 201
            plain = "http" + str(http.base_url).removeprefix("https")
            with pytest.raises(httpx.TransportError):
                await http.get(plain + "messages")
        async with gateway.client(TOPIC) as distrustful:
            with pytest.raises(httpx.ConnectError):
                await distrustful.get("messages")


async def test_client_of_a_broker_is_told_that_an_http_server_answers(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """B15: the error names the port to give, with and without TLS."""
    authority = Authority(tmp_path)
    files = authority.certify("127.0.0.1")
    with_tls = ["--tls-cert", files.cert, "--tls-key", files.key]
    for scheme, options, trust in (
        ("escapement", [], {}),
        ("escapements", with_tls, {"ca_file": authority.ca}),
    ):
        with gateway_process(tmp_path, broker.url, *options) as gateway:
            url = f"{scheme}://{gateway.url.partition('://')[2]}"
            with pytest.raises(RemoteProtocolError) as refused:
                async with escapement.connect(url, **trust):
                    pass
            said = str(refused.value)
            assert said.startswith(f"an HTTP server answers at {url}, not a broker. ")
            assert "its port is 7650 unless --listen names another" in said


async def test_certificate_of_the_gateway_is_not_lent(tmp_path: Path) -> None:
    """B15, O2: the gateway needs a certificate to connect, and its role is not for requests."""
    authority = Authority(tmp_path)
    files = authority.certify("127.0.0.1")
    mine = authority.certify("gateway.example", file="gateway", role="root")
    options = ["--tls-cert", files.cert, "--tls-key", files.key, "--tls-client-ca", authority.ca]
    certified = {"ca_file": authority.ca, "cert_file": mine.cert, "key_file": mine.key}
    variables = {f"ESCAPEMENT_{name.upper()}": file for name, file in certified.items()}
    with broker_process(tmp_path / "data", None, *options) as broker:
        token = bearer(first_token(broker))
        brokers = f"escapements://127.0.0.1:{broker.port}"
        with gateway_process(tmp_path, brokers, **variables) as gateway:
            async with gateway.client(TOPIC) as http:
                answer = await http.post("messages", content=b"x")
                assert code(answer) == (401, "unauthenticated")
                answer = await http.post("messages", content=b"x", headers=token)
                assert answer.status_code == 201, answer.text


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--listen", "0.0.0.0:0"], "--listen 0.0.0.0 is not a loopback address"),
        (["--tls-cert", "cert.pem"], "--tls-cert and --tls-key need each other"),
        (["--tls-cert", "none.pem", "--tls-key", "none.pem"], "none.pem"),
    ],
)
def test_unsafe_and_impossible_settings_are_refused(options: list[str], reason: str) -> None:
    """B15: the gateway does not start if tokens could be overheard, or TLS cannot work."""
    assert reason in not_started("gateway", *options)


@pytest.mark.parametrize("command", ["gateway", "console"])
def test_port_of_another_program_is_named_in_one_line(command: str) -> None:
    """B15"""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        said = not_started(command, "--listen", at)
    assert f"The {command} cannot listen on {at}: Address already in use. Give" in said


def not_started(command: str, *options: str) -> str:
    """Run a command that cannot start, and return why."""
    done = subprocess.run(
        [*COMMAND, command, "--listen", "127.0.0.1:0", *options],
        env={name: text for name, text in os.environ.items() if "ESCAPEMENT" not in name},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr
