"""The start of a bundle whose former owner holds a lock."""

from __future__ import annotations

import pytest
import trio.testing

from escapement.broker.broker import Broker
from escapement.broker.delivery.output_bound import OutputBound
from escapement.broker.front.front import Front
from escapement.broker.limits import BrokerLimits
from escapement.broker.node.owned_bundle import OwnedBundle
from escapement.errors import ShuttingDown
from escapement.storage.engine.base import TransactionAborted


@pytest.mark.parametrize(
    ("former_owner", "words"),
    [
        ("a:7650", "the start of bundle 3, which broker 'a:7650' had before, waits for"),
        ("", "the start of bundle 3 waits for"),
    ],
)
async def test_start_that_waits_for_a_lock_names_the_former_owner(
    former_owner: str,
    words: str,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """B8: the lock is one of a process that hangs."""

    def make_broker() -> Broker:
        raise TransactionAborted("a row stays locked")

    def choose(features: object) -> Broker:
        raise ShuttingDown("there is no broker")

    limits = BrokerLimits()
    front = Front(choose, limits, OutputBound(limits.output_bytes))
    bundle = OwnedBundle(3, make_broker, front, lambda broker: None, former_owner)
    with trio.move_on_after(1):
        await bundle.run(patient=True)
    assert words in caplog.messages[0]
    assert "a row stays locked" in caplog.messages[0]
