"""The bound on the output of all connections, with connections that only count."""

from __future__ import annotations

from escapement.broker.delivery.output_bound import FRAME_BYTES, LEAST_SHARE_BYTES, OutputBound


class Peer:
    """A connection that queues frames."""

    def __init__(
        self, bound: OutputBound, slow_since_s: float = 0.0, *, is_slow: bool = False
    ) -> None:
        self.slow_since_s = slow_since_s
        self.is_slow = is_slow
        self.queued_bytes = self.calls = self.cuts = 0
        self._bound = bound

    def queue(self, frames: int) -> None:
        before, self.queued_bytes = self.queued_bytes, self.queued_bytes + frames * FRAME_BYTES
        self._bound.change(before, self.queued_bytes)

    def has_room_again(self) -> None:
        self.calls += 1

    def cut_off(self) -> None:
        self.cuts += 1
        before, self.queued_bytes = self.queued_bytes, 0
        self._bound.change(before, 0)
        self._bound.leave(self)

    def queue_messages(self, consumers: int = 1) -> None:
        """Queue a frame of messages as large as it may be."""
        size_bytes = self._bound.frame_bytes(consumers)
        before, self.queued_bytes = self.queued_bytes, self.queued_bytes + size_bytes
        self._bound.change(before, self.queued_bytes)

    def may_queue(self, more_bytes: int = FRAME_BYTES) -> bool:
        return self._bound.may_queue(self.queued_bytes, more_bytes)

    @property
    def has_room(self) -> bool:
        return self.may_queue(self._bound.frame_bytes(1))


def test_connection_below_its_share_may_queue_while_the_bound_is_reached() -> None:
    """Invariant 9."""
    bound = OutputBound(8 * FRAME_BYTES)
    greedy, modest = Peer(bound), Peer(bound)
    while greedy.may_queue():
        greedy.queue(1)
    assert bound.queued_bytes == 8 * FRAME_BYTES
    assert modest.may_queue()
    modest.queue(1)
    assert not greedy.may_queue()


def test_all_connections_together_queue_at_most_three_times_the_bound() -> None:
    """Invariant 9: shares shrink with the number of connections, and first answers then wait."""
    bound = OutputBound(8 * FRAME_BYTES)
    peers = [Peer(bound) for _ in range(100)]
    for _ in range(20):
        for peer in peers:
            if peer.may_queue():
                peer.queue(1)
    assert bound.queued_bytes == 24 * FRAME_BYTES


def test_connection_that_queues_nothing_may_always_queue_a_frame_of_messages() -> None:
    """Invariant 9: with less room, frames are smaller. Their sum is at most twice the bound."""
    bound = OutputBound(8 * FRAME_BYTES)
    slow = [Peer(bound) for _ in range(500)]
    for _ in range(3):
        for peer in slow:
            if peer.has_room:
                peer.queue_messages()
    assert not any(peer.has_room for peer in slow)
    good = Peer(bound)
    assert good.has_room
    good.queue_messages()
    assert good.queued_bytes >= LEAST_SHARE_BYTES
    assert bound.queued_bytes <= 16 * FRAME_BYTES + 501 * LEAST_SHARE_BYTES


def test_connection_that_queues_nothing_may_queue_a_large_answer() -> None:
    """Invariant 9: although others fill more than twice the bound with large messages."""
    bound = OutputBound(8 * FRAME_BYTES)
    slow = [Peer(bound) for _ in range(23)]
    for peer in slow:
        peer.queue(1)
    good, other = Peer(bound), Peer(bound)
    assert not slow[0].may_queue()
    assert good.may_queue()
    good.queue(1)
    assert not other.may_queue(), "three times the bound"
    good.queue(-1)
    assert other.may_queue()


def test_frames_for_many_consumers_at_once_fit_together() -> None:
    """Invariant 9: a subscription assigns a frame to each of its consumers in one step."""
    bound = OutputBound(8 * FRAME_BYTES)
    peers = [Peer(bound) for _ in range(100)]
    size_bytes = bound.frame_bytes(len(peers))
    for peer in peers:
        assert peer.may_queue(size_bytes)
        bound.change(0, size_bytes)
    assert bound.queued_bytes <= 8 * FRAME_BYTES
    assert bound.frame_bytes(1) >= LEAST_SHARE_BYTES


def test_waiting_connection_learns_once_of_room() -> None:
    """Invariant 9: connections that left learn nothing."""
    bound = OutputBound(4 * FRAME_BYTES)
    full, waiting, left = Peer(bound), Peer(bound), Peer(bound)
    full.queue(4)
    bound.wait(waiting)
    bound.wait(left)
    bound.leave(left)
    full.queue(-1)
    full.queue(-1)
    assert (waiting.calls, left.calls) == (1, 0)


def test_waiting_connection_learns_of_room_for_an_answer() -> None:
    """Invariant 9: it queues nothing, and all queues together fall below three times the bound."""
    bound = OutputBound(4 * FRAME_BYTES)
    full, waiting = Peer(bound), Peer(bound)
    full.queue(12)
    bound.wait(waiting)
    full.queue(-1)
    assert waiting.calls == 1
    assert waiting.may_queue()


def test_slowest_connection_is_cut_off_at_three_times_the_bound() -> None:
    """Invariant 9: some output is queued without asking. Connections are cut off one at a time."""
    bound = OutputBound(4 * FRAME_BYTES)
    peers = quick, _, _ = [Peer(bound, slow_since_s) for slow_since_s in (9.0, 1.0, 5.0)]
    for peer in peers:
        peer.queue(4)
        bound.begin_write(peer)
    bound.check()
    assert [peer.cuts for peer in peers] == [0, 0, 0]
    quick.queue(1)
    bound.check()
    bound.check()
    assert [peer.cuts for peer in peers] == [0, 1, 0]
    quick.queue(4)
    bound.check()
    assert [peer.cuts for peer in peers] == [0, 1, 1]


def test_connections_are_cut_off_until_the_output_fits() -> None:
    """Invariant 9: the first that is cut off had queued little."""
    bound = OutputBound(4 * FRAME_BYTES)
    little, much, quick = (Peer(bound, slow_since_s) for slow_since_s in (1.0, 2.0, 9.0))
    for peer, frames in ((little, 0), (much, 6), (quick, 7)):
        peer.queue(frames)
        bound.begin_write(peer)
    bound.check()
    assert (little.cuts, much.cuts, quick.cuts) == (1, 1, 0)


def test_slow_peers_are_cut_off_one_at_a_time_while_an_answer_waits() -> None:
    """Invariant 9: peers that accept a frame in time are not cut off."""
    bound = OutputBound(4 * FRAME_BYTES)
    quick = Peer(bound, 1.0)
    peers = slow, _ = [Peer(bound, since_s, is_slow=True) for since_s in (3.0, 2.0)]
    for peer in (quick, *peers):
        peer.queue(4)
        bound.begin_write(peer)
    bound.wait(slow)
    bound.check()
    assert [peer.cuts for peer in peers] == [0, 0], "it waits for its own output"
    waiting = Peer(bound)
    bound.wait(waiting)
    bound.check()
    assert [peer.cuts for peer in peers] == [0, 1]
    assert waiting.calls == 1
    quick.queue(4)
    bound.wait(waiting)
    bound.check()
    assert [peer.cuts for peer in (quick, *peers)] == [0, 1, 1]
