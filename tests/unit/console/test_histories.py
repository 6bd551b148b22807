"""States and outcomes in words."""

from __future__ import annotations

from typing import Any

import pytest

from escapement.console.text.histories import cause, death, lateness, outcome
from escapement.protocol.amend_status import AmendStatus


def status(state: str, **others: Any) -> dict[str, Any]:
    none = {
        "subscription": "s",
        "attempts": 0,
        "consumer": None,
        "since_at_ms": None,
        "until_at_ms": None,
    }
    return {"state": state, **none, **others}


def test_lateness_is_that_of_the_delivery_or_of_now() -> None:
    held = status("in flight", attempts=1, since_at_ms=1_250, until_at_ms=9_000, consumer="till")
    assert lateness(held, 1_000, 5_000) == "delivered 250 ms after the due time"
    again = held | {"attempts": 2}
    assert lateness(again, 1_000, 5_000) == "attempt began 250 ms after the due time"
    assert lateness(status("ready"), 1_000, 5_000) == "4.0 s overdue"
    assert lateness(status("pending"), 9_000, 5_000) == ""
    assert lateness(status("acknowledged", attempts=None), 1_000, 5_000) == ""


def test_cause_names_the_consumer() -> None:
    assert cause(status("in flight", consumer="till", until_at_ms=9)).startswith("till holds it.")
    assert "leaves" in cause(status("in flight", consumer="till"))
    assert "has left" in cause(status("in flight", until_at_ms=9))


@pytest.mark.parametrize(
    "state",
    ["not covered", "pending", "waiting", "ready", "in retry", "to be dead-lettered",
     "acknowledged", "lapsed", "cancelled"],
)  # fmt: skip
def test_each_state_has_a_cause(state: str) -> None:
    assert cause(status(state)).endswith(".")


def test_end_of_a_dead_letter_is_that_it_was_sent_back_or_deleted() -> None:
    done = status("acknowledged", subscription="dead-letters")
    assert cause(done, is_dead_letter=True).startswith("The dead letter was sent back or deleted.")
    assert cause(done).startswith("A consumer acknowledged it.")
    other = status("acknowledged", subscription="alerts")
    assert cause(other, is_dead_letter=True) == cause(other)


def test_death_has_the_detail_of_the_consumer() -> None:
    assert death({"reason": "expired"}) == "it expired"
    rejected = {"reason": "rejected", "detail": "no such shop"}
    assert death(rejected) == "a consumer rejected it: no such shop"
    assert death({"reason": "forged"}) == "forged"
    assert death({}) == "unknown"


def test_each_outcome_has_words() -> None:
    """The words are different, and say whether the message was changed."""
    texts = {one: outcome(one, (), "Cancelled") for one in AmendStatus}
    assert len(set(texts.values())) == len(AmendStatus)
    assert [one for one, text in texts.items() if text == "Cancelled."] == [AmendStatus.DONE]
    handed = outcome(AmendStatus.DONE, ("billing", "mails"), "Cancelled")
    assert handed == "Cancelled. Not for billing, mails: it had been delivered there before."
