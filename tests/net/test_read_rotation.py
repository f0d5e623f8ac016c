"""Engines' connections are read in turns while the event loop cannot keep up."""

import asyncio
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.net.client.client_connection import ClientConnection
from router.net.limits.read_limiter import LimitedReader, ReadLimiter
from router.net.limits.read_rotation import (
    COMPLAINT_SECONDS,
    LONG_SECONDS,
    READS_PER_STREAM,
    ROTATION_SECONDS,
    SAMPLE,
    SLICE_SECONDS,
    TRIAL_SECONDS,
    ReadRotation,
)
from tests.net.wire import Handler

MOST = 3


class Transport:
    """Knows whether it is read; asyncio's do nothing when they are closing."""

    def __init__(self) -> None:
        self.is_read = True
        self.is_closed = False

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = not self.is_closed


def stream(*, counts: bool = True) -> LimitedReader:
    """A connection in the middle of an answer."""
    one = LimitedReader(ReadLimiter(1 << 40))
    one.counts_reads = counts
    one.transport = Transport()  # type: ignore[assignment]
    return one


def is_read(one: LimitedReader) -> bool:
    transport: Any = one.transport
    return bool(transport.is_read)


class Bench:
    """A rotation and its streams, with a clock."""

    def __init__(self, number: int, *, sample: int = 1) -> None:
        self.streams = [stream() for _ in range(number)]
        self.now = 1000.0
        self.rotation = ReadRotation(
            lambda: self.streams, most_read=MOST, sample=sample, clock=lambda: self.now
        )
        self.rotation.refill()

    def is_on(self) -> bool:
        return self.rotation.is_on

    def is_lasting(self) -> bool:
        return self.rotation.is_lasting

    def read(self, times: int, *, seconds: float = 2 * LONG_SECONDS) -> None:
        """So many reads in one turn of the event loop, which took so long."""
        self.now += seconds
        for _ in range(times):
            self.rotation.count_read()

    def overload(self) -> None:
        """So many reads in a turn that the loop cannot keep up."""
        self.read(10 * len(self.streams) + 10)

    def after(self, seconds: float) -> None:
        self.now += seconds
        self.rotation.refill()

    def reading(self) -> set[int]:
        return {number for number, one in enumerate(self.streams) if is_read(one)}


