"""The fields that a form or the query of a URL gives: read into a struct, or as they were typed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, TypeVar, get_origin

import msgspec
from starlette.datastructures import ImmutableMultiDict

from escapement.errors import InvalidRequest

Query = TypeVar("Query", bound=msgspec.Struct)
Given = ImmutableMultiDict[Any, str]


def read(given: Given, kind: type[Query]) -> Query:
    """Return the fields that a struct has. Fields that are empty count as missing.

    A field that is a list has each value that is given; other fields have the last one.

    Raises:
      InvalidRequest: if a field cannot be read; the error names it.
    """
    try:
        return msgspec.convert(_texts(given, kind), kind, strict=False)
    except msgspec.ValidationError as error:
        said, _, name = str(error).partition(" - at `$.")
        what = f"The field {name.removesuffix('`')} is not valid" if name else "A field is missing"
        raise InvalidRequest(f"{what}: {said}.") from None


def readable(given: Given, kind: type[Query]) -> Query:
    """Return the fields as ``read`` does, with defaults in place of those that cannot be read."""
    texts, found = _texts(given, kind), {}
    for one in msgspec.structs.fields(kind):
        if one.encode_name in texts:
            with suppress(msgspec.ValidationError):
                found[one.name] = msgspec.convert(texts[one.encode_name], one.type, strict=False)
    return kind(**found)


def _texts(given: Given, kind: type[Query]) -> dict[str, str | list[str]]:
    texts: dict[str, str | list[str]] = {}
    for one in msgspec.structs.fields(kind):
        values = [value.strip() for value in given.getlist(one.encode_name) if value.strip()]
        if values:
            is_list = get_origin(one.type) is list
            texts[one.encode_name] = values if is_list else values[-1]
    return texts


class Typed:
    """The fields of a form as the user typed them, to fill the form again.

    Args:
      given: the fields; none if the request does not send the form.
    """

    def __init__(self, given: Given) -> None:
        self._given: Final = given

    def __bool__(self) -> bool:
        """Return whether the request sends the form."""
        return bool(self._given)

    def __call__(self, name: str, otherwise: Any = "") -> Any:
        """Return what the user typed into a field; ``otherwise`` if the form was not sent."""
        return self._given.get(name, otherwise)

    def has(self, name: str, value: Any) -> bool:
        """Return whether the user ticked the box, or one of several, with a value."""
        return str(value) in self._given.getlist(name)
