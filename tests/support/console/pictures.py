"""PNG files of pages with a palette, which are a third as large as those of the browser."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path
from typing import Final

from playwright.sync_api import Page

_SCRIPT: Final = Path(__file__).with_name("palette.js").read_text()


def with_palette(png: bytes, page: Page) -> bytes:
    """Return a picture as a PNG file with at most 256 colours.

    Args:
      page: any page without a policy for contents, to decode the picture in.
    """
    found = page.evaluate(_SCRIPT, base64.b64encode(png).decode())
    width, height = found["width"], found["height"]
    pixels = base64.b64decode(found["pixels"])
    # Each row begins with its filter: none.
    rows = b"".join(b"\0" + pixels[at : at + width] for at in range(0, width * height, width))
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)  # 8 bits, with a palette
    palette = b"".join(colour.to_bytes(3, "big") for colour in found["palette"])
    chunks = {b"IHDR": head, b"PLTE": palette, b"IDAT": zlib.compress(rows, 9), b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks.items())


def _chunk(kind: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)
