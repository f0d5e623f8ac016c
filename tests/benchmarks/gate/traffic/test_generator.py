import asyncio
import time
from typing import Any

import pytest

from benchmarks.gate.traffic.generator import ChatStream, has_content, kind_of
from benchmarks.streaming.client import CROSSED_S, Seen, Stream

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n%btransfer-encoding: chunked\r\n\r\n"
# A time of writing that is never long ago, however slow the machine.
NOW = float("inf")
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
)
DONE = b"data: [DONE]\n\n"


def piece(text: str) -> bytes:
    return b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % text.encode()


def finished(text: str, reason: str) -> bytes:
    return piece(text).replace(b"}}]", b'},"finish_reason":"%b"}]' % reason.encode())


def spaced(event: bytes) -> bytes:
    """As a server that writes JSON with spaces."""
    return event.replace(b'":', b'": ')


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def answer(*events: bytes, headers: bytes = b"") -> bytes:
    return HEAD % headers + b"".join(map(chunk, events)) + b"0\r\n\r\n"


class Wire(asyncio.Transport):
    """What a stream wrote, and whether it dropped the connection."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.aborted = False

    def write(self, data: Any) -> None:
        self.sent.append(bytes(data))

    def abort(self) -> None:
        self.aborted = True


class Crowd:
    """Hands out so many requests and connects to wires of its own."""

    timeout = 60.0

    def __init__(self, requests: int = 1) -> None:
        self.numbers = iter(range(requests))
        self.seen: list[Seen] = []
        self.asked: list[Seen] = []
        self.wires: list[Wire] = []
        self.pieces = 0
        self.ended_all = asyncio.Event()

    def next_request(self) -> tuple[Seen, bytes] | None:
        if (number := next(self.numbers, None)) is None:
            return None
        self.asked.append(Seen(number, number, 0.0))
        return self.asked[-1], b"request %d" % number

    def arrived(self, seen: Seen, chunks: int) -> None:
        self.pieces += chunks

    def ended(self, seen: Seen) -> None:
        assert seen not in self.seen
        self.seen.append(seen)

    def idle(self, stream: Stream) -> None:
        self.ended_all.set()

    @property
    def over(self) -> bool:
        return self.ended_all.is_set()

    def connect(self, stream: Stream) -> None:
        self.wires.append(Wire())
        stream.connection_made(self.wires[-1])


@pytest.fixture
def crowd() -> Crowd:
    return Crowd()


def stream_of(crowd: Crowd) -> Stream:
    stream = ChatStream(crowd, asyncio.get_running_loop())
    stream.ask()
    return stream


async def turn() -> None:
    """Run the scheduled callbacks."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def outcome(crowd: Crowd, *reads: bytes) -> Seen:
    stream = stream_of(crowd)
    for data in reads:
        stream.data_received(data)
    await turn()
    (seen,) = crowd.seen
    assert seen.ended is not None
    return seen


async def test_content_usage_and_the_end_are_seen(crowd: Crowd) -> None:
    seen = await outcome(crowd, answer(ROLE, piece("a"), piece("b"), USAGE, DONE))
    assert (seen.status, seen.error, seen.chunks) == (200, None, 2)
    assert (seen.input_tokens, seen.output_tokens, seen.cached_tokens) == (9, 2, 4)
    assert seen.first is not None
    assert seen.last is not None
    assert len(seen.gaps) == 1
    assert crowd.pieces == 2
    assert crowd.over


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls"])
async def test_an_answer_that_ends_by_itself_is_good(crowd: Crowd, reason: str) -> None:
    seen = await outcome(crowd, answer(piece("a"), finished("b", reason), DONE))
    assert (seen.error, seen.chunks) == (None, 2)


async def test_tokens_of_an_aborted_answer_are_counted(crowd: Crowd) -> None:
    seen = await outcome(crowd, answer(piece("a"), finished("b", "abort"), USAGE, DONE))
    assert (seen.chunks, seen.output_tokens) == (2, 2)


@pytest.mark.parametrize("size", [1, 7, 50])
async def test_it_does_not_matter_how_the_bytes_are_cut(crowd: Crowd, size: int) -> None:
    data = answer(ROLE, piece("a") + piece("b"), USAGE, DONE)
    seen = await outcome(crowd, *(data[at : at + size] for at in range(0, len(data), size)))
    assert (seen.error, seen.chunks, seen.output_tokens) == (None, 2, 2)


async def test_lines_may_end_with_carriage_returns_cut_anywhere(crowd: Crowd) -> None:
    data = answer(*(each.replace(b"\n", b"\r\n") for each in (ROLE, piece("a"), USAGE, DONE)))
    seen = await outcome(crowd, *(bytes([byte]) for byte in data))
    assert (seen.error, seen.chunks, seen.output_tokens) == (None, 1, 2)


async def test_the_end_needs_no_empty_line(crowd: Crowd) -> None:
    seen = await outcome(crowd, answer(piece("a"), b"data: [DONE]\n"))
    assert seen.error is None