def enough_for(streams: int, least: int) -> int:
    return max(least, -int(-READS_PER_STREAM * streams // 1))  # rounded up


@given(st.integers(0, 40), st.integers(1, 10))
def test_they_are_read_in_turns_from_so_many_reads_per_stream_on(number: int, looks: int) -> None:
    bench = Bench(number)
    enough = enough_for(max(number, MOST), 0)
    for _ in range(looks):  # reads of several turns are not added up
        bench.read(enough - 1)
        assert not bench.is_on()
        bench.after(0.01)
    bench.read(enough)
    assert bench.is_on() == (number > MOST)
    assert len(bench.reading()) == min(number, MOST)


def test_many_reads_in_a_turn_that_is_not_long_are_no_overload() -> None:
    """An engine that writes each of n choices by itself."""
    bench = Bench(10 * MOST)
    bench.read(40 * MOST, seconds=LONG_SECONDS * 0.9)
    assert not bench.is_on()
    bench.read(2 * MOST, seconds=LONG_SECONDS * 0.2)
    assert bench.is_on()


def test_however_often_a_few_are_read_it_is_no_overload(caplog: pytest.LogCaptureFixture) -> None:
    """Small events that come fast."""
    bench = Bench(MOST)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            bench.read(1000)
            bench.after(0.1)
    assert not bench.is_on()
    assert not caplog.messages


def test_where_new_streams_come_meanwhile_their_reads_are_expected_too() -> None:
    bench = Bench(MOST + 1)
    bench.read(5)
    bench.streams += [stream() for _ in range(6)]
    bench.read(9)  # 14 of 15
    assert not bench.is_on()
    bench.read(1)
    assert bench.is_on()


@given(st.lists(st.booleans(), min_size=MOST + 1, max_size=40))
def test_some_stand_for_all(count: list[bool]) -> None:
    """They may be more or fewer than one in SAMPLE of those that stream now."""
    bench = Bench(0, sample=4)
    bench.streams = [stream(counts=counts) for counts in count]
    enough = enough_for(sum(count), 2)
    bench.read(enough - 1)
    assert not bench.is_on()
    bench.read(1)
    assert bench.is_on()


def test_one_in_so_many_connections_counts() -> None:
    rotation = ReadRotation(list)
    assert sum(rotation.takes_sample() for _ in range(10 * SAMPLE)) == 10


@given(st.integers(MOST + 1, 20))
def test_all_have_the_same_time_and_no_more_than_the_limit_are_read(number: int) -> None:
    bench = Bench(number)
    bench.overload()
    slices = 3 * number
    turns = [0] * number
    for _ in range(slices):
        bench.rotation._ends = bench.now + 1.0
        before = bench.reading()
        assert len(before) == MOST
        for each in before:
            turns[each] += 1
        bench.after(SLICE_SECONDS / 4)
        assert bench.reading() == before, "its slice has not ended"
        bench.after(SLICE_SECONDS)
    assert max(turns) - min(turns) <= 1, "at most the one that has just begun"


def test_places_exist_only_on_present_engines() -> None:
    """Clients have left: their engines' connections are closed."""
    bench = Bench(20 * MOST)
    bench.overload()
    for one in bench.streams[: 10 * MOST]:
        one.transport.is_closed = True  # type: ignore[attr-defined]
    bench.streams = bench.streams[10 * MOST :]
    for _ in range(10):
        bench.after(SLICE_SECONDS)
        assert len(bench.reading()) == MOST


@given(
    st.lists(
        st.sampled_from(["starts", "ends", "closes", "passes", "long", "overload"]), max_size=80
    ),
    st.data(),
)
def test_none_is_forgotten(happens: list[str], data: st.DataObject) -> None:
    """Streams begin, end and break at any time; those that have ended are idle connections, which
    must be read again."""
    bench = Bench(2 * MOST)
    ended: list[LimitedReader] = []
    for each in happens:
        if each == "starts":
            bench.streams.append(stream())
        elif each == "passes":
            bench.after(SLICE_SECONDS)
            assert len(bench.reading()) <= MOST or not bench.is_on()
            assert all(is_read(one) or one.transport.is_closing() for one in ended)
        elif each == "long":
            bench.after(ROTATION_SECONDS)
        elif each == "overload":
            bench.overload()
        elif bench.streams:
            one = bench.streams.pop(data.draw(st.integers(0, len(bench.streams) - 1)))
            if each == "closes":
                one.transport.is_closed = True  # type: ignore[attr-defined]
            ended.append(one)
    bench.after(2 * ROTATION_SECONDS)
    assert not bench.is_on()
    for one in bench.streams + ended:
        assert is_read(one) or one.transport.is_closing()


def test_after_a_while_all_are_read_again_and_it_begins_anew_if_that_is_too_many() -> None:
    bench = Bench(2 * MOST)
    bench.overload()
    bench.after(ROTATION_SECONDS / 2)
    assert bench.is_on()
    bench.after(ROTATION_SECONDS)
    assert not bench.is_on()
    assert len(bench.reading()) == 2 * MOST
    bench.overload()
    assert len(bench.reading()) == MOST


def test_it_starts_after_late_requests_except_during_a_trial() -> None:
    """Else no trial would ever show that the event loop cannot keep up."""
    bench = Bench(MOST + 1)
    bench.rotation.on_starts_late()
    assert (bench.is_on(), bench.is_lasting()) == (True, False)
    bench.after(ROTATION_SECONDS)
    bench.rotation.on_starts_late()
    assert not bench.is_on()
    bench.overload()
    assert (bench.is_on(), bench.is_lasting()) == (True, False), "nothing has lasted yet"
    bench.after(ROTATION_SECONDS)
    bench.overload()
    assert bench.is_lasting()
    bench.after(ROTATION_SECONDS / 2)
    bench.rotation.on_starts_late()
    bench.after(ROTATION_SECONDS / 2)
    assert not bench.is_on(), "nothing prolongs it"
    bench.after(TRIAL_SECONDS)
    bench.rotation.on_starts_late()
    assert (bench.is_on(), bench.is_lasting()) == (True, False)


def test_late_starts_beside_few_streams_change_nothing() -> None:
    bench = Bench(MOST)
    bench.rotation.on_starts_late()
    assert not bench.is_on()
    assert bench.reading() == set(range(MOST))


def test_it_ends_when_few_are_left() -> None:
    bench = Bench(2 * MOST)
    bench.overload()
    left, gone = bench.streams[MOST:], bench.streams[:MOST]
    bench.streams = left
    bench.after(SLICE_SECONDS * 2)
    assert not bench.is_on()
    assert all(is_read(one) for one in left + gone)


def test_overload_that_lasts_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(2 * MOST)
    with caplog.at_level(logging.WARNING):
        for number in range(10):
            bench.overload()
            assert bench.is_lasting() == (number > 0)
            bench.after(ROTATION_SECONDS)
            assert not bench.is_lasting()
        assert len(caplog.messages) == 1
        assert "cannot keep up with 6 streams" in caplog.text
        assert "--workers" in caplog.text
        bench.after(COMPLAINT_SECONDS)
        for _ in range(2):  # the first may be a single long turn
            assert len(caplog.messages) == 1
            bench.overload()
            bench.after(ROTATION_SECONDS)
    assert len(caplog.messages) == 2


WAYS = ["pause_reading", "resume_reading", "set_aside", "put_back", "wait_for_turn", "read_on"]
ENDS = {"resume_reading": "pause_reading", "put_back": "set_aside", "read_on": "wait_for_turn"}


@given(st.lists(st.sampled_from(WAYS), max_size=30))
def test_a_connection_reads_when_no_limiter_pauses_it(ways: list[str]) -> None:
    """Its owner, the limiter and the rotation do not know of each other."""
    loop = asyncio.new_event_loop()
    loop.close()
    one = ClientConnection(Handler(), set(), loop)
    one.transport = Transport()  # type: ignore[assignment]
    one._discards_input = True
    against = dict.fromkeys(ENDS.values(), False)
    for way in ways:
        if way != "read_on":
            getattr(one, way)()
        elif against["wait_for_turn"]:  # only waiting ones are notified
            one.read_on(b"")
        against[ENDS.get(way, way)] = way in against
        assert is_read(one) == (not any(against.values()))
