"""The arguments of verbs: the errors help to find a misspelt one."""

from __future__ import annotations

from typing import Any

import pytest

from escapement.broker.access.access import Access
from escapement.broker.access.caller import Caller
from escapement.broker.admin.arguments import Arguments
from escapement.broker.registry.changes import Changes
from escapement.clock import SystemClock
from escapement.errors import InvalidRequest


async def unused(*_: Any, **__: Any) -> Any:
    raise AssertionError("arguments are read without the database")


def arguments(verb: str, given: dict[str, Any]) -> Arguments:
    """Return the arguments of a call by a client of a broker without tokens."""
    return Arguments(verb, given, Caller(Access(Changes(unused), SystemClock(), (), ())))


def test_missing_argument_is_named_with_the_arguments_that_were_given() -> None:
    given = arguments("subscriptions.create", {"topic": "t", "subscriptoin": "s", "kind": "shared"})
    assert given.text("topic") == "t"
    with pytest.raises(InvalidRequest) as error:
        given.text("subscription")
    assert str(error.value) == (
        "subscriptions.create needs 'subscription' as text; "
        "it was given 'topic', 'subscriptoin', 'kind'"
    )
    with pytest.raises(InvalidRequest, match="'topic' as text; it was given no arguments"):
        arguments("topics.create", {}).text("topic")


def test_unknown_argument_is_named_with_the_arguments_that_the_verb_takes() -> None:
    """Optional arguments count too, whether or not they are given."""
    given = arguments("topics.delete", {"topic": "t", "froce": True})
    given.text("topic")
    assert given.optional_text("reason") is None
    assert given.flag("force") is False
    assert given.map("policy") == {}
    with pytest.raises(InvalidRequest) as error:
        given.end()
    assert str(error.value) == (
        "topics.delete does not take 'froce'; it takes 'topic', 'reason', 'force', 'policy'"
    )
    with pytest.raises(InvalidRequest, match="does not take 'x'; it takes no arguments"):
        arguments("broker.stats", {"x": 1}).end()


def test_argument_of_another_type_is_named_alone() -> None:
    with pytest.raises(InvalidRequest) as error:
        arguments("topics.create", {"topic": 7}).text("topic")
    assert str(error.value) == "topics.create needs 'topic' as text"
