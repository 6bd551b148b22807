"""The operations of the gateway: how a request becomes typed arguments, and a result an answer.

An operation declares the types of its headers, its query, its body and its result. They are classes
of msgspec, which checks requests against them, and makes the schemas of the OpenAPI document.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgspec
import msgspec.inspect
from starlette.requests import Request

from escapement.errors import InvalidRequest
from escapement.gateway.client import Client

# Headers of requests begin with this, but those that other software defines.
PREFIX: Final = "Escapement-"
_WELL_KNOWN: Final = {"idempotency_key": "Idempotency-Key"}
JSON: Final = "application/json"
BYTES: Final = "application/octet-stream"
# An integer of a header or of the query. Larger ones are out of range.
_INTEGER: Final = re.compile("-?[0-9]{1,18}")
# The most characters of a wrong value in an error.
_MOST_SHOWN_CHARS: Final = 40
# The place of a field in an error of msgspec.
_FIELD: Final = re.compile(r" - at `\$\.(\w+)`$")


@dataclass(frozen=True, slots=True)
class Call:
    """A request for an operation.

    Attributes:
      client: the client of the sender's token.
      topic: the full name of the topic in the path.
      path: all parameters of the path.
      headers, query, body: the arguments, of the types that the operation declares.
      request: the request itself.
    """

    client: Client
    topic: str
    path: Mapping[str, str]
    headers: Any
    query: Any
    body: Any
    request: Request


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request: a result, and headers."""

    result: msgspec.Struct | bytes | None
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation, with its path and the types of its arguments and its result.

    Attributes:
      name: its id in the OpenAPI document.
      method, path: where it is.
      summary: what it does.
      act: carries a request out.
      headers, query: the types of further arguments; None if there are none.
      body: the type of the body, bytes for any body, or None.
      result: the type of the result, bytes for any bytes, or None.
      status: the status of a success.
    """

    name: str
    method: str
    path: str
    summary: str
    act: Callable[[Call], Awaitable[Answer]]
    headers: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] | None = None
    body: type | None = None
    result: type | None = None
    status: int = 200

    def headers_of(self, request: Request) -> Any:
        """Return the arguments in the headers of a request.

        Raises:
          InvalidRequest: if one has a wrong value, is given twice, or is not UTF-8.
        """
        if self.headers is None:
            return None
        given: dict[str, Any] = {}
        for field in self.headers.__struct_fields__:
            values = request.headers.getlist(header_name(field))
            if len(values) > 1:
                raise InvalidRequest(f"The header {header_name(field)} is given twice.")
            if values:
                given[field] = _utf_8(values[0], header_name(field))
        return converted(given, self.headers, "header", header_name)

    def query_of(self, request: Request) -> Any:
        """Return the arguments in the query of a request.

        Raises:
          InvalidRequest: if one is unknown, is given twice, or has a wrong value.
        """
        given = dict(request.query_params)
        if len(given) != len(request.query_params.multi_items()):
            raise InvalidRequest("A parameter of the query is given twice.")
        if self.query is None:
            if given:
                raise InvalidRequest(f"The query has the unknown parameter {next(iter(given))!r}.")
            return None
        return converted(given, self.query, "parameter")

    def body_of(self, body: bytes, content_type: str) -> Any:
        """Return the argument in the body of a request.

        Raises:
          InvalidRequest: if it is not JSON, or has other fields or types than ``body``.
        """
        if self.body is None or self.body is bytes:
            return body
        if content_type.partition(";")[0].strip().lower() != JSON:
            raise InvalidRequest(f"Send the body with the header Content-Type: {JSON}.")
        try:
            return msgspec.json.decode(body, type=self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"The body is not valid: {error}.") from None


@cache
def _descriptions(type_: type) -> dict[str, str]:
    """Return the descriptions of the fields that have one: what their values are."""
    found = {}
    for field in msgspec.inspect.type_info(type_).fields:  # type: ignore[attr-defined]
        types = getattr(field.type, "types", [field.type])
        for one in types:
            schema = getattr(one, "extra_json_schema", None) or {}
            if "description" in schema:
                found[field.name] = schema["description"]
    return found


@cache
def _numbers(type_: type) -> frozenset[str]:
    """Return the names of the fields that are integers."""
    return frozenset(
        field.name
        for field in msgspec.inspect.type_info(type_).fields  # type: ignore[attr-defined]
        if _is_integer(field.type)
    )


def _is_integer(type_: msgspec.inspect.Type) -> bool:
    if isinstance(type_, msgspec.inspect.Metadata):
        return _is_integer(type_.type)
    if isinstance(type_, msgspec.inspect.UnionType):
        return any(map(_is_integer, type_.types))
    return isinstance(type_, msgspec.inspect.IntType)


def _utf_8(value: str, name: str) -> str:
    """Return the value of a header, which Starlette has decoded as Latin-1."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"The header {name} is not UTF-8.") from None


def header_name(field: str) -> str:
    """Return the name of the header with an argument: ``Escapement-Delay`` for ``delay``."""
    return _WELL_KNOWN.get(field) or PREFIX + field.replace("_", "-").title()


def converted(
    given: Mapping[str, str], to: type, what: str, name_of: Callable[[str], str] = str
) -> Any:
    """Return texts as an object of a type.

    Args:
      what: what a text is, for errors.
      name_of: returns the name of the text for a field, for errors.

    Raises:
      InvalidRequest: if a text is not a value of its field, or has no field.
    """
    numbers = _numbers(to)
    values = {
        name: int(text) if name in numbers and _INTEGER.fullmatch(text) else text
        for name, text in given.items()
    }
    try:
        return msgspec.convert(values, to)
    except msgspec.ValidationError as error:
        at = _FIELD.search(str(error))
        if at is None:
            raise InvalidRequest(f"A {what} is not valid: {error}.") from None
        value, reason = given[at[1]][:_MOST_SHOWN_CHARS], str(error)[: at.start()]
        meaning = _descriptions(to).get(at[1], "")
        text = f"The {what} {name_of(at[1])} has the value {value!r}. {reason}. {meaning}"
        raise InvalidRequest(text.rstrip()) from None
