"""The errors of invalid arguments, which name the argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import numpy as np
import pytest

from escapement.errors import InvalidRequest
from escapement.sync import connect as connect_sync
from support.client_peer import Peer, connect, on_both
from support.listening_peer import listening

NAIVE: Final = datetime(2026, 1, 1)
# Calls of a broker, a producer and an inbox, and the argument that is not valid.
CALLS: Final[list[tuple[str, Callable[[Any, Any, Any], Any]]]] = [
    ("delay", lambda b, p, i: p.send(b"", delay=-1)),
    ("delay", lambda b, p, i: p.send(b"", delay=(-1, "s"))),
    ("delay", lambda b, p, i: p.submit(b"", delay="soon")),
    ("delay", lambda b, p, i: p.send_many([b"", b""], delay=["1s", 5])),
    ("delay", lambda b, p, i: p.send_many([b""], delay=np.array([-7]))),
    ("delay", lambda b, p, i: p.send_many([b""], delay=np.array([0.5]))),
    ("delay", lambda b, p, i: p.send_many([b""], delay=["1s", "2s"])),
    ("delay", lambda b, p, i: b.reschedule(3, topic="t", delay=(1, "eon"))),
    ("delay", lambda b, p, i: i.nack(3, delay=-1)),
    ("at", lambda b, p, i: p.send(b"", at="tomorrow")),
    ("at", lambda b, p, i: p.send(b"", at=NAIVE)),
    ("at", lambda b, p, i: p.send(b"", at=1_700_000_000)),
    ("at", lambda b, p, i: p.send_many([b""], at="tomorrow")),
    ("at", lambda b, p, i: b.reschedule(3, topic="t", at=NAIVE)),
    ("every", lambda b, p, i: b.schedules.create("s", "t", every="0s")),
    ("every", lambda b, p, i: b.schedules.create("s", "t", every=(999, "ms"))),
    ("every", lambda b, p, i: b.schedules.create("s", "t", every=5)),
    ("until", lambda b, p, i: b.schedules.create("s", "t", every="1h", until="tomorrow")),
    ("until", lambda b, p, i: b.pause("t", until=NAIVE)),
    ("duration", lambda b, p, i: b.pause("t", duration=5)),
    ("duration and until", lambda b, p, i: b.pause("t", duration="1s", until=NAIVE)),
    ("by", lambda b, p, i: b.forecast("t", by="0s")),
    ("within", lambda b, p, i: b.forecast("t", within="a day")),
    ("origin", lambda b, p, i: b.forecast("t", origin="midnight")),
    ("due_from", lambda b, p, i: b.select("t", due_from="now")),
    ("due_until", lambda b, p, i: b.peek("t", due_until=NAIVE)),
    ("linger", lambda b, p, i: b.producer("t", linger=5)),
    ("send_timeout", lambda b, p, i: b.producer("t", send_timeout="never")),
    ("ack_wait", lambda b, p, i: b.consumer("t", "s", ack_wait=30)),
    ("position", lambda b, p, i: i.seek(NAIVE)),
    ("wait", lambda b, p, i: i.extend(3, 5)),
]


async def result(act: Callable[[], Any]) -> Any:
    """Return the result of a function, which may be async."""
    found = act()
    return await found if inspect.isawaitable(found) else found


@on_both
async def test_errors_of_invalid_times_name_the_argument() -> None:
    async with Peer.running() as peer, connect(peer) as broker:
        producer = await broker.producer("t")
        async with broker.consumer("t", "s") as inbox:
            before = len(peer.heard)
            for name, call in CALLS:
                with pytest.raises(InvalidRequest, match=rf"^(both )?{name}\b"):
                    await result(lambda call=call: call(broker, producer, inbox))
            assert len(peer.heard) == before, "an invalid request was sent"


def test_errors_of_the_blocking_client_name_the_argument() -> None:
    with listening() as (_, _, url), connect_sync(url) as broker:
        producer = broker.producer("t")
        with broker.consumer("t", "s") as inbox:
            for name, call in CALLS:
                with pytest.raises(InvalidRequest, match=rf"^(both )?{name}\b"):
                    call(broker, producer, inbox)
