"""One end of a connection, without I/O: it converts received bytes to commands, and back.

    ::

        client                    broker
        START    ── Hello ──▶     START
        HELLO                     HELLO
        OPEN     ◀── Welcome ──   OPEN
                 ◀─ commands ─▶
                 ── Goodbye ─▶            from either side, after which that side
                 ◀─ Goodbye ──            sends nothing more; then both close

Client and broker use the same class. It checks which side may send which command in which state.
It has no socket, no clock and no lock, and does not execute commands.

For any received bytes, the only exception is ``RemoteProtocolError``. After it the connection is
*dead*: it accepts no more data. A broker may still send the reason, one command ``Refused`` from
``last_words``. Sending a command that is not allowed raises ``LocalProtocolError`` and changes
nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Final

from escapement.errors import EscapementError, InvalidRequest, LocalProtocolError, ProtocolError
from escapement.errors import RemoteProtocolError as RemoteError
from escapement.message import Buffer
from escapement.protocol import frame
from escapement.protocol.commands import (
    COMMANDS,
    Command,
    Goodbye,
    Hello,
    Moved,
    Refused,
    Role,
    Welcome,
)
from escapement.protocol.limits import (
    LIMIT_FRAME_BYTES,
    MAX_FRAME_BYTES,
    MAX_HANDSHAKE_BYTES,
    MAX_WELCOME_BYTES,
    PROTOCOL_VERSION,
)

_HANDSHAKE: Final = (Hello, Welcome)


class State(enum.Enum):
    """The state of a connection, as drawn in the docstring of this module."""

    START = "no command was sent"
    HELLO = "the client has sent Hello"
    OPEN = "the handshake is done"
    DEAD = "the other side broke the protocol, or refused the connection"


class Signal(enum.Enum):
    """The result of ``Connection.next_event`` while no complete command has been received."""

    NEED_DATA = "read more data, then call again"
    CLOSED = "the other side sends nothing more"


NEED_DATA: Final = Signal.NEED_DATA
CLOSED: Final = Signal.CLOSED


class Connection:
    """The protocol state of one end of a connection.

    Args:
      role: the role of this end, client or broker.
    """

    def __init__(self, role: Role) -> None:
        self.role: Final[Role] = role
        self.state = State.START
        self._peer: Role = "broker" if role == "client" else "client"
        mine, theirs = MAX_HANDSHAKE_BYTES, MAX_WELCOME_BYTES
        if role == "client":
            mine, theirs = theirs, mine
        self._peer_max_frame_bytes = theirs
        self._decoder = frame.FrameDecoder(mine)
        self._said_goodbye = False
        self._heard_goodbye = False
        self._ended = False

    @property
    def closed(self) -> bool:
        """Whether no more commands can arrive from the other side."""
        return self._ended or self._heard_goodbye or self.state is State.DEAD

    @property
    def finished(self) -> bool:
        """Whether this side may send no more commands."""
        return self._said_goodbye or self.state is State.DEAD

    # -- receiving ---------------------------------------------------------------

    def receive_data(self, data: bytes | bytearray | memoryview) -> None:
        """Accept ``data`` from the stream. ``b""`` means that the other side has closed it.

        Before the next call, the caller must call ``next_event`` until it returns a ``Signal``.

        Raises:
          RemoteProtocolError: if data arrives after the Goodbye or the end of the stream, or
            the connection is dead.
        """
        if self.state is State.DEAD:
            raise RemoteError("the connection is dead: it accepts no more data")
        if not data:
            self._ended = True
        elif self._ended or self._heard_goodbye:
            raise self._dead("bytes came after the other side had finished")
        else:
            self._decoder.receive_data(data)

    @property
    def unfinished_bytes(self) -> int:
        """The number of received bytes that ``next_event`` has not returned as commands yet.

        After ``next_event`` has returned ``NEED_DATA``, they belong to one incomplete frame.
        """
        return len(self._decoder)

    @property
    def missing_bytes(self) -> int:
        """The number of bytes that are missing of the next frame, 0 if that is not known."""
        _, size_bytes = self.next_frame()
        return max(size_bytes - len(self._decoder), 0)

    def next_frame(self) -> tuple[type[Command] | None, int]:
        """Return the kind of the next command, and the size of its frame with the length.

        The frame may be incomplete. The kind is None, and the size 0, if the head of the frame is
        not there. The kind is also None if no command has its number. ``next_event`` checks both.
        """
        head = self._decoder.head()
        if head is None:
            return None, 0
        size, number = head
        return COMMANDS.get(number), frame.LENGTH_BYTES + size

    def free_taken(self) -> None:
        """Free the memory of returned commands, before the rest of the data waits for long."""
        self._decoder.free_taken()

    def discard(self) -> None:
        """Free the memory of bytes that were received but not returned as commands."""
        self._decoder.clear()

    def next_event(self) -> Command | Signal:
        """Return the next received command, or a ``Signal`` if none is complete.

        Raises:
          RemoteProtocolError: if the received bytes are not a command, or the other side may
            not send this command now.
        """
        if self.state is State.DEAD:
            raise RemoteError("the connection is dead: it accepts no more data")
        if self._heard_goodbye:
            return CLOSED
        try:
            piece = self._decoder.next_frame()
            if piece is not None:
                return self._take(piece)
            if not self._ended:
                return NEED_DATA
            if len(self._decoder):
                raise ValueError("the other side closed in the middle of a frame")
            return CLOSED
        except (ValueError, RemoteError) as error:
            raise self._dead(str(error)) from None

    def events(self) -> Iterator[Command]:
        """Iterate over the received commands, until ``next_event`` returns a ``Signal``."""
        while not isinstance(event := self.next_event(), Signal):
            yield event

    def _take(self, piece: memoryview) -> Command:
        number = frame.frame_type(piece)
        kind = COMMANDS.get(number)
        if kind is None:
            raise ValueError(f"no command has the number {number}")
        if self._peer not in kind.SENDERS:
            raise ValueError(f"a {self._peer} does not send {kind.__name__}")
        if len(piece) > kind.MAX_BYTES:
            raise ValueError(f"{kind.__name__} has {len(piece)} bytes, over {kind.MAX_BYTES}")
        values = frame.unpack(piece, kind.MAX_CONTAINERS, kind.MAX_ITEMS)
        if kind is Hello and values and values[0] != PROTOCOL_VERSION:
            # This check comes before the fields are read, which may differ in another version.
            raise ValueError(f"the client speaks version {values[0]!r:.20}, not {PROTOCOL_VERSION}")
        try:
            command = kind.read(values)
        except ValueError as error:
            raise ValueError(f"{kind.__name__}: {error}") from None
        self._step(command, self._peer)
        if isinstance(command, Goodbye):
            self._heard_goodbye = True
            if len(self._decoder):
                raise ValueError("bytes came after Goodbye")
        return command

    def _dead(self, reason: str) -> RemoteError:
        self.state = State.DEAD
        self._decoder = frame.FrameDecoder(0)
        return RemoteError(reason)

    # -- sending -----------------------------------------------------------------

    def send(self, command: Command) -> list[Buffer]:
        """Encode a command to send, and return its bytes in one or several buffers, in order.

        Raises:
          LocalProtocolError: if this side may not send the command now, or it is larger than a
            frame.
          InvalidRequest: if a string of the command cannot be encoded as UTF-8.
        """
        if self.finished:
            raise LocalProtocolError(f"{type(command).__name__}: this side has finished")
        if self.role not in command.SENDERS:
            raise LocalProtocolError(f"a {self.role} does not send {type(command).__name__}")
        buffers = _pack(command)
        size = sum(map(len, buffers)) - 4
        most = min(command.MAX_BYTES, self._peer_max_frame_bytes)
        if size > most:
            raise LocalProtocolError(f"{type(command).__name__} has {size} bytes, over {most}")
        try:
            self._step(command, self.role)
        except ValueError as error:
            raise LocalProtocolError(str(error)) from None
        if isinstance(command, Goodbye):
            self._said_goodbye = True
        return buffers

    def last_words(self, error: EscapementError) -> list[Buffer]:
        """Make the connection dead, and return the bytes by which a broker sends the reason.

        The bytes are a command ``Refused`` with ``error``. There are none if this side is a
        client, or has sent Goodbye.
        """
        silent = self.role == "client" or self._said_goodbye
        self.state, self._said_goodbye = State.DEAD, True
        if silent:
            return []
        if isinstance(error, ProtocolError):
            # A "remote" error is a "local" one for the other side. The base class fits both.
            error = ProtocolError(str(error))
        return _pack(Refused.because(error))

    # -- the order of commands -----------------------------------------------------

    def _step(self, command: Command, sender: Role) -> None:
        """Update the state for a command from ``sender``.

        Raises:
          ValueError: if the command is not allowed in the current state.
        """
        if self.state is State.OPEN:
            if isinstance(command, _HANDSHAKE):
                raise ValueError(f"{type(command).__name__} came after the handshake")
        elif self.state is State.START and isinstance(command, Hello):
            self.state = State.HELLO
        elif self.state is State.HELLO and isinstance(command, Welcome):
            self._open(command)
        elif sender == "broker" and isinstance(command, Refused | Moved | Goodbye):
            pass  # the broker may refuse the connection before the handshake is done
        else:
            raise ValueError(f"{type(command).__name__} came before the handshake was done")

    def _open(self, welcome: Welcome) -> None:
        limit = welcome.limits.get(LIMIT_FRAME_BYTES, MAX_FRAME_BYTES)
        if type(limit) is not int or not MAX_WELCOME_BYTES <= limit <= MAX_FRAME_BYTES:
            raise ValueError(f"Welcome: {LIMIT_FRAME_BYTES} is {limit!r:.20}")
        self.state = State.OPEN
        self._decoder.max_frame_bytes = MAX_FRAME_BYTES
        self._peer_max_frame_bytes = limit if self.role == "client" else MAX_FRAME_BYTES


def _pack(command: Command) -> list[Buffer]:
    try:
        return frame.pack(command.write())
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{error.object!r:.300} cannot be encoded as UTF-8") from None
    except (ValueError, TypeError, OverflowError) as error:
        raise LocalProtocolError(f"{type(command).__name__}: {error}") from None
