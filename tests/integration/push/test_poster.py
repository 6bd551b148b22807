"""Posts to a real HTTPS server on loopback that fails in every way."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from escapement.clock import SystemClock
from escapement.endpoint import Endpoint
from escapement.push.addresses import Network, network
from escapement.push.outcome import Outcome, Verdict
from escapement.push.poster import Poster
from escapement.push.target import Target
from support.certificates import Authority
from support.webhook_server import (
    Answer,
    WebhookServer,
    endless,
    raw,
    silence,
    status,
    webhook_server,
)

HOST = "hooks.example"
LOOPBACK = [network("127.0.0.0/8")]


class Names:
    """A name server whose answers a test changes."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self.addresses


def target(url: str, timeout_ms: int = 5_000) -> Target:
    endpoint = Endpoint.parse(url)
    return Target("public/default/x", "s", "msg_", endpoint, timeout_ms, timeout_ms, 4, ())


@asynccontextmanager
async def posting(
    url: str,
    names: Names,
    authority: Authority,
    *,
    allowed: Sequence[Network] = LOOPBACK,
    timeout_ms: int = 5_000,
) -> AsyncIterator[Poster]:
    context = ssl.create_default_context(cafile=authority.ca)
    poster = Poster(target(url, timeout_ms), allowed, context, SystemClock(), names.resolve)
    try:
        yield poster
    finally:
        await poster.aclose()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@pytest.fixture
async def server(authority: Authority) -> AsyncIterator[WebhookServer]:
    async with webhook_server(authority.certify(HOST)) as server:
        yield server


async def test_post_reaches_the_checked_address_under_the_name_of_the_host(
    server: WebhookServer, authority: Authority
) -> None:
    """B16: the certificate is verified for the name, and a connection is used again."""
    names = Names("127.0.0.1")
    async with posting(f"https://{HOST}:{server.port}/a?b=1", names, authority) as poster:
        for body in (b"one", b"\x00two", b""):
            assert (await poster.post(body, {"webhook-id": "m"})).verdict is Verdict.ACKNOWLEDGE
    one, two, three = server.posts
    assert (one.method, one.target, one.body) == ("POST", "/a?b=1", b"one")
    assert (two.body, three.body) == (b"\x00two", b"")
    assert one.headers["host"] == f"{HOST}:{server.port}"
    assert one.headers["webhook-id"] == "m"
    assert (server.connections, names.asked) == (1, [HOST])


@pytest.mark.parametrize(
    ("answer", "verdict", "reason"),
    [
        (status(200, body=b"thanks"), Verdict.ACKNOWLEDGE, "HTTP 200"),
        (status(410), Verdict.REJECT, "HTTP 410"),
        (status(500), Verdict.RETRY, "HTTP 500"),
        (status(302, {"location": "https://127.0.0.1/"}), Verdict.RETRY, "HTTP 302"),
        (status(503, {"Retry-After": "7"}), Verdict.RETRY, "HTTP 503"),
        (endless, Verdict.ACKNOWLEDGE, "HTTP 200"),
        (status(200, body=b"x" * 10_000_000), Verdict.ACKNOWLEDGE, "HTTP 200"),
        (status(200, {"x": "y" * 200_000}), Verdict.RETRY, "AnswerTooLong"),
        (raw(b""), Verdict.RETRY, "RemoteProtocolError"),
        (raw(b"HTTP/1.1 200 OK\r\ncontent-le"), Verdict.RETRY, "RemoteProtocolError"),
        (raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"), Verdict.RETRY, "Remote"),
        (raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), Verdict.RETRY, "RemoteProtocolError"),
        (silence, Verdict.RETRY, "no answer within 300 ms"),
    ],
)
async def test_each_end_of_a_post_has_its_outcome(
    answer: Answer, verdict: Verdict, reason: str, server: WebhookServer, authority: Authority
) -> None:
    """B16: redirects are not followed, and no answer is read without a bound."""
    server.answers.append(answer)
    url, names = f"https://{HOST}:{server.port}/", Names("127.0.0.1")
    timeout_ms = 300 if answer is silence else 5_000
    async with posting(url, names, authority, timeout_ms=timeout_ms) as poster:
        outcome = await poster.post(b"body", {})
        assert outcome.verdict is verdict
        assert outcome.reason.startswith(reason)
        assert outcome.wait_ms == (7_000 if reason == "HTTP 503" else None)
        # The next post is not disturbed.
        assert await poster.post(b"next", {}) == Outcome(Verdict.ACKNOWLEDGE, "HTTP 204")
    assert [post.body for post in server.posts] == [b"body", b"next"]


