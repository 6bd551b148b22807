"""Checks of a subscription's policy, and of the ack_wait of consumers against it.

A consumer's ack_wait is the time in which it must acknowledge a message. The policy's
``max_backoff`` limits every wait, so it would shorten a longer ack_wait. The broker shortens no
ack_wait silently: a consumer that asks for a longer one is refused when it subscribes, and
``max_backoff`` cannot be set below the ack_wait of a connected consumer. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from escapement.broker.subscription.dead_letters import dead_letter
from escapement.broker.subscription.delivery.consumer import Consumer
from escapement.broker.subscription.retries.backoff import CEILING_MS
from escapement.durations import format as duration_text
from escapement.errors import Conflict, InvalidRequest
from escapement.names import TopicName
from escapement.storage.catalog.catalog import Kind
from escapement.storage.catalog.policy import SHARED_FIELDS, SubscriptionPolicy


def check_policy(
    topic: TopicName,
    subscription: str,
    kind: Kind,
    policy: SubscriptionPolicy,
    given: Collection[str],
) -> None:
    """Raise ``InvalidRequest`` if a subscription cannot have this policy.

    Args:
      given: the names of the fields that the request sets. Fields that only shared subscriptions
        can use are refused only if they are among these, because an earlier version may have stored
        the others.
    """
    wished = policy.expired_to_dead_letter or policy.dropped_to_dead_letter
    if policy.max_deliveries or wished or policy.dead_letter_topic:
        dead_letter.target(topic, subscription, policy)
    default = SubscriptionPolicy()
    for name in SHARED_FIELDS:
        wanted = name in given and getattr(policy, name) != getattr(default, name)
        if wanted and kind != "shared":
            raise InvalidRequest(f"{name} is for shared subscriptions; {subscription} is {kind}")


def check_ack_wait(
    topic: TopicName, subscription: str, ack_wait_ms: int, policy: SubscriptionPolicy
) -> None:
    """Raise ``InvalidRequest`` if a consumer asks for a longer ack_wait than the policy allows."""
    if ack_wait_ms > CEILING_MS:  # durations above this may have no text form
        raise InvalidRequest(
            f"an ack_wait of {ack_wait_ms} ms is too long: ask for at most "
            f"{duration_text(CEILING_MS)}"
        )
    asked, most_ms = duration_text(ack_wait_ms), policy.max_backoff_ms
    if 0 < most_ms < ack_wait_ms:
        raise InvalidRequest(
            f"an ack_wait of {asked} is longer than max_backoff, which is "
            f"{duration_text(most_ms)} for the subscription {subscription} of {topic.full}: ask "
            f"for at most {duration_text(most_ms)}, or raise max_backoff with `escapement admin "
            f"subscriptions update {topic.full} {subscription} --max-backoff {asked}`"
        )


def check_consumers(
    topic: TopicName,
    subscription: str,
    consumers: Iterable[Consumer],
    old: SubscriptionPolicy,
    new: SubscriptionPolicy,
) -> None:
    """Raise ``Conflict`` if a new ``max_backoff`` would shorten a connected consumer's ack_wait."""
    most_ms = new.max_backoff_ms
    if not most_ms or most_ms == old.max_backoff_ms:
        return
    longest = max(consumers, key=lambda one: one.asked_ack_wait_ms, default=None)
    if longest is not None and longest.asked_ack_wait_ms > most_ms:
        asked = duration_text(longest.asked_ack_wait_ms)
        raise Conflict(
            f"max_backoff of the subscription {subscription} of {topic.full} cannot be "
            f"{duration_text(most_ms)} while the consumer {longest.name!r} is connected, which "
            f"asked for an ack_wait of {asked}: choose at least {asked}, or have the consumer ask "
            "for less first"
        )
