"""A look at all live brokers and all bundles at once, from which a node decides what to own."""

from __future__ import annotations

from dataclasses import dataclass

from escapement.storage.engine.base import Connection, Engine
from escapement.storage.lease import UNTIL_RELEASED


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A process whose row in ``brokers`` is valid."""

    owner_id: str
    incarnation: str
    name: str
    address: str
    draining: bool
    left_ms: int  # how long its row is still valid
    load_per_s: int = 0  # messages published and delivered per second, at its last renewal
    version: str = ""  # of the program; "" for a process of a version that does not tell it


@dataclass(frozen=True, slots=True)
class Ownership:
    """The owner of a bundle."""

    bundle_id: int
    owner_id: str  # the last owner, if the bundle is free
    incarnation: str  # "" for a broker of an older version, or if the bundle was released
    epoch: int
    free: bool  # whether any broker may take the bundle
    pinned_to: str = ""  # the owner that an operator wants; "" for any


# Both parts have as many columns, which mean: whether it is a bundle, owner, incarnation, bundle or
# 0, epoch or time left, name or wanted owner, address, whether it is draining or owned, load or 0,
# version or nothing.
_SELECT = """
    SELECT 0, owner_id, incarnation, 0, expires_at_ms - {now_ms}, name, address, draining,
        load_per_s, version
    FROM brokers WHERE expires_at_ms > {now_ms}
    UNION ALL
    SELECT 1, leases.owner_id, leases.incarnation, bundle_id, epoch, pinned_to, '',
        CASE WHEN leases.expires_at_ms <> {until_released} THEN leases.expires_at_ms > {now_ms}
        ELSE COALESCE(brokers.expires_at_ms, 0) > {now_ms} END, 0, ''
    FROM leases LEFT JOIN brokers ON brokers.owner_id = leases.owner_id
    AND brokers.incarnation = leases.incarnation
"""


def look_at_all(
    engine: Engine, connection: Connection
) -> tuple[dict[str, LiveBroker], dict[int, Ownership]]:
    """Return the live brokers by owner, and the owners of all bundles. One round trip; blocking."""
    sql = _SELECT.format(now_ms=engine.dialect.now_ms, until_released=UNTIL_RELEASED)
    brokers: dict[str, LiveBroker] = {}
    bundles: dict[int, Ownership] = {}
    for row in connection.execute(sql).rows:
        is_bundle, owner, incarnation, number, measure, name, address, flag, load, version = row
        if is_bundle:
            bundles[number] = Ownership(number, owner, incarnation, measure, not flag, name)
        else:
            brokers[owner] = LiveBroker(
                owner, incarnation, name, address, bool(flag), measure, load, version
            )
    return brokers, bundles
