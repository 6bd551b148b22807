"""Verbs of administration: odd properties, bounded answers and their documentation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import trio

import escapement
from escapement import testing
from escapement.broker.admin import namespaces, schedules, subscriptions, topics
from escapement.broker.admin.admin import VERBS
from escapement.errors import EscapementError, InvalidRequest
from escapement.message import Blobs, MessageBatch
from escapement.protocol.commands import COMMANDS, Command

DOCS = Path(__file__).parents[3] / "docs"
PROTOCOL = DOCS / "protocol.md"


async def test_messages_with_odd_properties_are_shown_and_the_connection_stays(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Properties of any shape are shown as far as they fit into an answer."""
    strange: dict[str, Any] = {"p": [[] for _ in range(2_000)]}
    deep: Any = 1
    for _ in range(20):
        deep = {"in": deep}
    strange["deep"] = deep
    async with testing.start() as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="t", subscription="s")
        async with await broker.producer("t") as producer:
            for _ in range(150):
                await producer.send(b"x", delay="1h", properties=strange)
            odd = [b"\x81\x01\x02", b"\xc1", b"\x93\x01\x02\x03", b"\x81\xa1a\xd4\x05\x01", b"\x81"]
            await producer.send_batch(
                MessageBatch(Blobs.of([b"y"] * len(odd)), None, Blobs.of(odd), None)
            )
        messages = [one async for one in broker.peek("t", count=200)]
        assert len(messages) == 155
        assert all(set(one.properties) == {"p", "deep"} for one in messages if one.payload == b"x")
        sought = broker.peek("t", properties={"deep": "no"})
        assert [one async for one in sought] == []
        for offset in range(150, 155):
            assert (await broker.show(offset, "t")).payload == b"y"
        assert broker.connected


async def test_a_request_with_too_many_lists_is_refused_before_it_is_sent(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with testing.start() as world, world.connect() as broker:
        with pytest.raises(EscapementError, match="lists and maps"):
            await broker.admin("topics.peek", topic="t", properties={"a": [[]] * 2_000})
        assert broker.connected
        with pytest.raises(InvalidRequest):
            await broker.admin("no.such.verb")


async def test_misspelt_argument_is_named(mock_clock: trio.testing.MockClock) -> None:
    async with testing.start() as world, world.connect() as broker:
        with pytest.raises(InvalidRequest, match="needs 'topic' as text; it was given 'tpoic'"):
            await broker.admin("topics.create", tpoic="t")
        with pytest.raises(InvalidRequest, match="'froce'; it takes 'topic', 'force'"):
            await broker.admin("topics.delete", topic="t", froce=True)


@pytest.mark.parametrize("ids", [None, 7, "7", [], [None], [True], [1.5], [[1]], [1] * 10_001])
async def test_ids_of_rows_are_checked(ids: Any, mock_clock: trio.testing.MockClock) -> None:
    async with testing.start() as world, world.connect() as broker:
        with pytest.raises(InvalidRequest, match="'ids' as a list of 1 to 10000 whole numbers"):
            await broker.admin("tables.ack", topic="table://shop/mails", ids=ids)


async def test_listings_are_bounded(
    mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/architecture/bounds.md: a listing has at most 10,000 rows."""
    for module in (namespaces, schedules, subscriptions, topics):
        assert module.MAX_ROWS == 10_000
        monkeypatch.setattr(module, "MAX_ROWS", 5)
    async with testing.start() as world, world.connect() as broker:
        for number in range(7):
            await broker.admin("subscriptions.create", topic="t", subscription=f"s{number}")
            await broker.admin("topics.create", topic=f"a/n{number}/t")
            await broker.schedules.create(f"s{number}", "t", every="1h")
        assert len(await broker.admin("subscriptions.list", topic="t")) == 5
        assert len((await broker.admin("topics.stats", topic="t"))["subscriptions"]) == 5
        assert len(await broker.admin("namespaces.list")) == 5
        assert len(await broker.admin("schedules.list")) == 5
        listed = await broker.admin("topics.list")
        assert (len(listed["topics"]), listed["total"]) == (5, 8)


async def test_calls_on_a_closed_client_raise_disconnected(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with testing.start() as world:
        async with world.connect() as broker:
            producer = await broker.producer("t")
        with pytest.raises(escapement.Disconnected, match="closed by this side"):
            await broker.producer("t")
        with pytest.raises(escapement.Disconnected, match="closed by this side"):
            async with broker.consumer("t", "s"):
                pass
        with pytest.raises(escapement.Disconnected, match="closed by this side"):
            await broker.admin("broker.stats")
        with pytest.raises(EscapementError):
            await producer.send(b"late")


# -- the documentation against the code ------------------------------------------------


def test_page_of_verbs_lists_every_verb() -> None:
    page = (DOCS / "reference" / "verbs.md").read_text()
    assert [verb for verb in VERBS if f"`{verb}`" not in page] == []


def test_protocol_page_lists_the_number_and_maximum_size_of_every_command() -> None:
    page = PROTOCOL.read_text()
    rows = re.findall(r"^\| (\d+) \| (\w+) \|", page, re.MULTILINE)
    assert {(int(number), name) for number, name in rows} == {
        (number, kind.__name__) for number, kind in COMMANDS.items()
    }
    section = page[page.index("| frames with |") : page.index("Before the handshake")]
    kinds: dict[tuple[int, bool], set[str]] = {}
    for names, size, nests in re.findall(r"^\| (.+?) \| (\d+) MiB \| (.+?) \|$", section, re.M):
        found = set(re.findall(r"\b[A-Z]\w+", names))
        kinds.setdefault((int(size) << 20, nests.startswith("nothing")), set()).update(found)

    def named(test: Any) -> set[str]:
        return {kind.__name__ for kind in COMMANDS.values() if test(kind)}

    def large(kind: type[Command]) -> bool:
        return kind.MAX_BYTES > 1 << 20

    flat = named(lambda kind: large(kind) and kind.MAX_CONTAINERS == 1)
    assert kinds[16 << 20, True] == flat
    assert kinds[16 << 20, False] == named(large) - flat
    assert kinds[1 << 20, False] == named(lambda kind: not large(kind) and kind.MAX_CONTAINERS > 1)
    assert kinds[1 << 20, True] == set()
