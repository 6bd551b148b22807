"""Replace keys: a message may take the place of a pending message with the same key.

The protocol and the broker have the digest of each message's *replace key*, as for dedup keys
(``escapement.dedup``), and its *mode* when it meets a pending message with this key:

- ``LATEST``: the new message replaces it.
- ``FIRST``: the pending message stays, and the new one is dropped.
- 0 or more, *debounce*: the new message replaces it, and is due at most this many milliseconds
  after the first message of the chain was published.

A *chain* is a series of messages each of which replaced the one before it.
"""

from __future__ import annotations

from typing import Final

LATEST: Final = -1
FIRST: Final = -2
