"""Batches are applied in their order, or all that is known is dropped."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.core.kv_events import ordering
from router.core.kv_events.ordering import CLEAR, Apply, EventStream, Replay, Step


def payload(seq: int) -> bytes:
    """What batch `seq` holds."""
    return b"%d" % seq


def live(stream: EventStream, *numbers: int) -> list[Step]:
    """What is to be done when these batches come."""
    return [step for seq in numbers for step in stream.live(seq, payload(seq))]


def replayed(stream: EventStream, *numbers: int) -> list[Step]:
    """What is to be done when these come from the replay socket."""
    return [step for seq in numbers for step in stream.replayed(seq, payload(seq))]


def applied(steps: list[Step]) -> list[int]:
    """The numbers of the batches that are applied; -1 where all is dropped."""
    return [
        int(step.payload) if isinstance(step, Apply) else -1
        for step in steps
        if not isinstance(step, Replay)
    ]


def joined(*, can_replay: bool = True) -> EventStream:
    """A stream of an engine that has announced nothing yet."""
    stream = EventStream(can_replay=can_replay)
    stream.connected()
    stream.replay_ended()
    return stream


def test_batches_in_order_are_applied_as_they_come() -> None:
    stream = joined()
    assert live(stream, 0, 1, 2) == [Apply(b"0"), Apply(b"1"), Apply(b"2")]
    assert stream.is_whole
    assert stream.gaps == 0


def test_a_late_subscriber_requests_missed_messages_first() -> None:
    stream = EventStream(can_replay=True)
    assert stream.connected() == [CLEAR, Replay(0)]
    assert live(stream, 5, 6) == []
    assert applied(replayed(stream, 0, 1, 2, 3, 4, 5)) == [0, 1, 2, 3, 4, 5]
    assert applied(stream.replay_ended()) == [6]
    assert stream.is_whole
    assert not stream.is_replaying


def test_an_engine_of_which_a_message_was_not_understood_is_not_wholly_known() -> None:
    stream = joined()
    live(stream, 0, 1)
    seen = [stream.is_whole]
    stream.unreadable()
    assert applied(live(stream, 2)) == [2]
    seen.append(stream.is_whole)
    stream.connected()
    replayed(stream, 0)
    seen.append(stream.is_whole)
    assert seen == [True, False, True], "a new engine tells it all again"


def test_an_engine_that_does_not_remember_its_beginning_is_not_wholly_known() -> None:
    stream = EventStream(can_replay=True)
    stream.connected()
    assert applied(replayed(stream, 100, 101)) == [100, 101]
    stream.replay_ended()
    assert not stream.is_whole


@pytest.mark.parametrize("can_replay", [True, False])
def test_a_late_subscriber_without_replay_begins_with_new_events(*, can_replay: bool) -> None:
    stream = joined(can_replay=can_replay)
    assert live(stream, 7, 8) == [Apply(b"7"), Apply(b"8")]
    assert not stream.is_whole


def test_an_empty_replay_is_followed_by_live_events() -> None:
    stream = EventStream(can_replay=True)
    stream.connected()
    live(stream, 7, 8)
    assert applied(stream.replay_ended()) == [7, 8]
    assert not stream.is_whole


@pytest.mark.parametrize("is_complete", [True, False])
def test_an_engine_that_does_not_answer_is_not_wholly_known(*, is_complete: bool) -> None:
    stream = EventStream(can_replay=True)
    stream.connected()
    stream.replay_ended(is_complete=is_complete)
    assert stream.is_whole == is_complete  # else it has announced nothing yet


def test_a_gap_is_requested_again() -> None:
    stream = joined()
    live(stream, 0, 1)
    assert live(stream, 4, 5) == [Replay(2)]
    assert applied(replayed(stream, 2, 3, 4)) == [2, 3, 4]
    assert applied(stream.replay_ended()) == [5]
    assert (stream.gaps, stream.replays, stream.is_whole) == (1, 2, True)


def test_events_that_waited_for_a_replay_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "MAX_AHEAD_BYTES", 100)
    stream = joined()
    live(stream, 0)
    for lost in range(1, 21, 2):
        assert stream.live(lost + 1, b"x" * 60) == [Replay(lost)]
        assert applied(replayed(stream, lost)) == [lost]
        assert stream.replay_ended() == [Apply(b"x" * 60)]
    assert (stream.gaps, stream.losses) == (10, 0)


def test_a_gap_without_replay_drops_the_cache_contents() -> None:
    stream = joined(can_replay=False)
    live(stream, 0, 1)
    assert applied(live(stream, 4)) == [-1, 4]
    assert (stream.losses, stream.is_whole) == (1, False)


def test_gaps_in_a_replay_are_requested_again_and_then_given_up() -> None:
    stream = joined()
    live(stream, 0, 2, 9)
    assert applied(replayed(stream, 1, 2, 3, 5, 6)) == [1, 2, 3]
    assert stream.replay_ended() == [Replay(4)]
    assert replayed(stream, 3, 5, 6) == []  # nothing new
    for _ in range(ordering.MAX_TRIES - 2):
        assert stream.replay_ended() == [Replay(4)]
    assert applied(stream.replay_ended()) == [-1, 9]
    assert applied(live(stream, 10)) == [10]
    assert stream.losses == 1


def test_a_number_that_goes_back_is_a_new_engine() -> None:
    stream = joined()
    live(stream, 0, 1, 2)
    assert applied(live(stream, 0, 1)) == [-1, 0, 1]
    assert (stream.restarts, stream.is_whole) == (1, True)
    assert live(stream, 0) == [CLEAR, Apply(b"0")]


def test_an_engine_met_later_is_asked_for_a_replay() -> None:
    stream = joined()
    live(stream, 0, 1, 2, 3, 4)
    assert live(stream, 2) == [CLEAR, Replay(0)]
    assert applied(replayed(stream, 0, 1)) == [0, 1]
    assert applied(stream.replay_ended()) == [2]


def test_a_batch_that_comes_twice_is_applied_once() -> None:
    stream = joined()
    assert applied(live(stream, 0, 1, 1)) == [0, 1]
    live(stream, 3)
    replayed(stream, 2, 3)
    stream.replay_ended()
    assert applied(replayed(stream, 2, 3)) == []


def test_replayed_events_are_not_applied_again_when_they_come_live() -> None:
    stream = EventStream(can_replay=True)
    stream.connected()
    replayed(stream, 0, 1, 2)
    stream.replay_ended()
    assert applied(live(stream, 1, 2, 3)) == [3]


def test_a_new_connection_is_a_new_engine() -> None:
    stream = joined()
    live(stream, 0, 1)
    assert stream.connected() == [CLEAR, Replay(0)]
    assert stream.replay_ended() == []


def test_events_waiting_for_a_replay_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "MAX_AHEAD", 10)
    stream = joined()
    live(stream, 0)
    steps = live(stream, *range(5, 20))
    assert applied(steps) == [-1, *range(5, 20)]
    assert not stream._ahead
    monkeypatch.setattr(ordering, "MAX_AHEAD_BYTES", 100)
    assert stream.live(30, b"3" * 60) == [Replay(20)]
    assert applied(stream.live(31, b"3" * 60))[0] == -1
    assert stream._ahead_bytes == 0


class LossyPublisher(RuleBasedStateMachine):
    """A publisher that loses live messages and replays, and restarts: what is applied is always a
    part of its batches without a hole, as far back as the last time that all was dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.stream = EventStream(can_replay=True)
        self.epoch = self.seq = 0
        self.memory: list[tuple[int, bytes]] = []
        self.asked: int | None = None
        self.known: list[bytes] = []
        self.do(self.stream.connected())

    def do(self, steps: list[Step]) -> None:
        for step in steps:
            if isinstance(step, Apply):
                self.known.append(step.payload)
            elif isinstance(step, Replay):
                self.asked = step.start
            else:
                self.known.clear()

    @rule(is_lost=st.booleans())
    def publish(self, *, is_lost: bool) -> None:
        batch = (self.seq, b"%d/%d" % (self.epoch, self.seq))
        self.memory.append(batch)
        self.seq += 1
        if not is_lost:
            self.do(self.stream.live(*batch))

    @precondition(lambda self: self.asked is not None)
    @rule(loses=st.sets(st.integers(0, 20)))
    def replay(self, loses: set[int]) -> None:
        assert self.asked is not None
        wanted = [each for each in self.memory if each[0] >= self.asked]
        self.asked = None
        for place, batch in enumerate(wanted):
            if place not in loses:
                self.do(self.stream.replayed(*batch))
        self.do(self.stream.replay_ended())

    @rule()
    def restart(self) -> None:
        self.epoch += 1
        self.seq = 0
        self.memory.clear()
        self.do(self.stream.connected())

    @invariant()
    def nothing_is_missing_between(self) -> None:
        if self.known:
            epoch, first = map(int, self.known[0].split(b"/"))
            expected = [b"%d/%d" % (epoch, first + place) for place in range(len(self.known))]
            assert self.known == expected
            if self.stream.is_whole:
                assert first == 0

    @invariant()
    def a_replay_is_awaited_while_something_is_missing(self) -> None:
        assert self.stream.is_replaying == (self.asked is not None)


TestLossyPublisher = LossyPublisher.TestCase
