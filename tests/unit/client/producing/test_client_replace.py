"""Replace keys in the client: columns, receipts, and brokers that do not know them (B11)."""

from __future__ import annotations

from datetime import timedelta
from math import inf

import numpy as np
import pytest

import escapement
from escapement import Replace
from escapement.client.producing.publish_request import PublishRequest
from escapement.client.producing.receipt import Receipts
from escapement.client.producing.replace import ReplaceColumns
from escapement.dedup import NO_DIGEST
from escapement.errors import InvalidRequest
from escapement.message import NO_TIMES, Blobs, MessageBatch
from escapement.protocol import commands as wire
from escapement.replacement import FIRST, LATEST
from support.client_peer import Peer, connect, on_both


def request(replaces: list[Replace | str | None]) -> PublishRequest:
    found = PublishRequest(0, inf)
    batch = MessageBatch(Blobs.of([b"x"] * len(replaces)))
    found.fill(batch, NO_TIMES, None, 100, ReplaceColumns.of(replaces))
    return found


def test_columns_have_the_key_and_the_mode_of_each_message() -> None:
    debounce = Replace.debounce("k", max_wait=timedelta(seconds=2))
    columns = ReplaceColumns.of(["k", Replace.first("k"), None, debounce])
    assert columns.modes.tolist() == [LATEST, FIRST, LATEST, 2000]
    digests = columns.digests.tolist()
    assert digests[0] == digests[1] == digests[3] != NO_DIGEST
    assert digests[2] == NO_DIGEST
    with pytest.raises(InvalidRequest, match="replace key"):
        Replace.latest("")


def test_request_whose_first_messages_are_stored_keeps_the_other_keys() -> None:
    """B3, B11: nothing is known of the stored messages, and the others have their own receipts."""
    some = request(["a", Replace.first("b"), "c"])
    some.trim(1)
    assert some.replace is not None
    assert some.replace.modes.tolist() == [FIRST, LATEST]
    some.settle(7, previous=np.array([3, 4]))
    plain = PublishRequest(3, inf)
    plain.fill(MessageBatch(Blobs.of([b"x"])), NO_TIMES, None, 10)
    plain.settle(9)
    receipts = Receipts._of("public/default/t", [some, plain])
    assert receipts.replaced is not None
    assert receipts.kept is not None
    assert receipts.offsets.tolist() == [-1, 3, 8, 9]
    assert receipts.replaced.tolist() == [-1, -1, 4, -1]
    assert receipts.kept.tolist() == [False, True, False, False]
    assert [one.duplicate for one in receipts] == [True, False, False, False]
    assert receipts[2].replaced == escapement.MessageId("public/default/t", 4)


def test_frames_without_replace_keys_are_as_before() -> None:
    """B11: brokers and clients that do not know replace keys accept them."""
    body = MessageBatch(Blobs.of([b"x"])).encode()
    plain = wire.Publish(1, 0, -1, None, None, body)
    assert len(plain.write()) == 8
    columns = ReplaceColumns.of(["k"])
    keyed = wire.Publish(1, 0, -1, None, None, body, None, *columns)
    assert len(keyed.write()) == 10
    assert len(wire.Receipt(1, 0, 1, 0, False).write()) == 8
    assert len(wire.Receipt(1, 0, 1, 0, False, previous=np.array([-1])).write()) == 9
    with pytest.raises(ValueError, match="present together"):
        wire.Publish(1, 0, -1, None, None, body, None, columns.digests).write()


@on_both
async def test_broker_that_does_not_know_replace_keys_is_named_as_the_reason() -> None:
    """B11: before anything is sent. Other messages are accepted."""
    async with Peer.running() as peer, connect(peer) as broker:
        producer = await broker.producer("t")
        with pytest.raises(InvalidRequest, match="too old"):
            await producer.send(b"x", replace="k")
        with pytest.raises(InvalidRequest, match="too old"):
            await producer.send_many([b"x"], replace=["k"])
        await producer.send(b"y")
        assert [row[0] for row in peer.log] == [b"y"]
