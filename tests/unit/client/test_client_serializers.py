"""The serializers of payloads."""

from __future__ import annotations

import pytest

from escapement.client.serializers import BYTES, JSON, MSGPACK, STR, Serializer, serializer
from escapement.errors import InvalidRequest


def test_serializers_round_trip_and_refuse_other_values() -> None:
    for choice, value in (
        (BYTES, b"x"),
        (STR, "ü"),
        (JSON, {"a": [1, None, "ü"]}),
        (MSGPACK, [b"x", {"a": 1.5}]),
    ):
        assert choice.loads(choice.dumps(value)) == value
    assert serializer(bytes) is BYTES
    assert serializer(str) is STR
    assert serializer((str.encode, bytes.decode)).dumps("x") == b"x"
    assert BYTES.dumps(bytearray(b"x")) == b"x"
    for bad in (int, "json", (1, 2)):
        with pytest.raises(InvalidRequest):
            serializer(bad)
    for choice in (BYTES, STR):
        with pytest.raises(InvalidRequest):
            choice.dumps(7)


@pytest.mark.parametrize(("chosen", "name"), [(JSON, "JSON"), (MSGPACK, "msgpack")])
def test_value_that_cannot_be_encoded_is_refused(chosen: Serializer, name: str) -> None:
    endless: list[object] = []
    endless.append(endless)
    for value in (object(), {1, 2}, endless):
        with pytest.raises(InvalidRequest, match=f"cannot be encoded as {name}"):
            chosen.dumps(value)
