import asyncio
from typing import Any

import orjson
import pytest

from benchmarks.engines import frames
from benchmarks.loadgen.crowd import Client, Crowd
from benchmarks.loadgen.plan import Plan, requests
from benchmarks.streaming.client import Stream

OK = frames.STREAM_HEAD + frames.ROLE + frames.TOKENS[0] + frames.stream_tail(True, 9, 2)
EVENTS = frames.stream_events(2, True)


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written, self.aborted = b"", False

    def write(self, data: Any) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = True


class Load(Crowd):
    """A load of one client, over transports of its own."""

    over = False

    def __init__(self, *, stream: bool = True) -> None:
        super().__init__(plan(stream=stream))
        self.retry_s = 0.0
        self.transports: list[Transport] = []
        self.idles = 0

    @property
    def issuing(self) -> bool:
        return not self.over

    def connect(self, stream: Stream) -> None:
        self.transports.append(Transport())
        stream.connection_made(self.transports[-1])

    def idle(self, stream: Stream) -> None:
        self.idles += 1


def connected(load: Load) -> tuple[Client, Transport]:
    [client] = load.clients
    client.ask()
    return client, load.transports[0]


async def turn() -> None:
    """Run the scheduled callbacks."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_whole_stream_is_a_request_and_the_next_one_follows() -> None:
    load = Load()
    client, transport = connected(load)
    client.data_received(OK)
    assert (load.record.requests, load.record.events, load.record.reads) == (1, EVENTS, 1)
    assert (len(load.record.first), len(load.record.gaps)) == (1, 0)
    [span] = load.record.spans
    assert span.started <= span.first <= span.ended
    await turn()
    assert transport.written == 2 * requests(load.plan)[0]
    assert (load.active, len(load.transports)) == (1, 1)


@pytest.mark.parametrize("size", [1, 7, 100])
async def test_reads_of_any_size(size: int) -> None:
    load = Load()
    client, _ = connected(load)
    for start in range(0, len(OK), size):
        client.data_received(OK[start : start + size])
    assert (load.record.requests, load.record.events) == (1, EVENTS)
    assert len(load.record.first) == 1
    assert len(load.record.gaps) == load.record.reads - 1


async def test_an_answer_without_a_stream_counts_when_it_is_whole() -> None:
    load = Load(stream=False)
    client, _ = connected(load)
    client.data_received(frames.completion(9, 1))
    assert (load.record.requests, len(load.record.first), load.record.events) == (1, 1, 0)


ERROR = frames.http_chunk(b'data: {"error":{"code":500}}\n\n')


@pytest.mark.parametrize(
    ("data", "stream", "reason"),
    [
        (frames.failure(400, "no"), True, "status 400"),
        (frames.STREAM_HEAD + frames.ROLE + frames.DONE, True, f"2 of {EVENTS} events, done: True"),
        (frames.STREAM_HEAD + ERROR + frames.DONE, True, "error event"),
        (OK.replace(b"[DONE]", b"[OVER]"), True, f"{EVENTS} of {EVENTS} events, done: False"),
        (frames.reply(200, b""), False, "empty body"),
        (b"nonsense\r\n\r\n", True, "malformed answer"),
    ],
)
async def test_the_error_is_named_and_its_client_reconnects(
    data: bytes, stream: bool, reason: str
) -> None:
    load = Load(stream=stream)
    client, transport = connected(load)
    client.data_received(data)
    assert (load.record.requests, load.active, load.record.spans) == (0, 0, [])
    assert transport.aborted
    [found] = load.record.failures
    assert found.startswith(reason)
    await turn()
    assert (load.active, len(load.transports)) == (1, 2)


async def test_a_lost_connection_is_a_failure_once() -> None:
    load = Load()
    client, _ = connected(load)
    client.data_received(frames.STREAM_HEAD + frames.ROLE)
    client.connection_lost(None)
    assert load.record.failures == {"connection lost": 1}
    assert load.active == 0
    await turn()
    assert len(load.transports) == 2


async def test_no_sample_is_taken_after_the_load() -> None:
    load = Load()
    client, transport = connected(load)
    load.over = True
    client.data_received(OK)
    await turn()
    assert (transport.written, load.idles) == (requests(load.plan)[0], 1)
    client.connection_lost(None)
    await turn()
    assert len(load.transports) == 1


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


def test_the_request_has_the_requested_prompt() -> None:
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
