"""Policies: reading from text, encoding for the database, and decoding."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from escapement.errors import InvalidRequest
from escapement.storage.catalog.policy import (
    MAX_TEXT_CHARS,
    NamespacePolicy,
    Policy,
    SubscriptionPolicy,
    TopicPolicy,
    rule_of,
)
from escapement.storage.catalog.rule import DAY_MS, FOREVER_MS

KINDS = (NamespacePolicy, TopicPolicy, SubscriptionPolicy)


@pytest.mark.parametrize("kind", KINDS)
def test_empty_policy_takes_no_bytes_and_has_the_defaults(kind: type[Policy]) -> None:
    assert kind().encode() == ""
    assert kind.decode("") == kind()


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "ack_wait_ms": st.integers(0, 10**6),
            "max_backoff_ms": st.integers(10**6, 10**10),
            "min_backoff_ms": st.integers(0, 10**6),
            "jitter": st.floats(0, 1),
        },
    )
)
def test_policy_decodes_to_the_same_policy(changes: dict[str, Any]) -> None:
    """V4: a subscription's policy has all settings of the back-off."""
    assume(changes.get("ack_wait_ms", 0) <= changes.get("max_backoff_ms", 10**10))
    policy = SubscriptionPolicy().updated(changes)
    assert SubscriptionPolicy.decode(policy.encode()) == policy
    assert {name: policy.plain()[name] for name in changes} == changes


def test_values_are_read_from_text_and_none_restores_the_default() -> None:
    """V4."""
    policy = SubscriptionPolicy().updated({"ack_wait_ms": "1m", "jitter": 0.1})
    assert (policy.ack_wait_ms, policy.jitter) == (60_000, 0.1)
    assert policy.updated({"jitter": None}) == SubscriptionPolicy(ack_wait_ms=60_000)
    # 0 needs no unit.
    assert policy.updated({"ack_wait_ms": "0"}).ack_wait_ms == 0


def test_retention_and_time_to_live_may_be_a_hundred_years() -> None:
    """Q7, P10: other durations, such as ack_wait, are a year at most."""
    ten_years_ms = 3_660 * DAY_MS
    kept = NamespacePolicy().updated({"retention_ms": "3660d", "ttl_ms": "3660d"})
    assert (kept.retention_ms, kept.ttl_ms) == (ten_years_ms, ten_years_ms)
    assert TopicPolicy().updated({"ttl_ms": "3660d"}).ttl_ms == ten_years_ms
    with pytest.raises(InvalidRequest, match="longer than 36600 days"):
        NamespacePolicy().updated({"retention_ms": "36601d"})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"colour": 1}, "the policy of a subscription has no field 'colour'; known are ack_wait"),
        ({"unknown": {}}, "has no field 'unknown'"),
        ({"max_delivery": 3}, "no field 'max_delivery' (did you mean 'max_deliveries'?); known"),
        ({"max_deliveries": "3"}, "max_deliveries: '3' is a str, not a whole number"),
        ({"max_rate": "3"}, "max_rate: '3' is not a number of messages per second"),
        ({"ack_wait_ms": "soon"}, "ack_wait_ms: 'soon' is not a duration"),
        ({"ack_wait_ms": -1}, "ack_wait_ms: -1 is not a whole number"),
        ({"ack_wait_ms": True}, "ack_wait_ms: True is not a whole number"),
        ({"ack_wait_ms": "60w"}, "ack_wait_ms: 60w is longer than 366 days"),
        ({"jitter": 2}, "jitter: 2 is not from 0 to 1"),
        ({"jitter": "some"}, "jitter: 'some' is not a number from 0 to 1"),
        ({"jitter": float("nan")}, "jitter: nan is not from 0 to 1"),
        (
            {"min_backoff_ms": "1h", "max_backoff_ms": "1m"},
            "max_backoff_ms of 1m is shorter than min_backoff_ms of 1h",
        ),
        (
            {"ack_wait_ms": "1h", "max_backoff_ms": "1m"},
            "ack_wait_ms of 1h is longer than max_backoff_ms of 1m",
        ),
    ],
)
def test_invalid_policy_is_refused_and_its_field_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SubscriptionPolicy().updated(changes)
    assert said in str(caught.value)


