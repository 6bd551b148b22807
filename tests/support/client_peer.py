"""A small broker for tests of the client: the real protocol, in memory, with faults on demand.

It keeps the promises of a broker (dense offsets, sequences, epochs, ``after``) with plain lists.
It does not mock our code: it talks to the client in bytes only. ``on_both`` runs a test under
trio and asyncio, on clocks that skip waiting.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import anyio
import numpy as np
import pytest
import trio.testing
from anyio.abc import TaskGroup

import escapement
from escapement.errors import EscapementError, ProducerFenced, RemoteProtocolError, SequenceGap
from escapement.message import Blobs, MessageBatch
from escapement.protocol import commands as wire
from escapement.protocol.amend_status import AmendStatus
from escapement.protocol.commands import Command
from escapement.protocol.connection import Connection
from escapement.protocol.limits import PROTOCOL_VERSION


class LeapingLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose clock jumps to the next timer when no task can run."""

    def __init__(self) -> None:
        super().__init__()
        self._leapt_s = 0.0
        selector, select = self._selector, self._selector.select

        def leap(timeout: float | None = None) -> Any:
            events = select(0)
            if not events and timeout:
                self._leapt_s += timeout
            elif not events and timeout is None:
                events = select(0.01)  # only another thread can wake the loop
            return events

        selector.select = leap

    def time(self) -> float:
        return self._leapt_s


def on_both(test: Callable[[], Awaitable[None]]) -> Callable[[str], None]:
    """Run an async test under trio and asyncio, each on a clock that skips waiting."""

    @pytest.mark.parametrize("backend", ["trio", "asyncio"])
    def run(backend: str) -> None:
        async def bounded() -> None:
            with anyio.fail_after(3600):
                await test()

        if backend == "trio":  # some versions of anyio do not pass a clock to trio
            trio.run(bounded, clock=trio.testing.MockClock(autojump_threshold=0))
        else:
            anyio.run(bounded, backend_options={"loop_factory": LeapingLoop})

    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    return run


class Pipe:
    """One end of a byte stream in memory."""

    def __init__(self, receive: Any, send: Any) -> None:
        self._receive, self._send = receive, send
        self._rest = b""

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = self._rest or await self._receive.receive()
        self._rest = data[max_bytes:]
        return bytes(data[:max_bytes])

    async def send(self, item: bytes) -> None:
        await self._send.send(bytes(item))

    async def aclose(self) -> None:
        self._receive.close()
        self._send.close()


def pipes() -> tuple[Pipe, Pipe]:
    a_send, b_receive = anyio.create_memory_object_stream[bytes](64)
    b_send, a_receive = anyio.create_memory_object_stream[bytes](64)
    return Pipe(a_receive, a_send), Pipe(b_receive, b_send)


@dataclass
class Stored:
    epoch: int = 0
    last_sequence: int = -1
    holder: object = None


@dataclass(eq=False)
class Session:
    """The peer's end of one connection."""

    pipe: Any
    connection: Connection = field(default_factory=lambda: Connection("broker"))
    producers: dict[int, str] = field(default_factory=dict)
    credit: dict[int, int] = field(default_factory=dict)
    _saying: anyio.Lock = field(default_factory=anyio.Lock)

    async def say(self, *commands: Command) -> None:
        async with self._saying:  # several tasks may answer
            for command in commands:
                for buffer in self.connection.send(command):
                    await self.pipe.send(bytes(buffer))


