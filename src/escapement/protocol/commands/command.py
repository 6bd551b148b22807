"""What all commands are: dataclasses that read themselves from a frame, and write it.

A command is entered under its number by ``command``; ``COMMANDS`` has all of them once the
package is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, ClassVar, Final, Literal, TypeVar, get_type_hints

from escapement.protocol.fields import Kind
from escapement.protocol.limits import MAX_PLAIN_BYTES

Role = Literal["client", "broker"]


class Command:
    """What all commands share: reading themselves from a frame, and writing it."""

    __slots__ = ()
    TYPE: ClassVar[int]
    SENDERS: ClassVar[frozenset[Role]]
    KINDS: ClassVar[tuple[tuple[str, Kind], ...]]
    # How large a frame of this command may be, and how many lists and maps it may hold
    # (the frame itself is the first). The default is a command without plain values.
    MAX_BYTES: ClassVar[int] = MAX_PLAIN_BYTES
    MAX_CONTAINERS: ClassVar[int] = 1

    @classmethod
    def read(cls, values: list[Any]) -> Command:
        """The command whose fields came in a frame.

        Raises:
          ValueError: if one of them is not what it must be.
        """
        if len(values) != len(cls.KINDS):
            raise ValueError(f"has {len(values)} fields, not {len(cls.KINDS)}")
        taken = []
        for (name, kind), value in zip(cls.KINDS, values, strict=True):
            try:
                taken.append(kind.read(value))
            except ValueError as error:
                raise ValueError(f"{name} {error}") from None
        command = cls(*taken)
        command.check()
        return command

    def write(self) -> list[Any]:
        """The frame's array, type first.

        Raises:
          ValueError: if a field holds what the wire does not allow.
        """
        self.check()
        values: list[Any] = [self.TYPE]
        for name, kind in self.KINDS:
            try:
                values.append(kind.write(getattr(self, name)))
            except ValueError as error:
                raise ValueError(f"{name} {error}") from None
        return values

    def check(self) -> None:
        """Raise ``ValueError`` if the fields do not fit each other."""


_C = TypeVar("_C", bound=type[Command])

COMMANDS: Final[dict[int, type[Command]]] = {}


def command(number: int, *senders: Role) -> Callable[[_C], _C]:
    """Enter a dataclass under its number, with the kinds its annotations name."""

    def enter(cls: _C) -> _C:
        assert number not in COMMANDS, f"two commands are numbered {number}"
        hints = get_type_hints(cls, include_extras=True)
        cls.TYPE = number
        cls.SENDERS = frozenset(senders)
        cls.KINDS = tuple(
            (field.name, hints[field.name].__metadata__[0])
            for field in fields(cls)  # type: ignore[arg-type]
        )
        COMMANDS[number] = cls
        return cls

    return enter
