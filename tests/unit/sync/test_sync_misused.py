"""The blocking client in failed consumers, signal handlers, callbacks, forks and closing clients.

The usual defect is a call that waits forever. So each call that may wait has a thread of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, TypeVar

import pytest
from anyio.from_thread import BlockingPortal

from escapement.errors import Disconnected, EscapementError, InvalidRequest, NotFound
from escapement.protocol import commands as wire
from escapement.protocol.commands.refusal import error_fields
from escapement.sync import Inbox, Message, connect
from support.client_peer import Peer
from support.listening_peer import busy, listening

T = TypeVar("T")
# Far less than the timeouts of the client, and enough for a busy machine.
SOON_S: Final = 8.0


def soon(act: Callable[[], T]) -> Future[T]:
    """Call ``act`` in a thread that does not keep the process alive, and return its future."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(act())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def in_time(act: Callable[[], T]) -> T:
    return soon(act).result(SOON_S)


def received(peer: Peer, portal: BlockingPortal, inbox: Inbox, count: int) -> list[Message]:
    portal.call(peer.deliver, [b""] * count, list(range(count)))
    found = [inbox.receive(timeout_s=SOON_S) for _ in range(count)]
    return [message for message in found if message is not None]


def close_consumer(peer: Peer, portal: BlockingPortal, inbox: Inbox) -> None:
    """Let the broker close the consumer for good, as after its subscription was deleted."""
    closed = wire.ConsumerClosed(inbox._inbox._id, *error_fields(NotFound("deleted")))
    portal.call(peer.sessions[-1].say, closed)
    while inbox._inbox._error is None:
        time.sleep(0.001)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_calls_of_a_failed_consumer_raise_its_error(backend: str) -> None:
    """Iterating ends with it too, even if messages of the last batch were not received."""
    with listening() as (peer, portal, url), connect(url, backend=backend) as broker:
        with broker.consumer("t", "s") as inbox:
            portal.call(peer.deliver, [b""] * 4, list(range(4)))
            message = inbox.receive(timeout_s=SOON_S)
            assert message is not None
            close_consumer(peer, portal, inbox)
            calls: list[Callable[[], Any]] = [
                message.ack,
                lambda: message.ack(durable=True),
                lambda: inbox.ack([0]),
                lambda: inbox.ack_range(0, 1, durable=True),
                lambda: message.__exit__(None, None, None),
                inbox.flush_acks,
                inbox.receive,
                inbox.next_batch,
                lambda: next(iter(inbox)),
            ]
            for call in calls:
                with pytest.raises(NotFound, match="deleted"):
                    in_time(call)
            in_time(message.nack)
            assert in_time(lambda: message.extend("1m")) is False
            with pytest.raises(KeyError), message:
                raise KeyError("of the block")
        for call in calls[:-3]:
            with pytest.raises(NotFound, match="deleted"):
                in_time(call)


def test_acks_that_were_queued_when_the_consumer_failed_leave_nothing_to_wait_for() -> None:
    with listening() as (peer, portal, url), connect(url) as broker:
        with broker.consumer("t", "s") as inbox:
            messages = received(peer, portal, inbox, 3)
            with busy(broker):
                messages[0].ack()
                # The event loop handles this before the ack.
                broker._loop._posted.insert(0, (inbox._inbox._failed, (NotFound("deleted"),)))
            with pytest.raises(NotFound, match="deleted"):
                in_time(inbox.flush_acks)
            assert inbox._inbox._acks.unsettled == []


def test_flush_raises_the_error_of_an_ack_that_was_refused_before() -> None:
    with listening() as (peer, portal, url), connect(url) as broker:
        with broker.consumer("t", "s") as inbox:
            messages = received(peer, portal, inbox, 2)
            peer.ack_refusals.append(NotFound("refused"))
            messages[0].ack()
            while not inbox._inbox._acks.refusal:
                time.sleep(0.001)
            with pytest.raises(NotFound, match="refused"):
                in_time(inbox.flush_acks)
            messages[1].ack()
            in_time(inbox.flush_acks)
            assert peer.acked == [1]


