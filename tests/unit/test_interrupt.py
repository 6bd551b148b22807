"""Ctrl-C inside a ``with`` block that must not be interrupted."""

from __future__ import annotations

import signal

import pytest

from escapement.interrupt import put_off

pytestmark = pytest.mark.usefixtures("ctrl_c")


def interrupted(times: int, error: Exception | None = None) -> list[str]:
    """Interrupt a protected block some times. Return the points that it reached."""
    reached = []

    def within() -> None:
        with put_off():
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
            reached.append("the end")
            if error is not None:
                raise error

    with pytest.raises(KeyboardInterrupt):
        within()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return reached


def test_interrupt_waits_for_the_end_of_the_protected_block() -> None:
    """B7: also if the ``with`` block fails."""
    assert interrupted(1) == ["the end"]
    assert interrupted(1, ValueError("failed too")) == ["the end"]
    with put_off():
        pass


def test_second_interrupt_does_not_wait() -> None:
    """B7."""
    assert interrupted(2) == []


def test_other_signal_handlers_stay_in_force() -> None:
    """B7: handlers set before the ``with`` block, or inside it as Spark does."""
    seen = []
    theirs = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        with put_off():
            signal.raise_signal(signal.SIGINT)
        assert seen == [1]
    finally:
        signal.signal(signal.SIGINT, theirs)
    try:
        with put_off():
            signal.signal(signal.SIGINT, lambda *_: seen.append(2))
        signal.raise_signal(signal.SIGINT)
        assert seen == [1, 2]
    finally:
        signal.signal(signal.SIGINT, theirs)
