"""The decision whether a role may do something, against a naive model."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.access.coverage import Coverage
from escapement.access.grant import ACTIONS, Action, Grant, check_role, read_actions
from escapement.access.pattern import ALL, Pattern
from escapement.access.rights import Need, Rights
from escapement.errors import AccessDenied, InvalidRequest

PATTERNS = st.sampled_from(
    ["*", "a/*", "a/b/*", "a/b/t", "a/b/t*", "a/c/*", "table://a/*", "table://a/t"]
)
GRANTS = st.builds(
    lambda role, pattern, actions: Grant(role, Pattern(pattern), actions),
    st.sampled_from(["r", "s"]),
    PATTERNS,
    st.frozensets(st.sampled_from(ACTIONS), min_size=1),
)


@given(st.lists(GRANTS), st.sampled_from(["r", "s", "t"]), st.sampled_from(ACTIONS), PATTERNS)
def test_role_may_do_what_one_of_its_grants_allows_and_nothing_else(
    grants: list[Grant], role: str, action: Action, pattern: str
) -> None:
    """O1: the default is to deny; admin includes the other actions."""
    rights = Rights(grants)
    last = {(one.role, one.pattern): one for one in grants}
    expected = any(
        one.role == role
        and {action, "admin"} & one.actions
        and fnmatchcase(pattern, one.pattern.text)
        for one in last.values()
    )
    need = Need(action, Pattern(pattern))
    assert rights.allows(role, need) == expected
    if expected:
        rights.check(role, [need])
    else:
        with pytest.raises(AccessDenied) as caught:
            rights.check(role, [need])
        assert not caught.value.retryable
    assert list(rights) == sorted(last.values(), key=lambda one: (one.role, one.pattern))
    assert len(rights) == len(last)


@given(st.lists(GRANTS), st.sampled_from(["r", "s"]), st.sampled_from(ACTIONS))
def test_coverage_of_a_role_is_what_its_grants_allow(
    grants: list[Grant], role: str, action: Action
) -> None:
    """O1: the filter of listings agrees with the decision about one request."""
    rights = Rights(grants)
    coverage = rights.coverage(role, action)
    names = ["a/b/t", "a/b/tt", "a/b/u", "a/c/t", "b/b/t", "table://a/t", "table://a/u"]
    patterns = ["*", "a/*", "a/b/*", "a/c/*", "b/*", "table://a/*"]
    for text in names + patterns:
        assert (text in coverage) == rights.allows(role, Need(action, Pattern(text))), text
    assert coverage.among(names) == [one for one in names if one in coverage]


def test_coverage_takes_no_longer_with_more_grants() -> None:
    """A name is compared with one beginning, however many a role has."""
    compared = 0

    class Counted(str):
        def startswith(self, *args: object) -> bool:  # type: ignore[override]
            nonlocal compared
            compared += 1
            return super().startswith(*args)  # type: ignore[arg-type]

    coverage = Coverage(Pattern(f"t{number}/*") for number in range(256))
    names = [Counted(f"t{number}/a/b") for number in range(512)]
    assert len(coverage.among(names)) == 256
    assert compared <= len(names)


def test_error_names_the_smallest_grant_to_add() -> None:
    """O1: an error asks for no more than is needed, and following it suffices."""
    for need in (Need("produce", Pattern("a/b/t")), Need("admin", Pattern("a/b/*"))):
        with pytest.raises(AccessDenied, match="Role r lacks the right") as caught:
            Rights().check("r", [need])
        assert f"add r {need.pattern.text}".replace("a/b/*", "'a/b/*'") in str(caught.value)
        assert f"--actions {need.action}" in str(caught.value)
        Rights([Grant("r", need.pattern, frozenset((need.action,)))]).check("r", [need])


def test_removed_grant_allows_nothing() -> None:
    rights = Rights([Grant("r", ALL, frozenset(("admin",)))])
    rights.remove("r", ALL)
    assert not rights.allows("r", Need("peek", Pattern("a/b/t")))
    assert len(rights) == rights.count("r") == 0


@pytest.mark.parametrize("names", [[], ["produc"], ["produce", "x"], [""]])
def test_unknown_actions_are_refused_with_the_known_ones(names: list[str]) -> None:
    with pytest.raises(InvalidRequest, match="produce, consume, peek, cancel, admin"):
        read_actions(names)
    assert read_actions(["peek", "peek"]) == {"peek"}


@pytest.mark.parametrize(
    ("role", "is_valid"),
    [
        ("billing", True),
        ("spiffe://shop.example/billing", True),
        ("urn:shop:billing", True),
        ("spiffe://" + "x" * 200, False),
        ("spiffe://shop/a b", False),
        ("spiffe://shop/a\n", False),
        ("spiffe://shop/$(x)", False),
        ("a/b", False),
        ("", False),
    ],
)
def test_role_is_a_name_or_the_uri_of_a_certificate(role: str, is_valid: bool) -> None:
    """O1, O2: a role that a certificate names can get grants."""
    if is_valid:
        assert check_role(role) == role
    else:
        with pytest.raises(InvalidRequest):
            check_role(role)