def test_consumer_that_was_closed_with_its_client_raises_disconnected() -> None:
    """The consumer's ``with`` block raises nothing. A message's block raises only its own error."""
    with listening() as (peer, portal, url):
        with connect(url) as broker:
            context = broker.consumer("t", "s")
            inbox = context.__enter__()
            (message,) = received(peer, portal, inbox, 1)
            producer = broker.producer("t")
        for call in (
            message.ack, message.nack, inbox.receive, inbox.flush_acks, lambda: inbox.ack([0]),
            lambda: producer.submit(b""), lambda: producer.send(b""), lambda: broker.admin("echo"),
        ):  # fmt: skip
            with pytest.raises(Disconnected, match="closed by this side"):
                in_time(call)
        with pytest.raises(KeyError), message:
            raise KeyError("of the block")
        in_time(lambda: context.__exit__(None, None, None))


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_open_block_of_a_consumer_does_not_keep_the_client_from_closing(backend: str) -> None:
    before = threading.active_count()
    with listening() as (_, _, url):
        client = connect(url, backend=backend)
        broker = client.__enter__()
        context = broker.consumer("t", "s")
        inbox = context.__enter__()
        waiting = soon(inbox.receive)
        in_time(lambda: client.__exit__(None, None, None))
        with pytest.raises(Disconnected):
            waiting.result(SOON_S)
    while threading.active_count() > before:
        time.sleep(0.001)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_client_that_closes_ends_the_calls_of_all_threads(backend: str) -> None:
    """At any moment of the closing: a call has its result, or raises an error of ours."""
    with listening() as (_, _, url):
        for round in range(30):
            errors: list[BaseException] = []

            def work(act: Callable[[], Any], errors: list[BaseException] = errors) -> None:
                try:
                    while True:
                        act()
                except EscapementError as ended:
                    errors.append(ended)

            with connect(url, backend=backend) as broker:
                producer = broker.producer("t")
                context = broker.consumer("t", "s")
                inbox = context.__enter__()
                acts: list[Callable[[], Any]] = [
                    lambda p=producer: p.send(b""),
                    lambda p=producer: p.submit(b"").result(SOON_S),
                    lambda b=broker: b.admin("echo"),
                    lambda b=broker: b.producer("u").close(),
                    lambda i=inbox: i.receive(),
                    lambda i=inbox: i.receive(timeout_s=0.001),
                    lambda i=inbox: i.ack([1]),
                    lambda i=inbox: i.flush_acks(),
                ]
                threads = [threading.Thread(target=work, args=[a], daemon=True) for a in acts]
                for thread in threads:
                    thread.start()
                time.sleep(0.003 * (round % 10))
            for thread in threads:
                thread.join(SOON_S)
                assert not thread.is_alive()
            assert len(errors) == len(acts)
            assert {type(error) for error in errors} <= {Disconnected, InvalidRequest}


# A program that forks while one of its threads receives. The child calls everything and prints the
# errors, and then ends in the way that its argument names.
FORKING: Final = """
import os, sys, threading, time
import escapement.sync

url, backend, ending = sys.argv[1:]
with escapement.sync.connect(url, backend=backend) as broker:
    with broker.producer("t") as producer, broker.consumer("t", "s", permits=1) as inbox:
        message = inbox.receive()
        got = []
        receiver = threading.Thread(target=lambda: got.append(inbox.receive()), daemon=True)
        receiver.start()  # holds a lock at the time of the fork
        while not inbox._receiving:
            time.sleep(0.001)
        child = os.fork()
        if not child:
            for call in (
                lambda: producer.send(b""), lambda: producer.submit(b""), producer.close,
                inbox.receive, lambda: inbox.receive(0), lambda: next(iter(inbox)),
                message.ack, message.nack, lambda: inbox.ack([1]), inbox.flush_acks,
                lambda: broker.admin("echo"), lambda: broker.groups.list("t"),
            ):
                try:
                    call()
                except Exception as error:
                    print(type(error).__name__, flush=True)
            if ending == "exit":
                sys.exit()
            if ending == "end at once":
                os._exit(0)
        else:
            assert os.waitpid(child, 0)[1] == 0
            message.ack()
            producer.send(b"for the receiver")
            receiver.join()
            print("parent", got[0].offset, flush=True)
"""


