"""The answer to Hello: who serves the connection, and the limits that the client must keep."""

from __future__ import annotations

from typing import Any, Final

from escapement.broker.broker import Broker
from escapement.broker.limits import BrokerLimits
from escapement.protocol import commands as wire
from escapement.protocol.limits import (
    LIMIT_BATCH_BYTES,
    LIMIT_BATCH_MESSAGES,
    LIMIT_BUNDLE,
    LIMIT_BUNDLES,
    LIMIT_DELAY_MS,
    LIMIT_DETAIL,
    LIMIT_EPOCH,
    LIMIT_FRAME_BYTES,
    LIMIT_LOG,
    LIMIT_PRODUCER_REASON,
    LIMIT_REASON,
    LIMIT_REJECTS,
    LIMIT_REPLACE_KEYS,
    MAX_ACK_ROWS,
    MAX_BATCH_MESSAGES,
    MAX_DETAIL_CHARS,
    MAX_FRAME_BYTES,
    MAX_REASON_CHARS,
    PROTOCOL_VERSION,
)
from escapement.storage.lease import Identity

# Room that a frame needs beside the body of its batch: times, sequence, field headers.
FRAME_MARGIN_BYTES: Final = 2 * 1024 * 1024
MAX_BATCH_BYTES: Final = MAX_FRAME_BYTES - FRAME_MARGIN_BYTES


def welcome_of(broker: Broker, own: BrokerLimits) -> wire.Welcome:
    """Return the welcome of a broker, with its own limits and those of the protocol."""
    limits: dict[str, Any] = {
        LIMIT_FRAME_BYTES: MAX_FRAME_BYTES,
        LIMIT_BATCH_MESSAGES: MAX_BATCH_MESSAGES,
        LIMIT_BATCH_BYTES: MAX_BATCH_BYTES,
        LIMIT_DELAY_MS: own.max_delay_ms,
        LIMIT_REPLACE_KEYS: own.replace_keys,
        LIMIT_REJECTS: MAX_ACK_ROWS,
        LIMIT_REASON: MAX_REASON_CHARS,
        LIMIT_PRODUCER_REASON: MAX_REASON_CHARS,
        LIMIT_DETAIL: MAX_DETAIL_CHARS,
        LIMIT_LOG: broker.services.log_identity,
        LIMIT_EPOCH: broker.epoch,
    }
    if broker.directory.count > 1:
        limits |= {LIMIT_BUNDLES: broker.directory.count, LIMIT_BUNDLE: broker.bundle_id}
    return _welcome(broker.identity, limits)


def observer_welcome(node: Identity, bundle_id: int) -> wire.Welcome:
    """Return the welcome of a node for an observer, which wants a bundle or may have any."""
    return _welcome(node, {LIMIT_FRAME_BYTES: MAX_FRAME_BYTES, LIMIT_BUNDLE: bundle_id})


def _welcome(node: Identity, limits: dict[str, Any]) -> wire.Welcome:
    return wire.Welcome(PROTOCOL_VERSION, node.name, node.owner_id, limits)
