"""The clocks of a simulation: one virtual time, and a wall clock for each broker process.

The virtual time jumps to the next time at which a task has something to do. So thirty days pass as
fast as the tasks run. Periods of the broker that are seconds in production would make it stop too
often, so ``stretched`` makes them longer, and ``LEASE_MS`` is hours.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

import trio.testing
from httpcore._async import http11

from escapement.broker import deletion
from escapement.broker.access import access
from escapement.broker.bulk import bulk_changes
from escapement.broker.delivery import sender
from escapement.broker.inbox import dead_letter_writer, group_completion, scheduler
from escapement.broker.node import balancer, node, owned_bundle
from escapement.broker.outbox import ack_relay, outbox_relays, relay
from escapement.broker.recovery import passivator
from escapement.broker.subscription.dead_letters import expiry
from escapement.broker.tables import (
    database,
    known_priorities,
    polling,
    purging,
    row_writer,
    trouble,
)
from escapement.broker.upkeep import compactor, forgetter, housekeeper
from escapement.client.connection.retry import Retry
from escapement.push import pusher
from escapement.storage.commit import lane
from escapement.testing.clock import START_MS

HOUR_S: Final = 3600.0
LEASE_MS: Final = 10 * 3_600_000
# How often a node looks at the nodes and bundles.
LOOK_S: Final = 0.5 * HOUR_S
# The wall clocks of processes differ from the true time by at most this.
MOST_SKEW_MS: Final = 400
# trio's clock counts seconds as floats. This makes up for their rounding errors.
_ROUNDING_MS: Final = 0.001


class TrueClock:
    """The virtual time as Unix milliseconds. Any thread may read it."""

    def __init__(self, clock: trio.testing.MockClock) -> None:
        self._clock = clock

    def now_ms(self) -> int:
        return START_MS + self.lease_ms()

    def now_s(self) -> float:
        return self._clock.current_time()

    def lease_ms(self) -> int:
        return int(self._clock.current_time() * 1000 + _ROUNDING_MS)


class WallClock:
    """The clock of one process: its wall clock can be set, and its lease clock is exact."""

    def __init__(self, true: TrueClock, skew_ms: int) -> None:
        self._true = true
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        return self._true.now_ms() + self.skew_ms

    def lease_ms(self) -> int:
        return self._true.lease_ms()


@contextlib.contextmanager
def stretched() -> Iterator[None]:
    """Make the periods of upkeep and retries longer inside the ``with`` block."""
    next_s = Retry.next_s
    periods: list[tuple[Any, str, Any]] = [
        (Retry, "next_s", lambda self, now_s: 60 * next_s(self, now_s)),
        (passivator, "PAUSE_S", 12 * HOUR_S),
        (group_completion, "_FORGET_S", 12 * HOUR_S),
        (group_completion, "_RETRY_S", 60.0),
        (compactor, "ROUND_S", 6 * HOUR_S),
        (forgetter, "ROUND_S", 12 * HOUR_S),
        (lane, "LAST_PROBE_S", 0.2 * HOUR_S),
        (owned_bundle, "LAST_PROBE_S", 0.2 * HOUR_S),
        (node, "LOOK_S", LOOK_S),
        (node, "_PLACE_S", 4 * HOUR_S),
        (balancer, "STABLE_MS", int(4 * HOUR_S * 1000)),
        (sender, "_RETRY_S", 60.0),
        (dead_letter_writer, "_RETRY_S", 60.0),
        (housekeeper, "ROUND_S", 8 * HOUR_S),
        (scheduler, "_RETRY_MS", 600_000),
        (bulk_changes, "_RETRY_S", 600.0),
        (deletion, "_RETRY_S", 600.0),
        (expiry, "REST_MS", 1_800_000),
        (access, "_EXPIRY_CHECK_S", 0.5 * HOUR_S),
        (pusher, "REFRESH_S", 2 * HOUR_S),
        (pusher, "_AGAIN_S", 600.0),
        # The HTTP client of push reads a clock of its own.
        (http11, "time", SimpleNamespace(monotonic=trio.current_time)),
        (relay, "_SHORTEST_S", 60.0),
        (relay, "LONGEST_S", 0.5 * HOUR_S),
        (relay, "_FIRST_RETRY_S", 60.0),
        (relay, "_LAST_RETRY_S", 0.5 * HOUR_S),
        (ack_relay, "LONGEST_S", 0.5 * HOUR_S),
        (ack_relay, "_LONGEST_OF_ALL_S", 2 * HOUR_S),
        (ack_relay, "_PURGE_EVERY_S", 12 * HOUR_S),
        (outbox_relays, "_LOOK_S", 6 * HOUR_S),
        (database, "_LOOK_S", HOUR_S),
        (database, "_FULL_LOOK_S", 12 * HOUR_S),
        (database, "_FAILED_S", 60.0),
        (polling, "SHORTEST_S", 60.0),
        (polling, "IDLE_S", 0.5 * HOUR_S),
        (polling, "_FIRST_RETRY_S", 60.0),
        (polling, "_LAST_RETRY_S", 0.5 * HOUR_S),
        (purging, "_SHORTEST_S", 6 * HOUR_S),
        (purging, "_LONGEST_S", 12 * HOUR_S),
        (purging, "_BAD_TABLE_S", 12 * HOUR_S),
        (known_priorities, "_FRESH_MS", 6 * 3_600_000),
        (row_writer, "_LOCKED_S", 10.0),
        (row_writer, "_LONGEST_LOCKED_S", 600.0),
        (row_writer, "_FIRST_RETRY_S", 60.0),
        (row_writer, "_LAST_RETRY_S", 0.2 * HOUR_S),
        (trouble, "_FIRST_PAUSE_S", 60.0),
        (trouble, "_LAST_PAUSE_S", 0.2 * HOUR_S),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in periods]
    for owner, name, longer in periods:
        setattr(owner, name, longer)
    try:
        yield
    finally:
        for owner, name, usual in before:
            setattr(owner, name, usual)