def test_stored_ack_wait_above_max_backoff_blocks_no_other_change() -> None:
    """V4: earlier versions accepted it. Other changes work; changes of these fields must fit."""
    policy = SubscriptionPolicy.decode('{"ack_wait_ms": 60000, "max_backoff_ms": 9000}')
    assert policy.updated({"jitter": 0}).jitter == 0
    for changes in ({"ack_wait_ms": "50s"}, {"max_backoff_ms": "10s"}):
        with pytest.raises(InvalidRequest, match="is longer than max_backoff_ms of"):
            policy.updated(changes)
    assert policy.updated({"ack_wait_ms": "9s"}).ack_wait_ms == 9_000


def test_unknown_field_of_a_newer_version_is_kept() -> None:
    text = '{"colour": "red", "jitter": 0.5}'
    policy = SubscriptionPolicy.decode(text)
    assert policy.jitter == 0.5
    changed = policy.updated({"jitter": None, "ack_wait_ms": 5})
    assert changed.encode() == '{"colour": "red", "ack_wait_ms": 5}'


def test_policy_too_long_for_its_column_is_refused() -> None:
    policy = TopicPolicy(unknown={"long": "x" * MAX_TEXT_CHARS})
    with pytest.raises(InvalidRequest, match="the policy of a topic takes 40"):
        policy.encode()


@pytest.mark.parametrize("rate", [-1, "fast", "nan", "inf", 0.0001, 1e12])
def test_invalid_rate_is_refused(rate: object) -> None:
    with pytest.raises(InvalidRequest, match="max_rate"):
        SubscriptionPolicy().updated({"max_rate": rate})


def test_rates_pauses_and_choices_are_read_from_text() -> None:
    policy = SubscriptionPolicy().updated(
        {
            "max_rate": 0.5,
            "paused_until_ms": "1970-01-01T01:00:01+01:00",
            "dispatch": "least_busy",
        }
    )
    assert (policy.max_rate, policy.paused_until_ms) == (0.5, 1_000)
    assert policy.dispatch == "least_busy"
    assert policy.updated({"paused_until_ms": "forever"}).paused_until_ms == FOREVER_MS
    for changes in ({"dispatch": "mine"}, {"paused_until_ms": "2026-12-24T18:00"}):
        with pytest.raises(InvalidRequest):
            policy.updated(changes)


def test_arguments_of_commands_are_read_as_the_values_of_their_fields() -> None:
    arguments = {"max_deliveries": "3", "max_rate": "0.5", "jitter": "0.1", "ack_wait_ms": "1m"}
    values = {n: rule_of(SubscriptionPolicy, n).read_argument(a) for n, a in arguments.items()}
    assert values == {"max_deliveries": 3, "max_rate": 0.5, "jitter": 0.1, "ack_wait_ms": 60_000}
    for name, argument in (("max_deliveries", "0.5"), ("max_rate", "fast"), ("jitter", "2")):
        with pytest.raises(InvalidRequest):
            rule_of(SubscriptionPolicy, name).read_argument(argument)


def test_sizes_are_read_from_text() -> None:
    """P10."""
    policy = TopicPolicy().updated({"quota_bytes": "64MiB", "quota_counts": "all"})
    assert (policy.quota_bytes, policy.quota_counts) == (64 << 20, "all")
    assert policy.updated({"quota_bytes": "5"}).quota_bytes == 5
    for size in ("64MB", "-1KiB", "KiB", 1.5):
        with pytest.raises(InvalidRequest, match="quota_bytes"):
            policy.updated({"quota_bytes": size})
