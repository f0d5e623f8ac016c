"""Events by their bytes: where they end, and which is the first that matters."""

import json
import re
from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.wire.sse import (
    DONE,
    MAX_EVENT_BYTES,
    EventKind,
    EventSplitter,
    data_events,
    data_of,
    ends_stream,
    error_in,
    event_kind,
    events,
    has_data,
    keep_alive,
)
from tests.core.fixtures import sample

# Streams: of events, and of anything that looks like one.

lines = st.sampled_from(["data: {}", "data: [DONE]", ": keep-alive", "event: x", "x", "", "é"])
ends = st.sampled_from(["\n", "\r\n"])
well_formed = st.lists(
    st.builds(lambda line, end: line + end * 2, lines.filter(bool), ends), max_size=6
).map("".join)
anything = st.lists(lines | ends | st.sampled_from(["\r", "\n\n", "\r\n\r\n"]), max_size=12).map(
    "".join
)
streams = (well_formed | anything).map(str.encode)


def cut_up(stream: bytes, places: list[int]) -> list[bytes]:
    """The stream in pieces."""
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


def ends_an_event(data: bytes) -> bool:
    """Whether nothing, or a blank line, is what the data ends with."""
    return not data or data.endswith((b"\n\n", b"\n\r\n"))


@given(streams, st.lists(st.integers(min_value=0, max_value=200), max_size=8))
def test_any_split_passes_whole_events_only(stream: bytes, places: list[int]) -> None:
    splitter = EventSplitter()
    passed = [splitter.feed(piece) for piece in cut_up(stream, places)]
    rest = splitter.rest()
    assert b"".join(passed) + rest == stream
    assert all(ends_an_event(data) for data in passed)
    assert splitter.rest() == b""


@given(streams, st.lists(st.integers(min_value=0, max_value=200), max_size=8))
def test_nothing_whole_is_held_back(stream: bytes, places: list[int]) -> None:
    splitter = EventSplitter()
    for piece in cut_up(stream, places):
        splitter.feed(piece)
    assert events(splitter.rest()) == []


@given(well_formed.map(str.encode))
def test_a_well_formed_stream_is_the_sum_of_its_events(stream: bytes) -> None:
    assert b"".join(events(stream)) == stream
    assert all(len(events(event)) == 1 for event in events(stream))


def test_an_incomplete_event_is_no_event() -> None:
    assert events(b"data: a\n\ndata: b\n") == [b"data: a\n\n"]


def test_an_event_that_ends_with_the_next_piece_passes_with_it() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: a\n") == b""
    assert splitter.feed(b"\ndata: b") == b"data: a\n\n"
    assert splitter.rest() == b"data: b"


@pytest.mark.parametrize(("data", "kept"), [(b"a\n\n", 0), (b"a\n\nbc", 2), (b"a\n", 2), (b"", 0)])
def test_a_splitter_reports_its_held_back_bytes(data: bytes, kept: int) -> None:
    splitter = EventSplitter()
    assert splitter.is_empty
    splitter.feed(data)
    assert (splitter.buffered, splitter.is_empty) == (kept, kept == 0)
    splitter.rest()
    assert (splitter.buffered, splitter.is_empty) == (0, True)


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\n\r\n", b"\r\n\n"])
@pytest.mark.parametrize("event", [b"", b"data: x"])
def test_a_blank_line_ends_an_event_wherever_the_stream_is_cut(event: bytes, end: bytes) -> None:
    stream = event + end + b"rest"
    for place in range(len(stream)):
        splitter = EventSplitter()
        passed = splitter.feed(stream[:place]) + splitter.feed(stream[place:])
        assert (passed, splitter.rest()) == (event + end, b"rest")


