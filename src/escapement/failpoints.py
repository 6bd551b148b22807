"""Named points at which a test makes this process fail, and the actions that it chooses for them.

Broker and storage call ``failpoint`` at steps between which a crash matters. Without actions the
call does nothing. A process of a test gets its actions from an environment variable:

    ESCAPEMENT_FAILPOINTS="after_commit=kill@3,before_manifest_swap=error,before_fsync=pause:500"

=============  ===================================================================================
``kill``       ends this process by SIGKILL
``stop``       stops this process by SIGSTOP, until it gets SIGCONT
``pause:MS``   lets the calling thread sleep for this many milliseconds; in the event loop, all wait
``error``      raises the error that the point may raise without a test, such as a full disk
``…@N``        does so in the N-th pass only; otherwise the action is taken in each pass
=============  ===================================================================================

Invariant: only points of ``POINTS`` exist, so a test with a wrong name fails when it starts.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from escapement.errors import IndexDamaged, InvalidRequest, OutcomeUnknown, StorageUnavailable

VARIABLE: Final = "ESCAPEMENT_FAILPOINTS"

Action = Callable[[], None]


def _unavailable() -> Exception:
    return StorageUnavailable("a failpoint cut the connection to the database")


def _full_disk() -> Exception:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# Each point, and the error that it may raise without a test.
POINTS: Final[Mapping[str, Callable[[], Exception]]] = {
    # a group commit: before and after its COMMIT; before the COMMIT of one with acknowledgements
    "before_commit": _unavailable,
    "after_commit": lambda: OutcomeUnknown("a failpoint lost the reply to COMMIT"),
    "ack_commit": _unavailable,
    # before frames go to the socket of a client
    "reply": lambda: ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)),
    # before messages are written to a segment; a segment is written and not yet synchronised; it is
    "checkpoint_write": _full_disk,
    "before_fsync": _full_disk,
    "after_fsync": _full_disk,
    # before and after the new manifest replaces the old one
    "before_manifest_swap": _full_disk,
    "after_manifest_swap": _full_disk,
    # before a window of messages is read from the index
    "window_load": lambda: IndexDamaged("a failpoint damaged a block of the index"),
    # before a cancellation takes effect in memory
    "cancel": _unavailable,
    # before dead messages are acknowledged and copied
    "dead_letter": _unavailable,
    # before live messages of an old generation are restated
    "relocation": _unavailable,
    # a generation of the log is marked, and its tables are not yet dropped
    "generation_drop": _unavailable,
    # before each statement of a migration
    "migration": _unavailable,
    # a lease was taken, and its new owner has read nothing yet
    "take_over": _unavailable,
    # before rows of the log are added to an index that is being filled
    "backfill": _unavailable,
    # a clean stop has finished its work, and the lease is not yet released
    "hand_over": _unavailable,
}

_ACTION: Final = re.compile(
    r"(?P<point>\w+)=(?P<do>kill|stop|error|pause:\d+)(@(?P<pass>[1-9]\d*))?"
)


class _Failing:
    """The actions of this process, and how often each point was passed since they were set."""

    def __init__(self, actions: Mapping[str, Action], in_pass: Mapping[str, int]) -> None:
        self.passes: Counter[str] = Counter()
        self._actions = actions
        self._in_pass = in_pass  # the only pass in which a point takes its action
        self._lock = threading.Lock()

    def reach(self, point: str) -> None:
        assert point in POINTS, point
        with self._lock:
            self.passes[point] += 1
            number = self.passes[point]
        action = self._actions.get(point)
        if action is not None and self._in_pass.get(point, number) == number:
            action()


# None outside of tests. A global, because each process has one set of failpoints.
_failing: _Failing | None = None


def failpoint(point: str) -> None:
    """Take the action that a test has chosen for this point, if any."""
    if _failing is not None:
        _failing.reach(point)


def set_actions(actions: Mapping[str, Action], in_pass: Mapping[str, int] | None = None) -> None:
    """Take these actions from now on, and begin to count passes.

    Args:
      in_pass: points that take their action only in the pass of this number, counted from 1.
    """
    global _failing
    assert actions.keys() <= POINTS.keys()
    _failing = _Failing(actions, in_pass or {})


def clear() -> None:
    """Take no more actions."""
    global _failing
    _failing = None


def passes() -> Counter[str]:
    """Return how often each point was passed since ``set_actions``."""
    assert _failing is not None, "passes are counted from set_actions on"
    return _failing.passes.copy()


def set_by_environment() -> str:
    """Set the actions that the environment names. Return their text, "" if it names none.

    Raises:
      InvalidRequest: the text is malformed, or names a point that does not exist.
    """
    text = os.environ.get(VARIABLE, "")
    if text:
        set_actions(*parse(text))
    return text


def parse(text: str) -> tuple[dict[str, Action], dict[str, int]]:
    """Return the action of each point in a text, and the only pass in which it is taken, if any.

    Raises:
      InvalidRequest: the text is malformed, or names a point that does not exist.
    """
    actions: dict[str, Action] = {}
    in_pass: dict[str, int] = {}
    for part in text.split(","):
        found = _ACTION.fullmatch(part.strip())
        if found is None:
            raise InvalidRequest(
                f"{VARIABLE}: {part!r} is not POINT=ACTION. Actions are kill, stop, error and"
                " pause:MS, and @N after them chooses the N-th pass"
            )
        point = found["point"]
        if point not in POINTS:
            raise InvalidRequest(
                f"{VARIABLE}: there is no failpoint {point!r}. The failpoints are"
                f" {', '.join(POINTS)}"
            )
        actions[point] = _action(point, found["do"])
        if found["pass"]:
            in_pass[point] = int(found["pass"])
    return actions, in_pass


def _action(point: str, do: str) -> Action:
    if do == "error":
        return partial(_fail, POINTS[point])
    if do.startswith("pause:"):
        return partial(time.sleep, int(do.removeprefix("pause:")) / 1000)
    return partial(os.kill, os.getpid(), signal.SIGKILL if do == "kill" else signal.SIGSTOP)


def _fail(make_error: Callable[[], Exception]) -> None:
    raise make_error()
