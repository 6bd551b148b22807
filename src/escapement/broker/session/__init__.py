"""One connection: its input, its open producers and consumers, and its output.

A session passes each command to the *desk* for its noun. To add a noun, add a desk.
"""

from escapement.broker.session.session import Session

__all__ = ["Session"]