# A fork of a trio program may hang when Python frees trio's generators in it: their finalizer takes
# a lock that the thread of the event loop may have held at the fork.
@pytest.mark.parametrize(
    ("backend", "ending"), [("asyncio", "leave"), ("asyncio", "exit"), ("trio", "end at once")]
)
def test_fork_cannot_use_the_client_and_ends(backend: str, ending: str) -> None:
    """The calls of the child raise an error, and the parent goes on with its connection."""
    with listening() as (peer, portal, url):
        program = subprocess.Popen(
            [sys.executable, "-c", FORKING, url, backend, ending],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            while not peer.heard_of(wire.Flow):
                assert program.poll() is None, program.communicate()
                time.sleep(0.001)
            portal.call(peer.deliver, [b"first"], [0])
            while not peer.log:
                assert program.poll() is None, program.communicate()
                time.sleep(0.001)
            portal.call(peer.deliver, [b"second"], [1])
            printed, errors = program.communicate(timeout=SOON_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
        assert printed.split() == ["InvalidRequest"] * 12 + ["parent", "1"]
        assert not errors
        assert program.returncode == 0
        assert peer.acked == [0]
        assert len(peer.heard_of(wire.Hello)) == 1


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_signal_handler_may_submit_and_acknowledge(backend: str) -> None:
    """It may interrupt a thread that is doing the same, and holds the locks."""
    with listening() as (peer, portal, url), connect(url, backend=backend) as broker:
        producer = broker.producer("t")
        with broker.consumer("t", "s") as inbox:
            messages = received(peer, portal, inbox, 2)

            def interrupted() -> None:
                with broker._loop._lock, inbox._ack_lock:
                    producer.submit(b"")
                    for message in messages:
                        message.ack()

            in_time(interrupted)
            inbox.flush_acks()
            assert sorted(peer.acked) == [0, 1]


def test_signal_handler_cannot_receive_while_its_thread_receives() -> None:
    errors: list[str] = []
    with listening() as (peer, portal, url), connect(url) as broker:
        with broker.consumer("t", "s") as inbox:

            def handle(*_: object) -> None:
                try:
                    inbox.receive(timeout_s=SOON_S)
                except InvalidRequest as error:
                    errors.append(str(error))
                portal.start_task_soon(peer.deliver, [b"a", b"b"], [0, 1])

            before = signal.signal(signal.SIGUSR1, handle)
            try:
                main = threading.main_thread().ident or 0

                def interrupt() -> None:
                    while not inbox._receiving:
                        time.sleep(0.001)
                    signal.pthread_kill(main, signal.SIGUSR1)

                soon(interrupt)
                first = inbox.receive(timeout_s=2 * SOON_S)
            finally:
                signal.signal(signal.SIGUSR1, before)
            assert first is not None
            assert first.offset == 0
            (second,) = [inbox.receive(timeout_s=SOON_S)]
            assert second is not None
            assert second.offset == 1
    assert len(errors) == 1
    assert "a signal handler must not receive" in errors[0]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_callback_of_a_future_may_submit_and_must_not_wait(backend: str) -> None:
    with listening() as (peer, _, url), connect(url, backend=backend) as broker:
        producer = broker.producer("t")
        with broker.consumer("t", "s") as inbox:
            waits: list[Callable[[], Any]] = [
                lambda: producer.send(b"never"), lambda: broker.admin("echo"), inbox.receive,
            ]  # fmt: skip
            for wait in waits:
                outcome: Future[Any] = Future()

                def follow(
                    _: Future[Any],
                    outcome: Future[Any] = outcome,
                    wait: Callable[[], Any] = wait,
                ) -> None:
                    producer.submit(b"second")
                    try:
                        outcome.set_result(wait())
                    except Exception as error:
                        outcome.set_exception(error)

                producer.submit(b"first").add_done_callback(follow)
                with pytest.raises(InvalidRequest, match="callback of a future must not wait"):
                    outcome.result(SOON_S)
        in_time(producer.flush)
        assert [row[0] for row in peer.log] == [b"first", b"second"] * 3


def test_messages_that_no_thread_received_are_released_when_the_block_ends() -> None:
    """Their delivery does not count as an attempt, as with the async client."""
    with listening() as (peer, portal, url), connect(url) as broker:
        with broker.consumer("t", "s") as inbox:
            portal.call(peer.deliver, [b""] * 5, list(range(5)))
            for _ in range(2):
                message = inbox.receive(timeout_s=SOON_S)
                assert message is not None
                message.ack()
        assert [r.offsets.tolist() for r in peer.heard_of(wire.Release)] == [[2, 3, 4]]
        assert peer.acked == [0, 1]
