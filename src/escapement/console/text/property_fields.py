"""The properties of a message as a field of a form: a JSON object. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from escapement.errors import InvalidRequest


def properties_of(text: str) -> dict[str, Any]:
    """Return the properties that a form has.

    Raises:
      InvalidRequest: if the text is not a JSON object.
    """
    if not text.strip():
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"The properties are not JSON: {error}.") from None
    if not isinstance(found, dict):
        raise InvalidRequest('The properties are not a JSON object, such as {"shop": "berlin"}.')
    return found


def field_of(properties: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the text with which a form returns these properties.

    Returns:
      The text, and the names of properties that JSON cannot hold, such as those with bytes. They
      are not in the text.
    """
    kept, left_out = {}, []
    for name, value in properties.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            left_out.append(str(name))
        else:
            kept[name] = value
    return json.dumps(kept, indent=2, ensure_ascii=False) if kept else "", left_out
