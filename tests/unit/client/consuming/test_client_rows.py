"""Rows of message tables, as a consumer gets them from a test peer."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import anyio
import msgpack
import pytest

import escapement
from escapement.errors import InvalidRequest, ProtocolError
from escapement.field import Field
from escapement.protocol import commands as wire
from support.client_peer import Peer, connect, on_both

FIELDS = (
    Field("id", "bigint"),
    Field("price", "decimal"),
    Field("at", "datetime"),
    Field("message", "json"),
    Field("raw", "varbinary"),
)
VALUES = [b"7", b"1.50", b"2024-02-29 12:30:00.5", b'{"a": [1]}', None]
ROW = {
    "id": 7,
    "price": Decimal("1.50"),
    "at": datetime(2024, 2, 29, 12, 30, 0, 500_000),
    "message": {"a": [1]},
    "raw": None,
}
CHANGED = (Field("id", "bigint"), Field("note", "text"))


async def tell(peer: Peer, inbox: escapement.Inbox, fields: tuple[Field, ...]) -> None:
    await peer.sessions[-1].say(wire.Fields.of(inbox._id, fields))


@on_both
async def test_message_of_a_table_has_a_row_of_typed_values() -> None:
    """V11: by the names of the columns, in their order."""
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s") as inbox:
            assert inbox.fields is None
            await tell(peer, inbox, FIELDS)
            await peer.deliver([msgpack.packb(VALUES)], [0])
            message = await anext(inbox)
            assert inbox.fields == FIELDS
            assert message.row == ROW
            assert list(message.row) == list(ROW)
            assert message.row is message.row
            assert message.payload == msgpack.packb(VALUES)


@pytest.mark.parametrize("serializer", [bytes, str, escapement.JSON, escapement.MSGPACK])
def test_value_of_a_row_is_the_row_whatever_the_serializer(serializer: Any) -> None:
    async def use() -> None:
        async with Peer.running() as peer, connect(peer) as broker:
            async with broker.consumer("t", "s", serializer=serializer) as inbox:
                await tell(peer, inbox, FIELDS)
                await peer.deliver([msgpack.packb(VALUES)] * 2, [0, 1])
                message = await anext(inbox)
                assert message.value is message.row
                batch = await inbox.next_batch()
                assert batch is not None
                assert batch.values() == [ROW]

    for backend in ("trio", "asyncio"):
        on_both(use)(backend)


@on_both
async def test_a_row_keeps_the_fields_that_it_arrived_with() -> None:
    """V11: the columns change while rows are in the buffer of the consumer."""
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s") as inbox:
            await tell(peer, inbox, FIELDS)
            await peer.deliver([msgpack.packb(VALUES)] * 2, [0, 1])
            first = await anext(inbox)
            await tell(peer, inbox, CHANGED)
            await peer.deliver([msgpack.packb([b"8", b"new"])], [2])
            rest = [await anext(inbox) for _ in range(2)]
            assert inbox.fields == CHANGED
            assert [first.row, *[message.row for message in rest]] == [
                ROW,
                ROW,
                {"id": 8, "note": "new"},
            ]


@on_both
async def test_fields_are_learned_again_on_a_new_connection() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s") as inbox:
            await tell(peer, inbox, FIELDS)
            await peer.deliver([msgpack.packb(VALUES)], [0])
            assert (await anext(inbox)).row == ROW
            await peer.cut()
            while not (peer.sessions and any(peer.sessions[-1].credit.values())):  # noqa: ASYNC110
                await anyio.sleep(0.001)
            await tell(peer, inbox, CHANGED)
            await peer.deliver([msgpack.packb([b"8", None])], [1])
            assert (await anext(inbox)).row == {"id": 8, "note": None}


@on_both
async def test_message_of_an_ordinary_topic_has_no_row() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s") as inbox:
            await peer.deliver([msgpack.packb(VALUES)], [3])
            message = await anext(inbox)
            with pytest.raises(InvalidRequest, match=r"default/t@3 is not of a message table"):
                _ = message.row
            assert message.value == message.payload
            assert inbox.fields is None


@on_both
async def test_payload_that_is_not_a_row_leaves_the_consumer_usable() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        async with broker.consumer("t", "s") as inbox:
            await tell(peer, inbox, CHANGED)
            await peer.deliver([b"\xc1", msgpack.packb([b"x", None])], [0, 1])
            for match in ("a row cannot be decoded", "field id of a row .* not of type bigint"):
                message = await anext(inbox)
                with pytest.raises(ProtocolError, match=match):
                    _ = message.value
                await message.ack(durable=True)
            assert peer.acked == [0, 1]
