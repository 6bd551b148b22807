"""Names of tenants, namespaces, topics, subscriptions and producers."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.errors import InvalidRequest
from escapement.names import MAX_NAME_LENGTH, NamespaceName, TopicName, check_name

ALLOWED = string.ascii_letters + string.digits + "._-"
names = st.text(ALLOWED, min_size=1, max_size=30).filter(lambda text: text not in (".", ".."))


@given(names, names, names)
def test_a_topic_is_the_same_with_and_without_its_scheme(a: str, b: str, c: str) -> None:
    topic = TopicName.parse(f"persistent://{a}/{b}/{c}")
    assert topic == TopicName.parse(f"{a}/{b}/{c}") == TopicName(a, b, c)
    assert str(topic) == topic.full == f"{a}/{b}/{c}"
    assert topic.namespace_full == str(topic.in_namespace) == f"{a}/{b}"
    assert TopicName.parse(topic.full) == topic


@given(names)
def test_bare_topic_name_is_in_public_default(name: str) -> None:
    assert TopicName.parse(name).full == f"public/default/{name}"


@given(names, names)
def test_a_namespace_reads_as_it_is_written(a: str, b: str) -> None:
    namespace = NamespaceName.parse(f"{a}/{b}")
    assert (namespace.tenant, namespace.namespace) == (a, b)
    assert str(namespace) == namespace.full == f"{a}/{b}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "a/b",
        "a/b/c/d",
        "a//c",
        "/b/c",
        "a/b/",
        "persistent://",
        "persistent://name",
        "persistent://a/b",
        "non-persistent://a/b/c",
        "Persistent://a/b/c",
        "://a/b/c",
        "a/../c",
        "a/./c",
        "..",
        "a b",
        "a/b/c\n",
        "a/b/ü",
        "a/b/c\0",
        "a/b/" + "x" * (MAX_NAME_LENGTH + 1),
    ],
)
def test_a_malformed_topic_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        TopicName.parse(text)


@pytest.mark.parametrize("text", ["", "a", "a/b/c", "a/", "/b", "a/..", "a/b c", "a/b\n"])
def test_a_malformed_namespace_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        NamespaceName.parse(text)


def test_name_with_malformed_parts_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        TopicName("a/b", "c", "d")
    with pytest.raises(InvalidRequest):
        NamespaceName("a", "")


def test_the_longest_name_is_allowed_and_one_more_is_not() -> None:
    assert check_name("producer", "x" * MAX_NAME_LENGTH) == "x" * MAX_NAME_LENGTH
    with pytest.raises(InvalidRequest):
        check_name("producer", "x" * (MAX_NAME_LENGTH + 1))


def test_refusal_lists_allowed_characters_and_shortens_the_name() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        check_name("subscription", "no spaces " * 1000)
    message = str(refusal.value)
    assert "subscription" in message
    assert "A-Z a-z 0-9 . _ -" in message
    assert len(message) < 300
