from typing import Any

import orjson
import pytest

from benchmarks.engines import frames
from benchmarks.loadgen.client import Client, Record
from benchmarks.loadgen.plan import Plan, requests

OK = frames.STREAM_HEAD + frames.ROLE + frames.TOKENS[0] + frames.stream_tail(True, 9, 2)
EVENTS = frames.stream_events(2, True)


class Load:
    """A load of one client."""

    def __init__(self, events_expected: int | None = EVENTS) -> None:
        self.record = Record()
        self.issuing = True
        self.active = 0
        self.events_expected = events_expected
        self.reconnects = self.idles = 0

    def next_request(self) -> bytes | None:
        return b"request" if self.issuing else None

    def reconnect(self, client: Client) -> None:
        self.reconnects += 1

    def idle(self, client: Client) -> None:
        self.idles += 1


class Transport:
    def __init__(self, client: Client) -> None:
        self.client, self.written, self.aborted = client, b"", False

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = True
        self.client.connection_lost(None)


def connected(load: Load) -> tuple[Client, Transport]:
    client = Client(load, ("127.0.0.1", 1))
    transport = Transport(client)
    client.connection_made(transport)  # type: ignore[arg-type]
    return client, transport


def test_a_whole_stream_is_a_request_and_the_next_one_follows() -> None:
    load = Load()
    client, transport = connected(load)
    client.data_received(OK)
    assert (load.record.requests, load.record.events, load.record.reads) == (1, EVENTS, 1)
    assert (len(load.record.first), len(load.record.gaps)) == (1, 0)
    [span] = load.record.spans
    assert span.started <= span.first <= span.ended
    assert transport.written == b"requestrequest"
    assert load.active == 1


@pytest.mark.parametrize("size", [1, 7, 100])
def test_reads_of_any_size(size: int) -> None:
    load = Load()
    client, _ = connected(load)
    for start in range(0, len(OK), size):
        client.data_received(OK[start : start + size])
    assert (load.record.requests, load.record.events) == (1, EVENTS)
    assert len(load.record.first) == 1
    assert len(load.record.gaps) == load.record.reads - 1


def test_an_answer_without_a_stream_counts_when_it_is_whole() -> None:
    load = Load(events_expected=None)
    client, _ = connected(load)
    client.data_received(frames.completion(9, 1))
    assert (load.record.requests, len(load.record.first), load.record.events) == (1, 1, 0)


def wrong(data: bytes, events_expected: int | None = EVENTS) -> list[str]:
    load = Load(events_expected)
    client, transport = connected(load)
    client.data_received(data)
    assert (load.record.requests, load.active) == (0, 0)
    assert transport.aborted
    assert load.reconnects == 1
    assert load.record.spans == []
    return list(load.record.failures)


def test_what_is_wrong_is_named() -> None:
    cut = frames.STREAM_HEAD + frames.ROLE + frames.DONE
    error = frames.http_chunk(b'data: {"error":{"code":500}}\n\n')
    assert wrong(frames.failure(400, "no")) == ["status 400"]
    assert wrong(cut) == [f"2 of {EVENTS} events, done: True"]
    assert wrong(frames.STREAM_HEAD + error + frames.DONE) == ["error event"]
    assert wrong(frames.reply(200, b""), None) == ["empty body"]
    assert wrong(b"nonsense\r\n\r\n")[0].startswith("malformed response")


def test_a_lost_connection_is_a_failure_once() -> None:
    load = Load()
    client, _ = connected(load)
    client.data_received(frames.STREAM_HEAD + frames.ROLE)
    client.connection_lost(None)
    assert load.record.failures == {"connection lost": 1}
    assert (load.active, load.reconnects) == (0, 1)


def test_when_the_load_is_over_nothing_more_is_asked() -> None:
    load = Load()
    client, transport = connected(load)
    load.issuing = False
    client.data_received(OK)
    assert (transport.written, load.idles) == (b"request", 1)
    client.connection_lost(None)
    assert load.reconnects == 0


def plan(**changes: Any) -> Plan:
    given: dict[str, Any] = {
        "targets": [["127.0.0.1", 1]],
        "clients": 1,
        "tokens": 2,
        "stream": True,
    }
    given |= {"prompt_bytes": 100, "ramp_s": 0.1, "window_s": 0.1, "drain_s": 1.0}
    return Plan(**(given | changes))


def test_a_plan_survives_the_command_line() -> None:
    assert Plan.decode(plan().encode()) == plan()


def test_the_request_has_the_prompt_that_was_asked_for() -> None:
    [small], [large] = requests(plan()), requests(plan(prompt_bytes=5100))
    assert len(large) - len(small) in (5000, 5001)  # content-length itself may grow by a digit
    assert b'"stream":true' in small
    assert b'"stream_options"' not in requests(plan(stream=False))[0]


def test_a_jobs_prompts_are_distinct_from_the_first_words_on() -> None:
    made = requests(plan(requests=500, prompts=100))
    bodies = [orjson.loads(each.partition(b"\r\n\r\n")[2]) for each in made]
    texts = {body["messages"][0]["content"] for body in bodies}
    assert len(texts) == 100
    assert {len(text) for text in texts} == {100}
    assert all(text.startswith(frames.JOB_MARK.decode()) for text in texts)
    assert {body["temperature"] for body in bodies} == {0}
    assert frames.JOB_MARK not in requests(plan())[0]
