"""Whether the broker is ready for clients, decided from its state."""

from __future__ import annotations

from dataclasses import dataclass

from escapement.broker.broker import Broker
from escapement.broker.membership import Membership
from escapement.broker.side_port.shown import Shown
from escapement.errors import StorageReadOnly


@dataclass(frozen=True, slots=True)
class State:
    """The state of a broker that has started, or of a process without bundles."""

    stopping: bool
    lease_left_ms: int
    database: str  # the state of the commit pipeline, such as "up" or "read-only"
    commit_age_ms: int  # since the last group commit or renewal of the lease
    commit_limit_ms: int  # from this age on, something is wrong


def state_of(broker: Broker) -> State:
    """Return the state of a broker."""
    return State(
        stopping=broker.stopping,
        lease_left_ms=broker.lease_left_ms,
        database=broker.services.pipeline.reported_state.name.lower().replace("_", "-"),
        commit_age_ms=broker.commit_age_ms,
        commit_limit_ms=_commit_limit_ms(broker.config.limits.lease_ms),
    )


def state_of_member(membership: Membership) -> State:
    """Return the state of a process without bundles. Its only commits are its renewals."""
    is_read_only = isinstance(membership.outage, StorageReadOnly)
    outage = "read-only" if is_read_only else "down"
    return State(
        stopping=membership.leaving,
        lease_left_ms=membership.left_ms,
        database="up" if membership.outage is None else outage,
        commit_age_ms=membership.renewal_age_ms,
        commit_limit_ms=_commit_limit_ms(membership.lease_ms),
    )


def _commit_limit_ms(lease_ms: int) -> int:
    # The lease is renewed three times in its duration, and each renewal is a commit.
    return lease_ms * 2 // 3


def reasons_not_ready(shown: Shown) -> list[str]:
    """Return why the process is not ready, in words; an empty list if it is ready.

    A process without bundles is ready if it could take over when another one dies.
    """
    brokers = shown.brokers
    if not brokers:
        if shown.membership is None:
            return ["no broker runs: it waits for the lease or loads the index"]
        return reasons_of(state_of_member(shown.membership))
    found = [(broker, reasons_of(state_of(broker))) for broker in brokers]
    if len(brokers) == 1:
        return found[0][1]
    return [f"bundle {broker.bundle_id}: {one}" for broker, reasons in found for one in reasons]


def reasons_of(state: State) -> list[str]:
    """Return why a broker is not ready, in words; an empty list if it is ready."""
    reasons = []
    if state.stopping:
        reasons.append("the broker is stopping")
    if not state.lease_left_ms:
        reasons.append("the lease has expired: another broker may take over the database")
    if state.database != "up":
        reasons.append(f"the database is {state.database}: publishes are refused")
    if state.commit_age_ms >= state.commit_limit_ms:
        reasons.append(f"no commit has succeeded for {state.commit_age_ms / 1000:.1f} s")
    return reasons
