from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.loadgen.sse import DONE, EventCounter

STREAM = b'data: {"a":1}\n\ndata: {"b":"x"}\n\n' + DONE


def count(pieces: list[bytes]) -> EventCounter:
    counter = EventCounter()
    completed = sum(counter.feed(piece) for piece in pieces)
    assert completed == counter.events
    return counter


def test_counts_events_and_knows_the_end() -> None:
    counter = count([STREAM])
    assert (counter.events, counter.errors, counter.done) == (3, 0, True)


def test_a_stream_without_done_is_not_done() -> None:
    assert not count([b'data: {"a":1}\n\n']).done


def test_nothing_was_seen() -> None:
    counter = EventCounter()
    assert (counter.events, counter.done) == (0, False)


def test_an_error_event_is_seen() -> None:
    counter = count([b'data: {"a":1}\n\ndata: {"error":{"code":500}}\n\n', DONE])
    assert (counter.events, counter.errors, counter.done) == (3, 1, True)


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_the_cuts_between_reads_do_not_matter(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in pairwise(edges) if a < b]
    counter = count(pieces)
    assert (counter.events, counter.errors, counter.done) == (3, 0, True)


@given(st.integers(0, 60))
def test_an_error_is_seen_however_it_is_cut(cut: int) -> None:
    text = b'data: {"a":1}\n\ndata: {"error":{"code":500}}\n\ndata: [DONE]\n\n'
    assert count([piece for piece in (text[:cut], text[cut:]) if piece]).errors == 1
