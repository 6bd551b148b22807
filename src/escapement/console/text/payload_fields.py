"""The payload of a message as the fields of a form: as text, as JSON or in hexadecimal. Pure."""

from __future__ import annotations

import json
from typing import Final, Literal, get_args

from escapement.errors import InvalidRequest

Kind = Literal["text", "json", "hex"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

# Hexadecimal digits in one line.
_LINE_BYTES: Final = 32


def payload_of(kind: Kind, text: str) -> bytes:
    """Return the payload that a form has.

    Browsers end the lines of a text field with CR LF. The payload gets LF.

    Raises:
      InvalidRequest: if the text is not of this kind. The error names the place.
    """
    if kind == "hex":
        try:
            return bytes.fromhex(text)
        except ValueError as error:
            raise InvalidRequest(f"The payload is not hexadecimal: {error}.") from None
    text = text.replace("\r\n", "\n")
    if kind == "json":
        try:
            json.loads(text, parse_int=str)  # of any length
        except RecursionError:
            raise InvalidRequest("The payload is not JSON: it is nested too deeply.") from None
        except json.JSONDecodeError as error:
            raise InvalidRequest(
                f"The payload is not JSON: {error.msg} in line {error.lineno}, column"
                f" {error.colno}."
            ) from None
    return text.encode()


def fields_of(payload: bytes) -> tuple[Kind, str]:
    """Return the kind and the text with which a form returns exactly this payload."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return "hex", _hex(payload)
    # A text field changes other line ends and cannot have control characters.
    if not all(one.isprintable() or one in "\n\t" for one in text):
        return "hex", _hex(payload)
    try:
        json.loads(text, parse_int=str)
    except (ValueError, RecursionError):
        return "text", text
    return "json", text


def _hex(payload: bytes) -> str:
    parts = range(0, len(payload), _LINE_BYTES)
    return "\n".join(payload[at : at + _LINE_BYTES].hex(" ") for at in parts)