async def test_comments_are_passed_over(crowd: Crowd) -> None:
    seen = await outcome(crowd, answer(b": keep-alive\n\n", piece("a"), b":\n\n", DONE))
    assert (seen.error, seen.chunks) == (None, 1)


async def test_usage_in_the_last_piece_counts_both(crowd: Crowd) -> None:
    both = b'data: {"choices":[{"delta":{"content":"a"}}],"usage":{"completion_tokens":1}}\n\n'
    seen = await outcome(crowd, answer(both, DONE))
    assert (seen.chunks, seen.output_tokens) == (1, 1)


async def test_workers_waited_for_are_read_from_headers(crowd: Crowd) -> None:
    headers = b"x-pd-router-endpoint: http://b\r\nX-PD-Router-Left: http://a, http://c\r\n"
    seen = await outcome(crowd, answer(piece("a"), DONE, headers=headers))
    assert (seen.worker, seen.left) == ("http://b", ("http://a", "http://c"))


async def test_a_comment_names_the_new_engine_of_a_moved_stream(crowd: Crowd) -> None:
    comment = b": x-pd-router-endpoint http://b left http://a\n\n"
    headers = b"x-pd-router-endpoint: http://a\r\n"
    seen = await outcome(crowd, answer(comment, piece("a"), DONE, headers=headers))
    assert (seen.worker, seen.left, seen.chunks, seen.error) == ("http://b", ("http://a",), 1, None)


async def test_a_comment_names_the_engine_of_a_stream_with_an_early_head(crowd: Crowd) -> None:
    comments = b": keep-alive\n\n", b": x-pd-router-endpoint http://b\n\n"
    seen = await outcome(crowd, answer(*comments, piece("a"), DONE))
    assert (seen.worker, seen.left, seen.chunks, seen.error) == ("http://b", (), 1, None)


async def test_the_worker_of_a_request_is_read_from_headers(crowd: Crowd) -> None:
    seen = await outcome(
        crowd, answer(piece("a"), DONE, headers=b"X-PD-Router-Endpoint: http://e:1\r\n")
    )
    assert seen.worker == "http://e:1"
    assert (await outcome(Crowd(), answer(piece("a"), DONE))).worker is None


ERROR = b'{"error":{"message":"m","type":"overloaded_error","code":503}}'
PLAIN = b"HTTP/1.1 503 Busy\r\ncontent-length: %d\r\n\r\n%b"


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (PLAIN % (len(ERROR), ERROR), "status 503: overloaded_error"),
        (PLAIN % (4, b"oops"), "status 503"),
        (answer(piece("a"), b"data: " + ERROR + b"\n\n", DONE), "error event: overloaded_error"),
        (answer(piece("a")), "stream ended without [DONE]"),
        (answer(ROLE, USAGE, DONE), "no content"),
        (answer(piece("a"), b"data: {\n\n", DONE), "malformed event"),
        (answer(piece("a"), finished("", "abort"), USAGE, DONE), "aborted by the engine"),
        (answer(piece("a"), finished("b", "abort"), DONE), "aborted by the engine"),
        (answer(piece("a"), spaced(finished("b", "abort")), DONE), "aborted by the engine"),
        (b"SMTP\r\n\r\n", "malformed answer: HttpParserInvalidStatusError"),
    ],
)
async def test_invalid_dns_answers_are_named_errors(crowd: Crowd, data: bytes, error: str) -> None:
    found = (await outcome(crowd, data)).error
    assert found is not None
    # httptools has several names for the last one.
    assert found.split(": Http")[0] == error.split(": Http")[0]


async def test_a_lost_connection_fails_its_request_and_the_next_has_a_new_one() -> None:
    crowd = Crowd(2)
    stream = stream_of(crowd)
    stream.data_received(HEAD % b"" + chunk(piece("a")))
    stream.connection_lost(None)
    await turn()
    assert [each.error for each in crowd.seen] == ["connection lost"]
    assert [wire.sent for wire in crowd.wires] == [[b"request 0"], [b"request 1"]]


async def test_a_connection_is_kept_for_the_next_request() -> None:
    crowd = Crowd(2)
    stream = stream_of(crowd)
    stream.data_received(answer(piece("a"), DONE))
    await turn()
    (wire,) = crowd.wires
    assert wire.sent == [b"request 0", b"request 1"]
    stream.data_received(answer(piece("a"), DONE))
    await turn()
    assert [each.error for each in crowd.seen] == [None, None]
    assert crowd.over


async def test_a_kept_connection_that_was_closed_meanwhile_is_no_failure() -> None:
    crowd = Crowd(2)
    stream = stream_of(crowd)
    stream.data_received(answer(piece("a"), DONE))
    await turn()
    crowd.asked[1].written = NOW
    stream.connection_lost(None)
    assert [wire.sent for wire in crowd.wires] == [[b"request 0", b"request 1"], [b"request 1"]]
    assert [each.resent for each in crowd.asked] == [False, True]
    crowd.asked[1].written = NOW
    stream.connection_lost(None)  # a fresh one: this time it is
    assert [each.error for each in crowd.seen] == [None, "connection lost"]


