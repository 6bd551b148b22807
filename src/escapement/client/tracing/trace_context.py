"""Trace contexts in the properties of messages, as W3C Trace Context defines them.

A *carrier* is a dict with the properties ``traceparent`` and, if it is not empty, ``tracestate``.
The properties of a message are a msgpack map. ``with_carrier`` adds the same carrier to all
messages of a batch. It appends the encoded entries to each map, and raises the number of entries
in the map's header. ``carriers`` finds the different carriers of a batch by a search over the
joined bytes of all properties. Neither has a loop over messages.

This module is pure.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

import msgpack
import numpy as np

from escapement.message import Blobs, Bools, Int64s, MessageBatch, copy_strings
from escapement.properties import read_properties

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
# The most different contexts that are found in one batch. It is the default limit of links of a
# span in OpenTelemetry.
MAX_CARRIERS: Final = 128

_NAME: Final[bytes] = msgpack.packb(TRACEPARENT)
# A traceparent is a text of 55 characters, which msgpack packs as its type (0xd9), its length and
# its bytes.
_VALUE_HEADER: Final = b"\xd9\x37"
_PROPERTY: Final = re.compile(re.escape(_NAME + _VALUE_HEADER) + b"(.{55})", re.DOTALL)
_NAMED: Final = re.compile(re.escape(_NAME))

# msgpack maps: up to 15 entries have a header of one byte, 0x80 to 0x8f, and more entries one of
# three bytes, 0xde and the number. A map of 65,536 entries or more gets no context.
_SMALL: Final = 0x80
_MOST_SMALL: Final = 15
_LARGE: Final = 0xDE
_MOST_LARGE: Final = 0xFFFF
# The bytes by which a message may grow besides the entries: the header of its map, and the length
# of its properties, if no other message of the batch has any.
_GROWTH_BYTES: Final = 8


def with_carrier(batch: MessageBatch, carrier: dict[str, str], most_bytes: int) -> MessageBatch:
    """Return a batch whose messages have the entries of ``carrier`` in their properties.

    A message keeps its properties as they are if it has a traceparent already, if it would become
    larger than ``most_bytes``, or if its properties are not a map. O(bytes of all properties).
    """
    entries = msgpack.packb(carrier)[1:]
    properties = batch.properties or Blobs.empty(len(batch))
    lengths, starts = properties.lengths.astype(np.int64), properties.starts()
    headers, counts, maps = _headers(properties, lengths, starts)
    counts += len(carrier)
    takes = maps & (counts <= _MOST_LARGE) & ~_with_traceparent(properties, starts)
    takes &= batch.string_sizes() + len(entries) + _GROWTH_BYTES <= most_bytes
    headers = np.where(takes, headers, 0)
    new_headers = np.where(takes, np.where(counts <= _MOST_SMALL, 1, 3), 0)
    bodies = lengths - headers
    new_lengths = new_headers + bodies + takes * len(entries)
    positions = np.cumsum(new_lengths) - new_lengths

    out = np.zeros(int(new_lengths.sum()), np.uint8)
    copy_strings(out, positions + new_headers, properties.data, starts + headers, bodies)
    ends = (positions + new_headers + bodies)[takes]
    copy_strings(out, ends, entries, np.zeros_like(ends), np.full_like(ends, len(entries)))
    small, large = new_headers == 1, new_headers == 3
    out[positions[small]] = _SMALL + counts[small]
    out[positions[large]] = _LARGE
    out[positions[large] + 1] = counts[large] >> 8
    out[positions[large] + 2] = counts[large] & 0xFF
    return replace(batch, properties=Blobs(new_lengths.astype(np.uint32), out.data))


def _headers(properties: Blobs, lengths: Int64s, starts: Int64s) -> tuple[Int64s, Int64s, Bools]:
    """Return the width of the header of each map, its number of entries, and which are maps.

    No properties count as a map without entries.
    """
    data = np.frombuffer(properties.data, np.uint8)
    filled = lengths > 0
    first = np.full(len(lengths), _SMALL, np.int64)
    first[filled] = data[starts[filled]]
    small = (first >= _SMALL) & (first <= _SMALL + _MOST_SMALL)
    large = (first == _LARGE) & (lengths >= 3)
    counts = np.where(small, first - _SMALL, 0)
    at = starts[large]
    counts[large] = data[at + 1].astype(np.int64) << 8 | data[at + 2]
    return np.where(large, 3, filled.astype(np.int64)), counts, small | large


def _with_traceparent(properties: Blobs, starts: Int64s) -> Bools:
    """Return which messages have a traceparent. Loops over these, which are few or none."""
    found = [match.start() for match in _NAMED.finditer(properties.data)]
    have = np.zeros(len(starts), bool)
    have[starts.searchsorted(found, "right") - 1] = True
    return have


def carriers(properties: Blobs | None) -> list[dict[str, Any]]:
    """Return the properties of one message for each traceparent of a batch.

    They are those of the first message with the traceparent, in the order of these messages, and
    at most ``MAX_CARRIERS``.
    """
    if properties is None:
        return []
    data = bytes(properties.data)
    different = dict.fromkeys(_PROPERTY.findall(data))
    starts = properties.starts()
    found: list[dict[str, Any]] = []
    at = 0
    for value in different:
        if len(found) == MAX_CARRIERS:
            break
        at = data.find(_NAME + _VALUE_HEADER + value, at)
        row = int(starts.searchsorted(at, "right")) - 1
        found.append(read_properties(data[starts[row] : starts[row] + properties.lengths[row]]))
    return found
