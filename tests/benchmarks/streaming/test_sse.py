from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.streaming.sse import DONE, EventReader, data_of

END = b"data: " + DONE
EVENTS = [b'data: {"a":1}', b": comment", b'event: x\ndata: {"b":"x"}', END]
STREAM = b"".join(event + b"\n\n" for event in EVENTS)


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_the_cuts_between_reads_do_not_matter(cuts: list[int]) -> None:
    reader = EventReader()
    edges = [0, *sorted(cuts), len(STREAM)]
    found = [event for a, b in pairwise(edges) for event in reader.feed(STREAM[a:b])]
    assert (found, reader.tail) == (EVENTS, b"")


@given(st.lists(st.integers(0, len(STREAM) + 8), max_size=8))
def test_nor_do_carriage_returns(cuts: list[int]) -> None:
    stream = STREAM.replace(b"\n", b"\r\n")
    reader = EventReader()
    edges = [0, *sorted(cuts), len(stream)]
    assert [event for a, b in pairwise(edges) for event in reader.feed(stream[a:b])] == EVENTS


def test_unended_events_are_no_events() -> None:
    reader = EventReader()
    assert reader.feed(STREAM[:-1]) == EVENTS[:-1]
    assert data_of(reader.tail) == DONE


def test_data_is_the_content_of_the_data_lines() -> None:
    assert [data_of(event) for event in EVENTS] == [b'{"a":1}', b"", b'{"b":"x"}', DONE]
    assert data_of(b"data: 1\ndata:2") == b"1\n2"
