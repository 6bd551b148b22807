"""The payload of a message as a text of a page."""

from __future__ import annotations

import json
from typing import NamedTuple

# Bytes in one line of a hex dump.
_LINE_BYTES = 16


class Shown(NamedTuple):
    """A payload as text: indented JSON, other text, or a hex dump."""

    kind: str  # "JSON", "text" or "bytes"
    text: str


def shown(payload: bytes, size_bytes: int | None = None) -> Shown:
    """Return a payload as text.

    Args:
      size_bytes: the size of the whole payload, if this may be its beginning.
    """
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        # The cut may have split the last character.
        is_cut = size_bytes is not None and size_bytes > len(payload)
        if not is_cut or error.start < len(payload) - 3:
            return Shown("bytes", _hex(payload))
        text = payload[: error.start].decode()
    try:
        indented = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        # JSON may escape half of a character, which has no bytes.
        return Shown("JSON", indented.encode(errors="backslashreplace").decode())
    except (ValueError, RecursionError):
        pass
    printable = all(one.isprintable() or one in "\n\r\t" for one in text)
    return Shown("text", text) if printable else Shown("bytes", _hex(payload))


def _hex(payload: bytes) -> str:
    lines = []
    for at in range(0, len(payload), _LINE_BYTES):
        part = payload[at : at + _LINE_BYTES]
        text = "".join(chr(one) if 32 <= one < 127 else "." for one in part)
        lines.append(f"{at:06x}  {part.hex(' '):<{_LINE_BYTES * 3}} {text}")
    return "\n".join(lines)
