"""The base class of context managers that must be entered before use, such as clients.

A user who forgets the ``with`` block holds the context manager instead of the client or consumer.
Each use of it raises an error that shows the block to write.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from escapement.errors import NotOpened


class Unopened:
    """The base class of context managers that refuse every use outside their ``with`` block."""

    # When the attributes become available, and the code to write, for the error message.
    _BEFORE: ClassVar[str]

    def __getattr__(self, name: str) -> NoReturn:
        raise NotOpened(f"there is no {name!r} {self._BEFORE}")

    def __iter__(self) -> NoReturn:
        raise NotOpened(f"this cannot be iterated {self._BEFORE}")

    def __aiter__(self) -> NoReturn:
        raise NotOpened(f"this cannot be iterated {self._BEFORE}")

    def __await__(self) -> Any:
        raise NotOpened(f"this cannot be awaited {self._BEFORE}")
