"""The decision about replace keys, and the removal of stale entries (B11)."""

from __future__ import annotations

import numpy as np

from escapement.broker.log.amendments import Amendments
from escapement.broker.topic.key_store import KeyBudget
from escapement.broker.topic.replace_keys import Decision, ReplaceKeys
from escapement.dedup import digests
from escapement.replacement import LATEST
from escapement.storage.commit.items import KeyedMessages
from escapement.storage.encoding.replace_keys import ReplaceTable

NOW_MS = 1_000
DUE_MS = 5_000


class Keys:
    """The replace keys of a topic without subscriptions: messages are pending until 5,000 ms."""

    def __init__(self) -> None:
        self.amendments, self.budget = Amendments(), KeyBudget(100)
        self.keys = ReplaceKeys(self.budget, {}, {}, self.amendments, 0)

    def store(self, *messages: tuple[int, str]) -> None:
        for offset, key in messages:
            row = [np.array([number]) for number in (offset, DUE_MS, NOW_MS, 0)]
            self.keys.store(ReplaceTable(digests([key]), *row), NOW_MS)

    def decide(self, offset: int, key: str) -> Decision:
        row = np.array([offset]), np.array([DUE_MS]), digests([key]), np.array([LATEST])
        return self.keys.decide(KeyedMessages(*row, np.zeros(1, np.int64)), NOW_MS)

    def known(self, *names: str) -> list[int]:
        return self.keys.find_rows(digests(names))[0].tolist()


def test_cancellation_that_is_not_durable_is_stored_with_the_new_message() -> None:
    """B11: otherwise a crash could leave both messages. A durable one is not stored again."""
    topic = Keys()
    topic.store((1, "a"), (2, "b"))
    topic.amendments.cancelled.take(np.array([1, 2]))
    topic.amendments.cancelled.committed(np.array([2]))
    decision = topic.decide(3, "a")
    assert decision.previous.tolist() == [-1]
    assert decision.cancelled.tolist() == [1]
    assert topic.decide(3, "b").cancelled.tolist() == []


def test_purge_does_not_reveal_an_earlier_message_of_a_key() -> None:
    """B11: message 1 seems pending, but a later one had the key. The budget gets both back."""
    topic = Keys()
    topic.store((1, "a"), (2, "b"), (3, "a"))
    topic.amendments.cancelled.add(np.array([3]))
    topic.keys.purge(NOW_MS)
    assert topic.known("a", "b") == [-1, 2]
    assert topic.budget.used == len(topic.keys) == 1
    topic.keys.purge(DUE_MS)
    assert topic.known("b") == [-1]


def test_messages_that_the_log_has_deleted_are_forgotten_after_a_start() -> None:
    """B11: restated messages are still there, however low their offset is."""
    topic = Keys()
    topic.store((1, "a"), (2, "b"), (7, "c"))
    topic.amendments.moves.put(np.array([2]), np.array([DUE_MS]), np.array([DUE_MS]), -1)
    topic.keys.check(5)
    assert topic.known("a", "b", "c") == [-1, 2, 7]
    assert not topic.keys.unchecked
