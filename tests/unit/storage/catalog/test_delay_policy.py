"""The delay policy of a topic, as columns of delays and times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from escapement.errors import DelayTooLong, DelayTooShort, InvalidRequest
from escapement.message import NO_TIMES, Times
from escapement.names import TopicName
from escapement.storage.catalog.catalog import Namespace
from escapement.storage.catalog.delay_policy import DelayPolicy
from escapement.storage.catalog.policy import NamespacePolicy, TopicPolicy

NAME = TopicName.parse("shop/eu/orders")
NOW_MS = 1_000_000_000_000
MINUTE_MS = 60_000
NAMESPACE = Namespace(1, "shop", "eu", True, 300_000, 10, 0)


def policy(own: dict[str, int] | None = None, **general: int) -> DelayPolicy | None:
    namespace = replace(NAMESPACE, policy=NamespacePolicy(**general))
    return DelayPolicy.of(NAME, TopicPolicy(**(own or {})), namespace)


def delays(*values_ms: int) -> Times:
    return Times(delay_ms=np.array(values_ms))


def test_topic_without_settings_has_no_delay_policy() -> None:
    assert policy() is None
    namespace = replace(NAMESPACE, delays_enabled=False, policy=NamespacePolicy(min_delay_ms=1))
    assert DelayPolicy.of(NAME, TopicPolicy(), namespace) is None


def test_topic_replaces_each_value_of_its_namespace() -> None:
    """B10: the source of each value is known."""
    found = policy({"max_delay_ms": 7}, default_delay_ms=3, max_delay_ms=9)
    assert found is not None
    assert (found.default.ms, found.default.where) == (3, "namespace shop/eu")
    assert (found.least.ms, found.least.where) == (0, "")
    assert (found.most.ms, found.most.where) == (7, "topic shop/eu/orders")
    assert found.within(100).most.ms == 7
    within = found.within(5)
    assert within.most.text == "5ms, set by the broker's --max-delay"
    with pytest.raises(DelayTooLong, match=r"--max-delay\. Give it a shorter delay\.$"):
        within.check(delays(6), 1, NOW_MS)


def test_default_is_for_messages_with_neither_delay_nor_time() -> None:
    """B10."""
    found = policy(default_delay_ms=MINUTE_MS)
    assert found is not None
    assert found.filled(NO_TIMES, 2).resolve(NOW_MS, 2).tolist() == [NOW_MS + MINUTE_MS] * 2
    some = Times(np.array([-1, 0, -1, 5]), np.array([-1, -1, NOW_MS + 9, -1]))
    due_ms = found.filled(some, 4).resolve(NOW_MS, 4) - NOW_MS
    assert due_ms.tolist() == [MINUTE_MS, 0, 9, 5]
    every = delays(1, 2)
    assert found.filled(every, 2) is every
    at_ms = found.filled_at(np.array([-1, NOW_MS]), 2, NOW_MS)
    assert at_ms is not None
    assert at_ms.tolist() == [NOW_MS + MINUTE_MS, NOW_MS]
    at_ms = found.filled_at(None, 1, NOW_MS)
    assert at_ms is not None
    assert at_ms.tolist() == [NOW_MS + MINUTE_MS]


@pytest.mark.parametrize(
    ("times", "error", "said"),
    [
        (
            delays(MINUTE_MS, 59_999),
            DelayTooShort,
            "Message 2 of a batch of 2 has a delay of 59999",
        ),
        (NO_TIMES, DelayTooShort, "Message 1 of a batch of 2 has no delay. The minimum is 1m, set"),
        (
            Times(at_ms=np.array([NOW_MS + MINUTE_MS, NOW_MS - 5])),
            DelayTooShort,
            "by namespace shop/eu. .* change the minimum with `escapement admin namespaces "
            "set-delays shop/eu --min`",
        ),
        (
            Times(at_ms=np.array([NOW_MS + MINUTE_MS, NOW_MS + 3_600_001])),
            DelayTooLong,
            "Message 2 .* The maximum is 1h, set by topic shop/eu/orders. .* change the maximum "
            "with `escapement admin topics set-delays shop/eu/orders --max`",
        ),
    ],
)
def test_refusal_names_the_delay_the_bound_and_its_source(
    times: Times, error: type[Exception], said: str
) -> None:
    """B10."""
    found = policy({"max_delay_ms": 3_600_000}, min_delay_ms=MINUTE_MS)
    assert found is not None
    with pytest.raises(error, match=said):
        found.check(times, 2, NOW_MS)
    found.check(delays(MINUTE_MS, 3_600_000), 2, NOW_MS)
    found.check_moved(delays(0), 1, NOW_MS)
    with pytest.raises(DelayTooLong, match="The message has a delay of 2h"):
        found.check_moved(delays(7_200_000), 1, NOW_MS)


def test_default_outside_the_bounds_is_refused_as_the_default() -> None:
    """B10: values of a topic and its namespace may contradict each other."""
    found = policy({"max_delay_ms": 10}, default_delay_ms=MINUTE_MS)
    assert found is not None
    with pytest.raises(DelayTooLong, match="the default delay of 1m, set by namespace shop/eu"):
        found.check(found.filled(NO_TIMES, 1), 1, NOW_MS, NO_TIMES)


@pytest.mark.parametrize("kind", [NamespacePolicy, TopicPolicy])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"max_delay_ms": "1m", "min_delay_ms": "2m"}, "max_delay_ms of 1m is shorter than min"),
        ({"default_delay_ms": "1m", "min_delay_ms": "2m"}, "default_delay_ms of 1m is shorter"),
        ({"default_delay_ms": "3m", "max_delay_ms": "2m"}, "max_delay_ms of 2m is shorter than d"),
        ({"default_delay_ms": "soon"}, "not a duration"),
    ],
)
def test_contradicting_delays_are_refused(
    kind: type[NamespacePolicy | TopicPolicy], changes: dict[str, str], said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said):
        kind().updated(changes)
    kind().updated({"default_delay_ms": "2m", "min_delay_ms": "1m", "max_delay_ms": "3m"})
