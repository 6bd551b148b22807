"""A sample of every command of the protocol, and the two ends of a connection."""

from __future__ import annotations

import numpy as np

from escapement.dedup import digests
from escapement.message import Blobs, MessageBatch
from escapement.protocol import commands as c
from escapement.protocol import limits
from escapement.protocol.connection import Connection

BODY = MessageBatch(Blobs.of([b"one", b"two", b"three"])).encode()
COLUMN = np.array([7, 8, 9], np.int64)
DIGESTS = digests(["one", None, "three"])
HELLO = c.Hello(limits.PROTOCOL_VERSION, "test", {"zstd": False})
WELCOME = c.Welcome(limits.PROTOCOL_VERSION, "b", "b-1", {limits.LIMIT_FRAME_BYTES: 1 << 20})

# At least one of every command.
SAMPLES: list[c.Command] = [
    c.Ping(3),
    c.Pong(3),
    c.Refused(1, 0, -1, "busy", "later", True),
    c.Done(4),
    c.OpenProducer(1, 1, "t", "", -1),
    c.OpenProducer(1, 1, "t", "", -1, "ticket 4711"),
    c.ProducerReady(1, 1, "persistent://public/default/t", "p", 2, -1),
    c.Publish(1, 0, -1, None, None, BODY),
    c.Publish(1, 5, 3, COLUMN, COLUMN, BODY),
    c.Receipt(1, 5, 3, 100, False),
    c.Publish(1, 5, 3, None, None, BODY, DIGESTS),
    c.Receipt(1, 5, 3, -1, True, COLUMN, np.array([1, 0, 1], np.uint8)),
    c.Find(4, "t", DIGESTS),
    c.Found(4, COLUMN),
    c.CloseProducer(2, 1),
    c.ProducerClosed(1, "producer_fenced", "newer", False),
    c.Subscribe(3, 1, "t", "s", "shared", "latest", 0, ""),
    c.ConsumerReady(3, 1, "persistent://public/default/t", "shared", bytes(range(16)), 7),
    c.Flow(1, 1000),
    c.Deliver(1, COLUMN, COLUMN, None, None, BODY),
    c.Deliver(1, COLUMN, COLUMN, np.array([1, 2, 3], np.uint16), np.ones(3, np.uint8), BODY),
    c.Ack(0, 1, COLUMN),
    c.Ack(5, 1, None, COLUMN, COLUMN + 1),
    c.Nack(6, 1, COLUMN, -1),
    c.Reject(6, 1, COLUMN),
    c.Reject(6, 1, COLUMN, "HTTP 410"),
    c.Acked(5, 3),
    c.CloseConsumer(7, 1),
    c.CloseConsumer(7, 1, COLUMN),
    c.Extend(8, 1, COLUMN, 30_000),
    c.Release(0, 1, COLUMN, 0),
    c.ConsumerActive(1, True),
    c.ConsumerClosed(1, "not_found", "gone", False),
    c.ConsumerRewound(1, 8),
    c.Halt(10, 1),
    c.Fields(1, ("id", "message"), ("bigint unsigned", "json")),
    c.Cancel(8, "t", COLUMN),
    c.Cancel(8, "t", COLUMN, "ticket 4711"),
    c.Reschedule(8, "t", COLUMN, 5, -1, 0),
    c.Reschedule(8, "t", COLUMN, -1, -1, 0, "ticket 4711"),
    c.Amended(8, np.array([0, 1, 2], np.uint8), {"s": b"\x80"}),
    c.Read(9, "t", 0, -1, 1000),
    c.Page(9, "public/default/t", 3, 3, COLUMN, COLUMN, COLUMN, BODY),
    c.Page(9, "public/default/t", 3, 3, COLUMN[:0], COLUMN[:0], COLUMN[:0], b""),
    c.Admin(8, "topics.list", {"namespace": "public/default", "deep": [{"a": [1, 2.5, None]}]}),
    c.Admin(8, "topics.list", {}, "ticket 4711"),
    c.AdminReply(8, ["a", {"b": b"c"}]),
    c.Moved(9, 3, "broker-b:7650", 12),
    c.Moved(0, 0, "", 0),
    c.Lookup(11, "public/default/t"),
    c.Owner(11, 3, "broker-b:7650", 12),
    c.Owner(11, 3, "broker-b:7650", 12, 16),
    c.Goodbye("done"),
]


def pump(sender: Connection, receiver: Connection, *commands: c.Command) -> list[c.Command]:
    for command in commands:
        for buffer in sender.send(command):
            receiver.receive_data(buffer)
    return list(receiver.events())


def open_pair() -> tuple[Connection, Connection]:
    client, broker = Connection("client"), Connection("broker")
    assert pump(client, broker, HELLO) == [HELLO]
    assert pump(broker, client, WELCOME) == [WELCOME]
    return client, broker
