"""The base class of commands, and the table of all commands by number.

The decorator ``command`` makes a class a command and enters it in the table, ``COMMANDS``. The
table is complete when the package ``commands`` is imported. Each field of a command has a *kind*
(see ``fields``), which checks the field and converts it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final, Literal, TypeVar, dataclass_transform, get_type_hints

from escapement.protocol.fields import Kind
from escapement.protocol.limits import MAX_PLAIN_BYTES, MAX_REQUEST_ITEMS

Role = Literal["client", "broker"]


class Command:
    """The base class of commands. It converts a command to the values of a frame, and back.

    ``TYPE`` is the number of the command, ``SENDERS`` the sides that may send it, and ``KINDS`` the
    name and kind of each field. The decorator ``command`` sets them.
    """

    __slots__ = ()
    TYPE: ClassVar[int]
    SENDERS: ClassVar[frozenset[Role]]
    KINDS: ClassVar[tuple[tuple[str, Kind], ...]]
    # The functions of the kinds that read and write the fields.
    _READS: ClassVar[tuple[Callable[[Any], Any], ...]]
    _WRITES: ClassVar[tuple[tuple[str, Callable[[Any], Any]], ...]]
    # The size of the largest frame of this command, and the most lists and maps in it. The frame
    # itself counts as one list. The defaults are for a command without nested values.
    MAX_BYTES: ClassVar[int] = MAX_PLAIN_BYTES
    MAX_CONTAINERS: ClassVar[int] = 1
    _DEFAULTS: ClassVar[tuple[Any, ...]]
    # How many of the last fields a frame may omit. They have defaults, and are sent if they differ.
    OPTIONAL_FIELDS: ClassVar[int] = 0
    # The most items of all its lists and maps together.
    MAX_ITEMS: ClassVar[int] = MAX_REQUEST_ITEMS
    # The most memory that the command takes for each byte of its frame, about.
    MEMORY_FACTOR: ClassVar[int] = 1

    @classmethod
    def read(cls, values: list[Any]) -> Command:
        """Create a command from the fields of a received frame.

        Raises:
          ValueError: if a field is not valid, or the fields do not fit each other.
        """
        if not 0 <= len(cls.KINDS) - len(values) <= cls.OPTIONAL_FIELDS:
            raise ValueError(f"has {len(values)} fields, not {len(cls.KINDS)}")
        try:
            command = cls(*[read(value) for read, value in zip(cls._READS, values, strict=False)])
        except ValueError:
            # Read again, field by field, to name the field.
            for (name, kind), value in zip(cls.KINDS, values, strict=False):
                _named(name, kind.read, value)
            raise
        command.check()
        return command

    def write(self) -> list[Any]:
        """Return the values of this command's frame: its type, then its fields.

        Raises:
          ValueError: if a field is not valid, or the fields do not fit each other.
        """
        self.check()
        try:
            values = [self.TYPE, *[write(getattr(self, name)) for name, write in self._WRITES]]
            return values if not self.OPTIONAL_FIELDS else self._without_defaults(values)
        except ValueError:
            for name, write in self._WRITES:
                _named(name, write, getattr(self, name))
            raise

    def _without_defaults(self, values: list[Any]) -> list[Any]:
        """Return the values of a frame without optional fields that have their defaults."""
        least = len(values) - self.OPTIONAL_FIELDS
        while len(values) > least and values[-1] == self._DEFAULTS[len(values) - 2]:
            values.pop()
        return values

    def check(self) -> None:
        """Raise ``ValueError`` if the fields do not fit each other. Most commands accept any."""


def _named(name: str, convert: Callable[[Any], Any], value: Any) -> None:
    """Convert the value of a field. If that fails, the error names the field."""
    try:
        convert(value)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from None


_C = TypeVar("_C", bound=Command)

COMMANDS: Final[dict[int, type[Command]]] = {}


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def command(number: int, *senders: Role) -> Callable[[type[_C]], type[_C]]:
    """Return a class decorator that makes a command and enters it in ``COMMANDS``.

    The class becomes a frozen dataclass.

    Args:
      number: the type of the command in a frame.
      senders: the sides that may send it.
    """

    def enter(plain: type[_C]) -> type[_C]:
        assert number not in COMMANDS, f"two commands are numbered {number}"
        cls = dataclass(frozen=True, slots=True)(plain)
        hints = get_type_hints(cls, include_extras=True)
        cls.TYPE = number
        cls.SENDERS = frozenset(senders)
        found = fields(cls)  # type: ignore[arg-type]
        cls.KINDS = tuple((one.name, hints[one.name].__metadata__[0]) for one in found)
        cls._READS = tuple(kind.read for _, kind in cls.KINDS)
        cls._WRITES = tuple((name, kind.write) for name, kind in cls.KINDS)
        cls._DEFAULTS = tuple(one.default for one in found)
        COMMANDS[number] = cls
        return cls

    return enter
