"""What the grants of a user allow."""

from __future__ import annotations

import pytest

from escapement.access.grant import Grant, read_actions
from escapement.access.pattern import Pattern
from escapement.console.visit.user import User


def user(*grants: tuple[str, str]) -> User:
    return User(
        "anna",
        [Grant("anna", Pattern.parse(one), read_actions(rights.split())) for one, rights in grants],
    )


@pytest.mark.parametrize(
    ("grants", "standing"),
    [
        ([], "viewer"),
        ([("*", "peek")], "viewer"),
        ([("shop/eu/*", "peek consume")], "viewer"),
        ([("shop/eu/*", "peek cancel")], "operator"),
        ([("shop/eu/orders", "produce")], "operator"),
        ([("shop/*", "admin")], "operator"),
        ([("*", "admin")], "admin"),
    ],
)
def test_standing_follows_from_the_grants(grants: list[tuple[str, str]], standing: str) -> None:
    assert user(*grants).standing == standing


def test_user_may_do_what_a_grant_covers() -> None:
    anna = user(("shop/eu/*", "cancel"), ("shop/us/orders", "produce"))
    assert anna.may("cancel", "shop/eu/orders")
    assert not anna.may("cancel", "shop/us/orders")
    assert not anna.may("cancel")
    assert anna.may_somewhere("produce")
    assert not anna.may_somewhere("admin")


def test_brokers_without_access_control_allow_everything() -> None:
    nobody = User(None)
    assert nobody.standing == "admin"
    assert nobody.may("admin")
