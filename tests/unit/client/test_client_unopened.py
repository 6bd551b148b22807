"""Clients and consumers that are used without their ``with`` block."""

from __future__ import annotations

import re
from typing import Any

import pytest

import escapement
import escapement.sync
from escapement.errors import InvalidRequest
from support.client_peer import Peer, connect, on_both
from support.listening_peer import listening


def uses_raise(manager: Any, attribute: str, block: str) -> None:
    """Check that each use of a context manager outside its block asks for the block."""
    assert not hasattr(manager, attribute)
    for use in (
        lambda: getattr(manager, attribute),
        lambda: iter(manager),
        lambda: aiter(manager),
        lambda: manager.__await__(),
    ):
        with pytest.raises(InvalidRequest, match=re.escape(f"write `{block}:`")):
            use()


def test_client_without_its_block_is_an_error_with_the_remedy() -> None:
    uses_raise(escapement.connect(), "producer", "async with escapement.connect(...) as broker")
    uses_raise(escapement.sync.connect(), "producer", "with escapement.sync.connect(...) as broker")


@on_both
async def test_consumer_without_its_block_is_an_error_with_the_remedy() -> None:
    """The same object can be used properly afterwards."""
    async with Peer.running() as peer, connect(peer) as broker:
        consumer = broker.consumer("t", "s")
        uses_raise(consumer, "receive", "async with broker.consumer(...) as inbox")
        async with consumer as inbox:
            await peer.deliver([b"a"], [0])
            assert (await inbox.receive()).payload == b"a"


def test_blocking_consumer_without_its_block_is_an_error_with_the_remedy() -> None:
    with listening() as (peer, portal, url), escapement.sync.connect(url) as broker:
        consumer = broker.consumer("t", "s")
        uses_raise(consumer, "receive", "with broker.consumer(...) as inbox")
        with consumer as inbox:
            portal.call(peer.deliver, [b"a"], [0])
            message = inbox.receive()
            assert message is not None
            assert message.payload == b"a"
