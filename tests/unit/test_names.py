"""Names of tenants, namespaces, topics, subscriptions and producers, and ids of messages."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.errors import InvalidRequest
from escapement.names import MAX_NAME_LENGTH, NamespaceName, TopicName, check_name, read_message_id

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


@pytest.mark.parametrize(
    ("text", "topic", "found"),
    [
        ("public/default/orders@9", None, ("public/default/orders", 9)),
        ("orders@9", "public/default/orders", ("public/default/orders", 9)),
        ("persistent://shop/eu/orders@0", "shop/eu/orders", ("shop/eu/orders", 0)),
        ("9", "orders", ("public/default/orders", 9)),
    ],
)
def test_message_id_has_a_topic_or_is_the_offset_in_a_given_one(
    text: str, topic: str | None, found: tuple[str, int]
) -> None:
    assert read_message_id(text, topic) == found


@pytest.mark.parametrize(
    ("text", "topic", "said"),
    [
        ("9", None, "write TOPIC@17"),
        ("@9", "orders", "write 17 or orders@17"),
        ("orders@", "orders", "write 17 or orders@17"),
        ("-1", "orders", "write 17 or orders@17"),
        ("orders@1_0", None, "write TOPIC@17"),
        ("9" * 19, "orders", "write 17 or orders@17"),
        ("orders@9", "bills", "belongs to another topic than bills"),
        ("a/b@9", None, "'a/b' is not a topic"),
    ],
)
def test_text_that_is_no_message_id_of_the_topic_is_refused(
    text: str, topic: str | None, said: str
) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(said)):
        read_message_id(text, topic)