def test_an_event_over_the_limit_passes_in_pieces() -> None:
    splitter = EventSplitter()
    half = b"x" * (MAX_EVENT_BYTES // 2)
    assert splitter.feed(half) == b""
    assert splitter.feed(half) == b""
    assert splitter.feed(b"x") == half + half + b"x"
    assert splitter.feed(b"end\n\n") == b"end\n\n"


@given(st.lists(st.sampled_from([b"\n", b"\r", b"data: a", b": b"]), max_size=12).map(b"".join))
def test_an_event_ends_with_its_first_empty_line(stream: bytes) -> None:
    ends = [found.end() for found in re.finditer(rb"\r?\n\r?\n", stream)]
    assert events(stream) == [stream[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def test_only_whole_events_pass_however_large_they_are() -> None:
    splitter = EventSplitter()
    large = b"x" * MAX_EVENT_BYTES
    assert splitter.feed(large) == b""
    assert splitter.feed(b"\n\ndata: y") == large + b"\n\n"
    assert splitter.rest() == b"data: y"


def test_a_large_event_passes_when_it_came_byte_by_byte() -> None:
    splitter = EventSplitter()
    event = b"data: %b\r\n\r\n" % (b"x" * 50_000)
    passed = [splitter.feed(bytes([byte])) for byte in event]
    # The last byte is the one that completes it.
    assert passed[-1] == event
    assert not any(passed[:-1])


def test_a_recorded_stream_passes_whole_however_it_is_cut() -> None:
    stream = sample("chat_stream.sse")
    for size in (1, 7, 100, 1460):
        splitter = EventSplitter()
        pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
        assert b"".join(splitter.feed(piece) for piece in pieces) == stream
        assert splitter.rest() == b""


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: x\n\n", b"x"),
        (b"data:x\n\n", b"x"),
        (b"data:  x\r\n\r\n", b" x"),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b"data: a\rdata: b\n\n", b"a\nb"),
        (b"data: a\r\n", b"a"),
        (b"event: e\ndata: x\nid: 1\n\n", b"x"),
        (b": data: x\n\n", b""),
        (b"data:\n\n", b""),
        (b"\n\n", b""),
        (b"database: x\n\n", b""),
    ],
)
def test_an_events_data_are_its_data_lines(event: bytes, data: bytes) -> None:
    assert data_of(event) == data


def event(**document: object) -> bytes:
    """An event with this document as its data."""
    return b"data: %b\n\n" % orjson.dumps(document)


def choice(**members: object) -> dict[str, object]:
    """An answer in a chunk that continues."""
    return {"index": 0, "finish_reason": None, **members}


PREAMBLE = [
    b": keep-alive\n\n",
    b"\n\n",
    b"event: ping\n\n",
    event(choices=[choice(delta={"role": "assistant", "content": ""})]),
    event(choices=[choice(delta={"role": "assistant"})], error=None),
    event(choices=[choice(delta={"content": None, "tool_calls": []})]),
    event(choices=[choice(delta={})]),
    event(choices=[choice(text="")]),
    event(choices=[choice(text=""), choice(delta={})]),
    event(type="response.created", response={"error": None}),
    event(type="response.queued"),
    event(type="response.in_progress"),
    event(type="response.output_item.added"),
    event(type="response.content_part.added"),
    event(type="response.reasoning_part.added"),
    event(type="message_start", message={}),
    event(type="content_block_start"),
    event(type="ping"),
]

CONTENT = [
    DONE,
    b"data: not json\n\n",
    b"data: [1]\n\n",
    b'data: "x"\n\n',
    event(),
    event(choices=[]),
    event(choices=None),
    event(choices=5),
    event(choices={"0": {}}),
    event(choices=[5]),
    event(choices=[choice()]),
    event(choices=[choice(delta={"content": "a"})]),
    event(choices=[choice(delta={"reasoning_content": "a"})]),
    event(choices=[choice(delta={"tool_calls": [{"index": 0}]})]),
    event(choices=[choice(delta={"content": ""}, finish_reason="stop")]),
    event(choices=[choice(delta={}), choice(delta={"content": "a"})]),
    event(choices=[choice(text="a")]),
    event(choices=[choice(text="", finish_reason="length")]),
    event(choices=[choice(text="a", finish_reason="abort")]),
    event(choices=[choice(text="", finish_reason="abort"), choice(text="a")]),
    event(choices=[choice(text="", finish_reason="abort"), 5]),
    event(choices=[], usage={"prompt_tokens": 1}),
    event(type="response.output_text.delta", delta="a"),
    event(type="content_block_delta"),
    event(type={}),
    event(type=["ping"]),
    event(type=None),
]

ERRORS = [
    event(error={"message": "x", "code": 500}),
    event(error="Unauthorized"),
    event(error={"code": 400}, choices=[choice(delta={})]),
    event(type="error", error={"type": "overloaded_error"}),
    event(type="error"),
    event(type="response.failed", response={"error": {"code": "server_error"}}),
    event(type="response.failed", response={"error": None}),
    b"event: error\n" + event(type="error"),
]


ABORTED = [
    event(choices=[choice(text="", finish_reason="abort")]),
    event(choices=[choice(delta={}, finish_reason="abort")]),
    event(choices=[choice(delta={"content": ""}, finish_reason="abort")] * 2),
]


@pytest.mark.parametrize("event", ABORTED)
def test_a_request_that_its_engine_dropped_has_not_been_answered(event: bytes) -> None:
    assert event_kind(event) is EventKind.ABORTED