class Peer:
    """A small broker with faults on demand."""

    def __init__(self) -> None:
        self.log: list[tuple[bytes, int, int]] = []  # payload, delay_ms, at_ms
        self.bodies: list[MessageBatch] = []
        self.producers: dict[str, Stored] = {}
        self.heard: list[Command] = []
        self.reads: list[int] = []  # the number of commands in each read
        self.acked: list[int] = []
        self.rows: set[Any] = set()  # the ids of a table's rows that are not acknowledged
        self.lapsed: set[int] = set()  # offsets whose delivery has ended
        self.sessions: list[Session] = []
        self.limits: dict[str, Any] = {}
        # Faults. Each is used once, in order.
        self.refusals: deque[EscapementError | None] = deque()  # of publishes
        self.ack_refusals: deque[EscapementError | None] = deque()
        self.open_refusals: deque[EscapementError | None] = deque()  # of producers, consumers
        self.greetings: deque[EscapementError | None] = deque()
        self.cut_before_receipt = 0  # the connection ends after this number of stored batches
        self.hold_receipts = False
        self.deaf_to_acks = False
        self.held: list[tuple[Session, wire.Receipt]] = []
        self.silent = False  # receives commands and answers none
        self.elsewhere: wire.Moved | None = None  # the answer to Hello of a node without the bundle
        self.refuses_connections = False
        self._tasks: TaskGroup | None = None

    @classmethod
    @asynccontextmanager
    async def running(cls) -> Any:
        async with anyio.create_task_group() as tasks:
            peer = cls()
            peer._tasks = tasks
            yield peer
            tasks.cancel_scope.cancel()

    async def factory(self) -> Pipe:
        if self.refuses_connections:
            raise ConnectionRefusedError("the peer refuses connections")
        ours, theirs = pipes()
        assert self._tasks is not None
        self._tasks.start_soon(self.serve, theirs)
        return ours

    async def cut(self) -> None:
        """Close every connection without a command."""
        for session in self.sessions:
            await session.pipe.aclose()
        self.sessions.clear()

    def heard_of(self, kind: type[Any]) -> list[Any]:
        return [command for command in self.heard if type(command) is kind]

    async def release(self) -> None:
        """Send the held receipts."""
        self.hold_receipts = False
        held, self.held = self.held, []
        for session, receipt in held:
            await session.say(receipt)

    async def deliver(
        self,
        payloads: list[bytes],
        offsets: list[int],
        *,
        attempts: list[int] | None = None,
        redelivered: list[int] | None = None,
        batch: MessageBatch | None = None,
        wait_ms: int = 0,
        waits_ms: list[int] | None = None,
    ) -> None:
        """Deliver to the only consumer of the newest session, once it has permits."""
        session = self.sessions[-1]
        while not any(session.credit.values()):  # noqa: ASYNC110
            await anyio.sleep(0.001)
        (consumer_id,) = session.credit
        session.credit[consumer_id] -= len(offsets)
        await session.say(
            wire.Deliver(
                consumer_id,
                np.array(offsets, np.int64),
                np.array(offsets, np.int64) * 1000,
                None if attempts is None else np.array(attempts, np.uint16),
                None if redelivered is None else np.array(redelivered, np.uint8),
                (batch or MessageBatch(Blobs.of(payloads))).encode(),
                wait_ms,
                None if waits_ms is None else np.array(waits_ms, np.int64),
            )
        )

    async def serve(self, stream: Any) -> None:
        """Serve one connection until it ends."""
        session = Session(stream)
        self.sessions.append(session)
        try:
            while not session.connection.closed:
                self.reads.append(0)
                for command in session.connection.events():
                    self.reads[-1] += 1
                    self.heard.append(command)
                    if not self.silent:
                        await self._answer(session, command)
                session.connection.receive_data(await session.pipe.receive())
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            pass
        except RemoteProtocolError as error:
            for buffer in session.connection.last_words(error):
                await session.pipe.send(bytes(buffer))
        finally:
            await session.pipe.aclose()

    async def _answer(self, session: Session, command: Command) -> None:
        match command:
            case wire.Hello():
                if self.greetings and (error := self.greetings.popleft()) is not None:
                    await session.say(wire.Refused.because(error))
                elif self.elsewhere is not None:
                    await session.say(self.elsewhere)
                else:
                    await session.say(wire.Welcome(PROTOCOL_VERSION, "peer", "p", self.limits))
            case wire.Ping():
                await session.say(wire.Pong(command.token))
            case wire.OpenProducer() | wire.Subscribe():
                if self.open_refusals and (error := self.open_refusals.popleft()) is not None:
                    await session.say(wire.Refused.because(error, request_id=command.request_id))
                elif isinstance(command, wire.OpenProducer):
                    await self._open(session, command)
                else:
                    session.credit[command.consumer_id] = 0
                    await session.say(
                        wire.ConsumerReady(
                            command.request_id,
                            command.consumer_id,
                            command.topic,
                            command.kind,
                            bytes(16),
                            1,
                        )
                    )
            case wire.Publish():
                await self._publish(session, command)
            case wire.Flow() if command.consumer_id in session.credit:
                session.credit[command.consumer_id] += command.permits
            case wire.Ack():
                await self._ack(session, command)
            case wire.Extend():
                held = [o for o in command.offsets.tolist() if o not in self.lapsed]
                await session.say(wire.Acked(command.request_id, len(held)))
            case wire.Halt():
                await session.say(wire.Done(command.request_id))
            case wire.CloseConsumer():
                session.credit.pop(command.consumer_id, None)
                await session.say(wire.Done(command.request_id))
            case wire.CloseProducer():
                await session.say(wire.Done(command.request_id))
            case wire.Cancel():
                done = np.full(len(command.offsets), AmendStatus.DONE, np.uint8)
                await session.say(wire.Amended(command.request_id, done, {}))
            case wire.Admin(verb="echo"):
                await session.say(wire.AdminReply(command.request_id, command.arguments))
            case wire.Admin(verb="tables.ack"):
                fresh = self.rows.intersection(command.arguments["ids"])
                self.rows -= fresh
                answer = {"acknowledged": len(fresh)}
                await session.say(wire.AdminReply(command.request_id, answer))

    async def _open(self, session: Session, command: wire.OpenProducer) -> None:
        stored = self.producers.setdefault(command.name, Stored())
        if command.epoch == -1:
            stored.epoch += 1
        elif command.epoch != stored.epoch:
            await session.say(
                wire.Refused.because(
                    ProducerFenced("a newer producer is connected"), request_id=command.request_id
                )
            )
            return
        stored.holder = session
        session.producers[command.producer_id] = command.name
        await session.say(
            wire.ProducerReady(
                command.request_id,
                command.producer_id,
                command.topic,
                command.name,
                stored.epoch,
                stored.last_sequence,
            )
        )

    async def _publish(self, session: Session, command: wire.Publish) -> None:
        stored = self.producers[session.producers[command.producer_id]]
        batch, times = command.decode()
        error = self.refusals.popleft() if self.refusals else None
        if stored.holder is not session:
            error = ProducerFenced("a newer producer is connected")
        elif error is None and command.after > stored.last_sequence:
            error = SequenceGap(f"{command.after} is not stored")
        if error is not None:
            await session.say(
                wire.Refused.because(
                    error, producer_id=command.producer_id, sequence=command.sequence
                )
            )
            return
        known = min(max(stored.last_sequence - command.sequence + 1, 0), len(batch))
        base = len(self.log)
        absent = np.full(len(batch), -1)
        delays = absent if times.delay_ms is None else times.delay_ms
        ats = absent if times.at_ms is None else times.at_ms
        rows = list(zip(batch.payloads.to_list(), delays.tolist(), ats.tolist(), strict=True))
        self.log += rows[known:]
        self.bodies.append(batch)
        stored.last_sequence = max(stored.last_sequence, command.sequence + len(batch) - 1)
        receipt = wire.Receipt(
            command.producer_id,
            command.sequence,
            len(batch),
            -1 if known else base,
            known > 0,
        )
        if self.cut_before_receipt:
            self.cut_before_receipt -= 1
            await self.cut()
        elif self.hold_receipts:
            self.held.append((session, receipt))
        else:
            await session.say(receipt)

    async def _ack(self, session: Session, command: wire.Ack) -> None:
        if self.deaf_to_acks:
            return
        if self.ack_refusals and (error := self.ack_refusals.popleft()) is not None:
            await session.say(wire.Refused.because(error, request_id=command.request_id))
            return
        offsets = [] if command.offsets is None else command.offsets.tolist()
        if command.firsts is not None and command.lasts is not None:
            for first, last in zip(command.firsts, command.lasts, strict=True):
                offsets += range(first, last)
        fresh = [offset for offset in dict.fromkeys(offsets) if offset not in self.acked]
        self.acked += fresh
        await session.say(wire.Acked(command.request_id, len(fresh)))


def connect(peer: Peer, clock_s: Callable[[], float] = monotonic, **settings: Any) -> Any:
    """Return a client of this peer."""
    return escapement.connect(
        "escapement://peer",
        stream_factory=peer.factory,
        settings=escapement.Settings(**settings),
        clock_s=clock_s,
    )
