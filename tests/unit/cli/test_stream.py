"""Rows that `escapement stream` prints, acknowledges and releases, with a test peer."""

from __future__ import annotations

import anyio
import msgpack
import pytest

import escapement
from escapement.cli.output.rows import RowPrinter
from escapement.cli.stream import print_rows
from escapement.errors import InvalidRequest, NotFound, RemoteProtocolError
from escapement.field import Field
from escapement.protocol import commands as wire
from support.client_peer import Peer, connect, on_both

FIELDS = (Field("id", "bigint"), Field("message", "varchar"))


async def deliver_rows(peer: Peer, inbox: escapement.Inbox, *ids: int) -> None:
    await peer.sessions[-1].say(wire.Fields.of(inbox._id, FIELDS))
    rows = [msgpack.packb([str(id).encode(), b"m%d" % id]) for id in ids]
    await peer.deliver(rows, list(ids))


def released(peer: Peer) -> list[int]:
    commands = peer.heard_of(wire.Release)
    assert all(command.delay_ms == 0 for command in commands)
    return sorted(offset for command in commands for offset in command.offsets.tolist())


def printer(*columns: str) -> RowPrinter:
    return RowPrinter("csv", columns or None, "shop.mails")


@on_both
async def test_looked_at_rows_are_released_when_the_command_ends() -> None:
    """V19: other consumers get them at once, and the look does not count as an attempt."""
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "table") as inbox:
            await deliver_rows(peer, inbox, 1, 2)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(print_rows, inbox, printer(), None, False)
                while not inbox._buffer.empty:  # noqa: ASYNC110
                    await anyio.sleep(0.001)
                await anyio.sleep(1)
                # The broker sends a row again after its back-off.
                await deliver_rows(peer, inbox, 2, 3)
                await anyio.sleep(1)
                assert released(peer) == []
                tasks.cancel_scope.cancel()
        assert released(peer) == [1, 2, 3]
        assert peer.acked == []


@on_both
async def test_printed_rows_are_acknowledged_and_the_rest_is_released() -> None:
    """V19: --ack --count 3."""
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "table") as inbox:
            await deliver_rows(peer, inbox, 1, 2)
            await deliver_rows(peer, inbox, 3, 4, 5)
            await print_rows(inbox, printer(), 3, True)
        assert sorted(peer.acked) == [1, 2, 3]
        assert released(peer) == [4, 5]


def test_rows_are_printed_as_they_arrive(capsys: pytest.CaptureFixture[str]) -> None:
    async def look() -> None:
        async with Peer.running() as peer, connect(peer) as broker:
            async with broker.consumer("t", "table") as inbox, anyio.create_task_group() as tasks:
                tasks.start_soon(print_rows, inbox, printer(), 3, False)
                for ids, lines in (((1,), "id,message\n1,m1\n"), ((2, 3, 4), "2,m2\n3,m3\n")):
                    await deliver_rows(peer, inbox, *ids)
                    await anyio.sleep(1)
                    assert capsys.readouterr().out == lines

    for backend in ("trio", "asyncio"):
        on_both(look)(backend)


@on_both
async def test_rows_that_could_not_be_printed_are_released() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "table") as inbox:
            await peer.sessions[-1].say(wire.Fields.of(inbox._id, FIELDS))
            await peer.deliver([b"no row", b"no row"], [1, 2])
            with pytest.raises(RemoteProtocolError):
                await print_rows(inbox, printer(), None, True)
        assert peer.acked == []
        assert released(peer) == [1, 2]


@on_both
async def test_column_that_is_not_sent_ends_the_command_before_the_first_row() -> None:
    """V19."""
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "table") as inbox:
            await peer.sessions[-1].say(wire.Fields.of(inbox._id, FIELDS))
            await anyio.sleep(1)
            with pytest.raises(NotFound, match=r"no column nope\. It has id, message"):
                await print_rows(inbox, printer("nope"), None, True)


@on_both
async def test_messages_of_an_ordinary_topic_are_refused_and_released() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "table") as inbox:
            await peer.deliver([b"a"], [7])
            with pytest.raises(InvalidRequest, match="default/t is not a message table"):
                await print_rows(inbox, printer(), None, True)
        assert peer.acked == []
        assert released(peer) == [7]