@given(st.lists(st.sampled_from([b": keep-alive\n\n", b":\n\n", DONE, *CONTENT[1:4]])))
def test_comments_are_no_tokens(stream: list[bytes]) -> None:
    assert data_events(b"".join(stream)) == sum(not each.startswith(b":") for each in stream)


@pytest.mark.parametrize("event", PREAMBLE)
def test_replaceable_events_are_preamble(event: bytes) -> None:
    assert event_kind(event) is EventKind.PREAMBLE


@pytest.mark.parametrize("event", CONTENT)
def test_an_answer_that_has_begun_is_content(event: bytes) -> None:
    assert event_kind(event) is EventKind.CONTENT


@pytest.mark.parametrize("event", ERRORS)
def test_an_engines_failure_is_an_error(event: bytes) -> None:
    assert event_kind(event) is EventKind.ERROR


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("framing", [b"%b", b"data: {}\n\n%bdata: [DONE]\n\n", b"5a\r\n%b\r\n"])
def test_error_is_found_among_other_events(error: bytes, framing: bytes) -> None:
    found = error_in(framing % error)
    assert data_of(found) == data_of(error)


@pytest.mark.parametrize(
    "event",
    [
        *CONTENT,
        *PREAMBLE,
        event(type="response.completed", response={"error": None}),
        event(choices=[choice(text='"error": {}')]),
        event(choices=[choice(text="a", error="b")]),
        b"",
    ],
)
def test_normal_events_are_not_mistaken_for_errors(event: bytes) -> None:
    assert error_in(event) == b""


STOP = event(choices=[choice(text="a", finish_reason="stop")])
TOKEN = event(choices=[choice(text="a")])
ENDS = [
    *ERRORS,
    STOP,
    TOKEN + STOP,
    STOP.replace(b":", b": "),
    STOP.replace(b"\n", b"\r\n"),
    STOP[:-1],
    b"5a\r\n%b\r\n" % STOP,
    event(choices=[], usage={}),
    b"event: message_stop\n" + event(type="message_stop"),
    b"event: response.completed\n" + event(type="response.completed"),
    b"event: response.incomplete\n" + event(type="response.incomplete"),
    DONE,
    TOKEN + DONE,
    DONE.replace(b"\n", b"\r"),
    b"data:[DONE]",
]


@pytest.mark.parametrize("data", ENDS)
def test_a_stream_may_end_with_the_last_event_of_its_api_or_an_error(data: bytes) -> None:
    assert ends_stream(data)


@pytest.mark.parametrize(
    "data",
    [
        *PREAMBLE,
        b"",
        b": keep-alive\n\n",
        TOKEN,
        TOKEN + b"data: ",
        STOP.strip(),
        STOP + TOKEN.strip(),
        event(choices=[choice(text='"finish_reason": "stop"')]),
        event(choices=[choice(text="data: [DONE]")]),
        event(type="content_block_delta", delta={"text": '"message_stop"'}),
    ],
)
def test_no_stream_ends_with_any_other_event(data: bytes) -> None:
    assert not ends_stream(data)


@given(st.lists(st.sampled_from([b": keep-alive\n\n", b":\r\n\r\n", DONE])))
def test_comments_are_no_data(read: list[bytes]) -> None:
    assert has_data(b"".join(read)) is (DONE in read)
    assert has_data(b"".join(read) + b": cut") is (DONE in read)


PING = b'event: ping\ndata: {"type": "ping"}\n\n'


def test_keep_alive_lines_are_comments_at_every_position() -> None:
    for preamble in PREAMBLE:
        said = keep_alive(preamble)
        assert data_of(said) == b""
        assert ends_an_event(said)
    assert keep_alive(b": keep-alive\n\n") == b": keep-alive\n\n"
    assert keep_alive(PING) == b": ping\n\n"
    assert keep_alive(event(type="message_start", message={})) == b""


P, C, E = EventKind.PREAMBLE, EventKind.CONTENT, EventKind.ERROR


@pytest.mark.parametrize(
    ("name", "signs"),
    [
        ("chat_stream.sse", [P, C]),
        ("completions_stream.sse", [C]),
        ("kv_load_failed_chat.sse", [P, E, C]),
        ("kv_load_failed_completions.sse", [E, C]),
    ],
)
def test_recorded_streams_are_understood(name: str, signs: list[EventKind]) -> None:
    assert [event_kind(event) for event in events(sample(name))][: len(signs)] == signs


documents = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["choices", "type", "error", "delta", "text", "finish_reason", "role"]),
            inner,
            max_size=4,
        )
    ),
)


@given(st.binary(max_size=40) | documents.map(lambda d: json.dumps(d).encode()))
def test_any_data_is_understood_or_taken_for_content(data: bytes) -> None:
    assert event_kind(b"data: %b\n\n" % data) in EventKind
