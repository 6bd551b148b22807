"""How answers show payloads and properties."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from escapement.http import json_values

ShownProperties = Annotated[
    Raw,
    Meta(
        description='The properties. Bytes are {"base64": "…"}.',
        extra_json_schema={"type": "object"},
    ),
]


class Payload(Struct):
    """A payload: ``text`` if it is UTF-8, otherwise ``base64``."""

    text: str | UnsetType = UNSET
    base64: bytes | UnsetType = UNSET

    @classmethod
    def of(cls, payload: bytes) -> Payload:
        """Return a payload as JSON shows it."""
        try:
            return cls(text=payload.decode())
        except UnicodeDecodeError:
            return cls(base64=payload)


def shown_properties(properties: dict[str, Any]) -> Raw:
    """Return properties as JSON."""
    return Raw(json_values.encode(properties))