async def test_endpoint_that_cannot_be_reached_fails(authority: Authority) -> None:
    """B16: a closed port, no address, and a peer without TLS."""
    with trio.socket.socket() as free:
        await free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        async with posting(f"https://{HOST}:{port}/", Names("127.0.0.1"), authority) as poster:
            assert (await poster.post(b"", {})).verdict is Verdict.RETRY
    async with posting(f"https://{HOST}/", Names(), authority) as poster:
        assert "no address" in (await poster.post(b"", {})).reason
    async with webhook_server(None) as plain:
        url = f"https://{HOST}:{plain.port}/"
        async with posting(url, Names("127.0.0.1"), authority) as poster:
            assert (await poster.post(b"", {})).verdict is Verdict.RETRY
        assert plain.posts == []


async def test_certificate_must_be_trusted_and_have_the_name_of_the_host(
    server: WebhookServer, authority: Authority, tmp_path: Path
) -> None:
    """B16"""
    names = Names("127.0.0.1")
    async with posting(f"https://other.example:{server.port}/", names, authority) as poster:
        assert (await poster.post(b"secret", {})).verdict is Verdict.RETRY
    stranger = Authority(tmp_path / "stranger")
    async with posting(f"https://{HOST}:{server.port}/", names, stranger) as poster:
        assert (await poster.post(b"secret", {})).verdict is Verdict.RETRY
    assert server.posts == []


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["::ffff:127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["169.254.169.254"]],
)
async def test_address_that_is_not_allowed_is_never_connected_to(
    addresses: list[str], server: WebhookServer, authority: Authority
) -> None:
    """B16: not even if another address of the host is allowed."""
    url, names = f"https://{HOST}:{server.port}/", Names(*addresses)
    async with posting(url, names, authority, allowed=[]) as poster:
        outcome = await poster.post(b"secret", {})
    assert outcome.verdict is Verdict.RETRY
    assert "--allow-network" in outcome.reason
    assert server.connections == 0


async def test_host_whose_address_changes_is_checked_again(
    server: WebhookServer, authority: Authority
) -> None:
    """B16: a name server cannot lead a later connection to a private address."""
    names = Names("127.0.0.1")
    async with posting(f"https://{HOST}:{server.port}/", names, authority) as poster:
        server.answers.append(status(204, {"connection": "close"}))
        assert (await poster.post(b"", {})).verdict is Verdict.ACKNOWLEDGE
        names.addresses = ("10.0.0.1",)
        assert "10.0.0.1" in (await poster.post(b"", {})).reason
    assert len(server.posts) == 1


async def test_plain_http_is_only_for_allowed_networks(authority: Authority) -> None:
    """B16"""
    async with webhook_server(None) as plain:
        url = f"http://{HOST}:{plain.port}/"
        async with posting(url, Names("127.0.0.1"), authority) as poster:
            assert (await poster.post(b"x", {})).verdict is Verdict.ACKNOWLEDGE
        for address in ("8.8.8.8", "127.0.0.1"):
            async with posting(url, Names(address), authority, allowed=[]) as poster:
                assert "--allow-network" in (await poster.post(b"x", {})).reason
        assert len(plain.posts) == 1
