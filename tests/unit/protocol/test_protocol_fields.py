"""Fields with invalid values are neither sent nor accepted."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest

from escapement.errors import LocalProtocolError, RemoteProtocolError
from escapement.protocol import commands as c
from escapement.protocol import limits
from support.messages.command_samples import BODY, open_pair, pump


@pytest.mark.parametrize(
    "values",
    [
        [c.Ping.TYPE, -1],
        [c.Ping.TYPE, 2**63],
        [c.Ping.TYPE, True],
        [c.Ping.TYPE, 1.0],
        [c.Ping.TYPE],
        [c.Ping.TYPE, 1, 2],
        [99, 1],
        [c.OpenProducer.TYPE, 0, 1, "t", "", -1],
        [c.OpenProducer.TYPE, 1, 1, "", "", -1],
        [c.OpenProducer.TYPE, 1, 1, "t" * 641, "", -1],
        [c.OpenProducer.TYPE, 1, 1, b"t", "", -1],
        [c.Subscribe.TYPE, 1, 1, "t", "s", "queue", "latest", 0, ""],
        [c.Flow.TYPE, 1, 0],
        [c.Flow.TYPE, 1, limits.MAX_PERMITS + 1],
        [c.Publish.TYPE, 1, 0, -1, b"1234567", None, BODY],
        [c.Publish.TYPE, 1, 0, -1, np.array([-2], "<i8").tobytes(), None, BODY],
        [c.Publish.TYPE, 1, 0, -1, None, None, "text"],
        [c.Publish.TYPE, 1, 0, -1, None, bytes(8 * (limits.MAX_BATCH_MESSAGES + 1)), BODY],
        [c.Publish.TYPE, 1, 5, 5, None, None, BODY],
        [c.Ack.TYPE, 0, 1, None, None, None],
        [c.Ack.TYPE, 0, 1, None, bytes(8), None],
        [c.Ack.TYPE, 0, 1, None, bytes(8), bytes(8)],
        [c.Ack.TYPE, 0, 1, None, bytes(8), b"\x01".ljust(16, b"\0")],
        [c.Nack.TYPE, 0, 1, None, 0],
        [c.Fields.TYPE, 1, ["a"], []],
        [c.Fields.TYPE, 1, ["a"], [1]],
        [c.Fields.TYPE, 1, ["a"], "b"],
        [c.Fields.TYPE, 1, ["a"], [["b"]]],
        [c.Fields.TYPE, 1, [""], ["b"]],
        [c.Fields.TYPE, 1, ["a" * 201], ["b"]],
        [c.Fields.TYPE, 1, ["a"] * 4097, ["b"] * 4097],
        [c.Admin.TYPE, 1, "v", [1]],
        [c.Admin.TYPE, 1, "v", {1: 2}],
        [c.Admin.TYPE, 1, "v", {"a": [[[[[[[[[1]]]]]]]]]}],
        [c.Admin.TYPE, 1, "v", {"a": msgpack.ExtType(5, b"")}],
    ],
    ids=repr,
)
def test_invalid_field_ends_the_connection(values: list[Any]) -> None:
    client, broker = open_pair()
    packed = msgpack.packb(values)
    receiver = client if values[0] == c.Fields.TYPE else broker
    receiver.receive_data(len(packed).to_bytes(4, "big") + packed)
    with pytest.raises(RemoteProtocolError):
        receiver.next_event()


def test_command_with_an_invalid_field_is_not_sent_and_changes_nothing() -> None:
    client, broker = open_pair()
    for bad in (
        c.Ping(-1),
        c.OpenProducer(1, 1, "t" * 700, "", -1),
        c.Ack(0, 1, None),
        c.Admin(1, "v", {"a": object()}),
        c.Admin(1, "v", {"a": 2**70}),
        c.Nack(0, 1, np.zeros(limits.MAX_ACK_ROWS + 1, np.int64), -1),
    ):
        with pytest.raises(LocalProtocolError):
            client.send(bad)
    assert pump(client, broker, c.Ping(1)) == [c.Ping(1)]


def test_request_with_too_many_items_is_neither_sent_nor_accepted() -> None:
    """Invariant 9: the broker checks each item of a request in its event loop."""
    client, broker = open_pair()
    most = limits.MAX_REQUEST_ITEMS - limits.MAX_FIELDS
    nested = {"a": list(range(most - 12)), "b": {"c": list(range(9))}}
    for buffer in client.send(c.Admin(1, "v", nested)):
        broker.receive_data(buffer)
    assert broker.next_event() == c.Admin(1, "v", nested)
    with pytest.raises(LocalProtocolError, match="items in lists and maps"):
        client.send(c.Admin(2, "v", nested | {"d": 1}))
    packed = msgpack.packb([c.Admin.TYPE, 2, "v", {"a": list(range(most)), "b": list(range(20))}])
    broker.receive_data(len(packed).to_bytes(4, "big") + packed)
    with pytest.raises(RemoteProtocolError, match="more than 20000 items"):
        broker.next_event()
