"""One connection: its input, its open producers and consumers, and its output.

A session passes each command to the *desk* for its noun, such as ``producers.py``. To add a
noun, add a desk. Begin with ``session.py``.
"""

from escapement.broker.session.session import Choose, Session

__all__ = ["Choose", "Session"]
