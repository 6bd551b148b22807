"""The tables of the brokers of which a verb is asked."""

from __future__ import annotations

from typing import Any

import pytest

from escapement.broker.admin.admin import VERBS
from escapement.client.administration.verbs import ANYWHERE, ELSEWHERE, SHARED
from escapement.protocol.bundle_verbs import MERGED, MOST_ROWS, SOUGHT
from support.verb_arguments import TAKEN


def test_every_verb_has_a_way_to_its_broker() -> None:
    """B8: a verb is about a topic, or is in exactly one of the tables."""
    for verb in VERBS:
        ways = [
            verb in MERGED,
            verb in SOUGHT,
            verb == "topics.create_many",
            verb.partition(".")[0] in SHARED and verb not in MERGED,
            verb in ANYWHERE or verb.partition(".")[0] in ANYWHERE,
        ]
        if sum(ways) == 0:
            assert ELSEWHERE.get(verb, "topic") in TAKEN[verb], verb
        assert sum(ways) <= 1, verb
    assert {*MERGED, *SOUGHT, *ELSEWHERE} <= VERBS.keys()


def test_merged_listings_are_in_the_order_of_one_broker() -> None:
    lists = [{"topics": ["b", "d"], "total": 2}, {"topics": ["a", "c"], "total": 7}]
    assert MERGED["topics.list"](lists) == {"topics": ["a", "b", "c", "d"], "total": 9}
    many = [{"topics": [f"t{n:05}" for n in range(MOST_ROWS)], "total": MOST_ROWS}] * 2
    assert len(MERGED["topics.list"](many)["topics"]) == MOST_ROWS
    bulk = [[{"created_at_ms": 5, "id": 1}], [{"created_at_ms": 9, "id": 1}], []]
    assert [one["created_at_ms"] for one in MERGED["bulk.list"](bulk)] == [9, 5]
    inbox = [
        [{"target": "x", "reason": None}, {"target": "y", "reason": None}],
        [{"target": "x", "reason": "full"}, {"target": "y", "reason": None}],
    ]
    assert MERGED["inbox.list"](inbox) == [
        {"target": "x", "reason": "full"},
        {"target": "y", "reason": None},
    ]


def test_forecasts_of_brokers_are_added_span_by_span() -> None:
    """B6, B8: the brokers may have counted at times in different spans."""
    rest = {"namespace": "a/b", "by_ms": 10, "due": 1, "retrying": 2, "in_flight": 0}
    rest |= {"overdue": 3, "scheduled": 9}
    old = {"at_ms": 95, "first_ms": 90, "until_ms": 120, "total": 6, "counts": [1, 2, 3]}
    new = {"at_ms": 104, "first_ms": 100, "until_ms": 130, "total": 15, "counts": [4, 5, 6]}
    old |= rest | {"exact": True, "oldest_due_ms": None}
    new |= rest | {"exact": False, "oldest_due_ms": 7}
    for answers in ([old, new], [new, old]):
        found = MERGED["namespaces.forecast"](answers)
        assert found["counts"] == [1, 6, 8]
        assert (found["total"], found["scheduled"], found["overdue"]) == (15, 18, 6)
        assert (found["at_ms"], found["first_ms"], found["until_ms"]) == (95, 90, 120)
        assert (found["exact"], found["oldest_due_ms"]) == (False, 7)
    assert MERGED["namespaces.forecast"]([old]) == old
    far = old | {"at_ms": 305, "first_ms": 300, "until_ms": 330}
    assert MERGED["namespaces.forecast"]([old, far])["counts"] == [1, 2, 3]


def page(names: str, following: str = "", count: int = 3) -> dict[str, Any]:
    """Return a page of subscriptions with names of one letter, of the topic "t"."""
    rows = [{"topic": "t", "subscription": name} for name in names]
    return {"subscriptions": rows, "next": ["t", following] if following else None, "count": count}


@pytest.mark.parametrize(
    ("pages", "merged"),
    [
        ([page("adg", "g"), page("bc")], page("abc", "c")),
        ([page("abc", "c"), page("def", "f")], page("abc", "c")),
        ([page("ac"), page("b")], page("abc")),
        ([page("ac"), page("bd")], page("abc", "c")),
        ([page("a", "c"), page("bd")], page("ab", "c")),  # b and c were deleted meanwhile
        ([page("", "c"), page("d")], page("", "c")),
        ([page(""), page("")], page("")),
    ],
)
def test_pages_of_brokers_become_one_page_by_name(
    pages: list[dict[str, Any]], merged: dict[str, Any]
) -> None:
    """B6, B8: a broker may have further rows after the end of its page."""
    assert MERGED["subscriptions.overview"](pages) == merged


def test_figures_of_brokers_are_added() -> None:
    one = {"name": "a", "lease_held": True, "topics": 2, "log_generation": 7, "waits": ["x"]}
    two = {"name": "b", "lease_held": False, "topics": 3, "log_generation": 4, "waits": ["x", "y"]}
    assert MERGED["broker.stats"]([one, two]) == {
        "name": "a, b",
        "lease_held": False,
        "topics": 5,
        "log_generation": 7,
        "waits": ["x", "y"],
    }


def test_figures_that_cannot_be_added_are_the_highest() -> None:
    """B8: also if a broker of an earlier version lacks them, or does not know them yet."""
    one = {"topics": 1, "started_at_ms": 5, "commit_p99_us": None, "log_rows": 7}
    two = {"topics": 1, "started_at_ms": 9, "commit_p99_us": 800, "log_rows": None}
    old = {"topics": 1, "log_rows": None}
    merge = MERGED["broker.stats"]
    merged = {"topics": 3, "started_at_ms": 9, "commit_p99_us": 800, "log_rows": 7}
    assert merge([one, two, old]) == merge([old, two, one]) == merged
    assert merge([old, old]) == {"topics": 2, "log_rows": None}
