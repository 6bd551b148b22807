"""Settings that a client changes, and when each of them surely holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from histories.history import NEVER_MS


@dataclass(slots=True, kw_only=True)
class Setting:
    """Settings that a client asked for at one time. They surely hold from another one on."""

    called_ms: int = 0
    from_ms: int = NEVER_MS


S = TypeVar("S", bound=Setting)


def surely(settings: Sequence[S], from_ms: int, to_ms: int) -> S | None:
    """Return those that hold for the whole time; None if others may have held."""
    for setting, (ends_ms, _) in zip(settings, ends(settings), strict=True):
        if setting.from_ms <= from_ms and to_ms <= ends_ms:
            return setting
    return None


def perhaps(settings: Sequence[S], from_ms: int, to_ms: int) -> list[S]:
    """Return those that may have held at some time between two."""
    return [
        setting
        for setting, (_, ended_ms) in zip(settings, ends(settings), strict=True)
        if setting.called_ms <= to_ms and from_ms <= ended_ms
    ]


def ends(settings: Sequence[Setting]) -> list[tuple[int, int]]:
    """Return for each when it may have ended, and when it had surely ended."""
    later = [(setting.called_ms, setting.from_ms) for setting in settings[1:]]
    return [*later, (NEVER_MS, NEVER_MS)]
