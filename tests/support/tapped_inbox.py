"""Hear of every delivery to an inbox when it arrives, before the application receives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import escapement
from escapement.protocol import commands as wire


class Delivered(NamedTuple):
    """One message of a delivery."""

    offset: int
    due_ms: int
    attempt: int
    redelivered: bool  # it is marked so
    payload: bytes
    key: str | None
    priority: int


def tap(inbox: escapement.Inbox, note: Callable[[list[Delivered]], None]) -> None:
    """Call ``note`` with the messages of each delivery."""
    heard = inbox._heard

    def hear(command: wire.Command) -> None:
        if isinstance(command, wire.Deliver):
            note(_messages(command))
        heard(command)

    inbox._heard = hear  # type: ignore[method-assign]


def _messages(command: wire.Deliver) -> list[Delivered]:
    batch, count = command.decode(), len(command.offsets)
    keys = [b""] * count if batch.keys is None else batch.keys.to_list()
    attempts, again = command.attempts, command.redelivered
    return [
        Delivered(
            int(command.offsets[row]),
            int(command.due_ms[row]),
            1 if attempts is None else int(attempts[row]),
            again is not None and bool(again[row]),
            payload,
            keys[row].decode() or None,
            50 if batch.priorities is None else int(batch.priorities[row]),
        )
        for row, payload in enumerate(batch.payloads.to_list())
    ]