async def test_a_request_that_is_dropped_later_is_a_failure_also_on_a_kept_connection() -> None:
    crowd = Crowd(2)
    stream = stream_of(crowd)
    stream.data_received(answer(piece("a"), DONE))
    await turn()
    crowd.asked[1].written = time.monotonic() - 2 * CROSSED_S
    stream.connection_lost(None)
    assert [each.error for each in crowd.seen] == [None, "connection lost"]
    assert not crowd.asked[1].resent
    assert len(crowd.wires) == 1


async def test_connection_close_is_obeyed() -> None:
    crowd = Crowd(2)
    stream = stream_of(crowd)
    stream.data_received(answer(piece("a"), DONE, headers=b"connection: close\r\n"))
    await turn()
    assert [wire.aborted for wire in crowd.wires] == [True, False]
    assert crowd.wires[1].sent == [b"request 1"]


async def test_the_end_of_the_connection_may_be_the_end_of_the_answer(crowd: Crowd) -> None:
    stream = stream_of(crowd)
    stream.data_received(b"HTTP/1.0 200 OK\r\n\r\n" + piece("a") + DONE)
    stream.connection_lost(None)
    assert [each.error for each in crowd.seen] == [None]


async def test_a_timeout_fails_the_request_and_drops_the_connection(crowd: Crowd) -> None:
    crowd.timeout = 0.0
    stream_of(crowd)
    await crowd.ended_all.wait()
    assert [each.error for each in crowd.seen] == ["timed out after 0 s"]
    assert crowd.wires[0].aborted


async def test_a_stopped_watch_neither_ends_nor_retries() -> None:
    crowd = Crowd(2)
    stream = stream_of(crowd)
    stream.stop()
    stream.data_received(answer(piece("a"), DONE))
    stream.connection_lost(None)
    await turn()
    assert crowd.seen == []
    assert crowd.wires[0].aborted
    stream.ask()
    assert crowd.over


async def test_an_unreachable_endpoint_fails_the_request(crowd: Crowd) -> None:
    def refused(stream: Stream) -> None:
        stream.fail("cannot connect: ConnectionRefusedError")

    crowd.connect = refused  # type: ignore[method-assign]
    stream_of(crowd)
    await turn()
    assert [each.error for each in crowd.seen] == ["cannot connect: ConnectionRefusedError"]


@pytest.mark.parametrize(
    ("delta", "content"),
    [
        ({"content": "a"}, True),
        ({"content": ""}, False),
        ({"role": "assistant", "content": None}, False),
        ({"reasoning_content": "a"}, True),
        ({"reasoning": "a"}, True),
        ({"tool_calls": [{"index": 0}]}, True),
    ],
)
def test_text_reasoning_and_tool_calls_are_content(delta: dict[str, object], content: bool) -> None:
    assert has_content({"choices": [{"delta": delta}]}) is content


def test_an_error_is_named_by_its_kind_not_by_its_message() -> None:
    assert kind_of({"message": "request 77 failed", "type": "server_error"}) == "server_error"
    assert kind_of({"message": "m", "code": 500}) == "500"
    assert kind_of("m") == "unnamed"


async def test_a_client_abort_is_a_cancellation_not_a_failure(crowd: Crowd) -> None:
    plain = crowd.next_request

    def given_up() -> tuple[Seen, bytes] | None:
        if (taken := plain()) is not None:
            taken[0].give_up = 0.0
        return taken

    crowd.next_request = given_up  # type: ignore[method-assign]
    stream = stream_of(crowd)
    stream.data_received(answer(piece("a"))[:-5])
    await crowd.ended_all.wait()
    assert [(each.cancelled, each.error, each.chunks) for each in crowd.seen] == [(True, None, 1)]
    assert crowd.seen[0].ended is not None
    assert crowd.wires[0].aborted


async def test_a_timeout_comes_before_a_later_cancellation(crowd: Crowd) -> None:
    plain, crowd.timeout = crowd.next_request, 0.0

    def given_up() -> tuple[Seen, bytes] | None:
        if (taken := plain()) is not None:
            taken[0].give_up = 1.0
        return taken

    crowd.next_request = given_up  # type: ignore[method-assign]
    stream_of(crowd)
    await crowd.ended_all.wait()
    assert [each.error for each in crowd.seen] == ["timed out after 0 s"]


async def test_events_are_kept_on_request(crowd: Crowd) -> None:
    plain = crowd.next_request

    def read() -> tuple[Seen, bytes] | None:
        if (taken := plain()) is not None:
            taken[0].events = []
        return taken

    crowd.next_request = read  # type: ignore[method-assign]
    seen = await outcome(crowd, answer(ROLE, piece("a"), piece("b"), DONE))
    assert seen.events == [ROLE[:-2], piece("a")[:-2], piece("b")[:-2], DONE[:-2]]
