"""Patterns of topics against a naive model."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.access.pattern import ALL, Pattern
from escapement.errors import InvalidRequest
from escapement.names import full_name

# Few letters, so that patterns often cover topics.
NAMES = st.text("ab", min_size=1, max_size=2)
TOPICS = st.one_of(
    st.tuples(NAMES, NAMES, NAMES).map("/".join),
    st.tuples(st.just("table"), NAMES, NAMES).map("/".join),
    st.tuples(NAMES, NAMES).map(lambda parts: "table://" + "/".join(parts)),
)
BEGINNINGS = st.one_of(
    st.just(""),
    st.tuples(NAMES, st.text("ab", max_size=2)).map("/".join),
    st.tuples(NAMES, NAMES, st.text("ab", max_size=2)).map("/".join),
    st.text("ab", max_size=2).map("table://".__add__),
    st.tuples(NAMES, st.text("ab", max_size=2)).map(lambda parts: "table://" + "/".join(parts)),
)
PATTERNS = st.one_of(TOPICS, BEGINNINGS.map(lambda text: text + "*"))


@given(PATTERNS, TOPICS)
def test_pattern_covers_the_topics_that_a_shell_would_match(pattern: str, topic: str) -> None:
    """O1: topics and message tables are covered by their full names."""
    assert Pattern.parse(pattern).covers(Pattern.parse(topic)) == fnmatchcase(topic, pattern)


@given(PATTERNS, PATTERNS, TOPICS)
def test_pattern_that_covers_another_covers_all_its_topics(
    wide: str, narrow: str, topic: str
) -> None:
    """A right on a namespace is a right on each topic of it."""
    if Pattern.parse(wide).covers(Pattern.parse(narrow)) and fnmatchcase(topic, narrow):
        assert fnmatchcase(topic, wide)


@given(PATTERNS)
def test_pattern_has_one_form_and_is_covered_by_itself_and_everything(text: str) -> None:
    pattern = Pattern.parse(text)
    assert Pattern.parse(pattern.text) == pattern
    assert pattern.covers(pattern)
    assert ALL.covers(pattern)
    assert pattern.covers(ALL) == (pattern == ALL)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("orders", "public/default/orders"),
        ("persistent://shop/eu/orders", "shop/eu/orders"),
        ("persistent://shop/eu/*", "shop/eu/*"),
        ("shop/eu/order-*", "shop/eu/order-*"),
        ("table://shop/mails", "table://shop/mails"),
        ("table://sh*", "table://sh*"),
        ("*", "*"),
    ],
)
def test_patterns_are_stored_with_full_names(text: str, form: str) -> None:
    assert Pattern.parse(text).text == form


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("shop/*/orders", "only at the end"),
        ("**", "only at the end"),
        ("shop*", "begin with the tenant"),
        ("a/b/c/*", "begin with the tenant"),
        ("table://a/b/*", "begin with the tenant"),
        ("shop/eu", "write 'shop/eu/\\*'"),
        ("sh op/*", "cannot be a tenant name"),
        ("shop/e u*", "cannot be a namespace name"),
        ("http://shop/*", "is not a pattern|cannot be"),
        ("", "topic"),
    ],
)
def test_text_that_is_no_pattern_is_refused_with_a_hint(text: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        Pattern.parse(text)


@given(st.text(max_size=30))
def test_any_text_is_a_pattern_or_refused(text: str) -> None:
    try:
        pattern = Pattern.parse(text)
    except InvalidRequest:
        return
    assert pattern.is_wild or pattern.text == full_name(text)
