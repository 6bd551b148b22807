"""Ctrl-C while something is started."""

from __future__ import annotations

import signal

import pytest

from escapement.interrupt import put_off

pytestmark = pytest.mark.usefixtures("ctrl_c")


def interrupted(times: int, error: Exception | None = None) -> list[str]:
    """What is reached in the meantime."""
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


def test_an_interruption_waits_for_the_end_of_what_must_not_be_left() -> None:
    """B7: whatever else ends it."""
    assert interrupted(1) == ["the end"]
    assert interrupted(1, ValueError("it has failed besides")) == ["the end"]
    with put_off():
        pass


def test_who_interrupts_again_does_not_wait() -> None:
    """B7."""
    assert interrupted(2) == []


def test_who_handles_interruptions_himself_goes_on_doing_so() -> None:
    """B7: from before, or from within on, as Spark does."""
    came = []
    theirs = signal.signal(signal.SIGINT, lambda *_: came.append(1))
    try:
        with put_off():
            signal.raise_signal(signal.SIGINT)
        assert came == [1]
    finally:
        signal.signal(signal.SIGINT, theirs)
    try:
        with put_off():
            signal.signal(signal.SIGINT, lambda *_: came.append(2))
        signal.raise_signal(signal.SIGINT)
        assert came == [1, 2]
    finally:
        signal.signal(signal.SIGINT, theirs)
