"""The conditions of verbs that search for messages: a time range, a message key, properties."""

from __future__ import annotations

from dataclasses import replace

from escapement.broker.admin.arguments import Arguments
from escapement.broker.inspection.search import Sought
from escapement.broker.subscription.start_position import NEVER_MS
from escapement.storage.index import Key


def take_sought(given: Arguments) -> Sought:
    """Take the arguments ``from_ms``, ``until_ms``, ``key`` and ``properties``."""
    return replace(take_span_and_key(given), properties=given.map("properties"))


def take_span_and_key(given: Arguments) -> Sought:
    """Take the arguments ``from_ms``, ``until_ms`` and ``key``."""
    key = given.optional_text("key")
    return Sought(
        Key(given.optional_number("from_ms") or 0, 0),
        Key(given.optional_number("until_ms") or NEVER_MS, 0),
        None if key is None else frozenset((key.encode(),)),
    )
