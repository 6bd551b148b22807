"""The printed form of outcomes."""

from __future__ import annotations

import numpy as np

from escapement.client.administration.outcome import Outcomes
from escapement.protocol.amend_status import AmendStatus


def test_outcomes_print_the_number_of_each_status() -> None:
    statuses = np.array([AmendStatus.DELIVERED, *[AmendStatus.DONE] * 1200], np.uint8)
    found = Outcomes("t/n/x", np.arange(1201), statuses, {})
    assert repr(found) == "<1201 outcomes of t/n/x: 1200 done, 1 delivered>"
    assert repr(Outcomes.concat("t/n/x", [])) == "<0 outcomes of t/n/x>"
