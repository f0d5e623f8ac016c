import dataclasses
from typing import Any

import orjson
import pytest

from benchmarks.engines import frames, handover
from benchmarks.engines.engine import PREFILL_STEPS, Connection, Engine, Plan
from benchmarks.engines.speed import FREEZE, Change


class Transport:
    """Keeps what was written."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True


WINDOW = Plan(decode_engines=1, prefill_engines=0, step_s=0.01)
JOB = Plan(decode_engines=1, prefill_engines=0, step_s=0.01, slots=1)


def to(engine: Engine) -> tuple[Connection, Transport]:
    connection, transport = Connection(engine), Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    return connection, transport


def connect(role: str = "decode", plan: Plan = WINDOW) -> tuple[Engine, Connection, Transport]:
    engine = Engine(0, role, plan)
    return engine, *to(engine)


def post(connection: Connection, body: dict[str, Any], path: str = "/v1/chat/completions") -> None:
    payload = orjson.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nhost: e\r\ncontent-length: {len(payload)}\r\n\r\n"
    connection.data_received(head.encode() + payload)


STREAM: dict[str, Any] = {
    "max_tokens": 2,
    "stream": True,
    "stream_options": {"include_usage": True},
}


def test_a_stream_has_its_first_token_at_once_and_one_more_with_each_step() -> None:
    engine, connection, transport = connect()
    post(connection, STREAM | {"max_tokens": 3})
    assert transport.written == frames.STREAM_HEAD + frames.ROLE + frames.TOKENS[2]
    engine.step()
    assert transport.written.endswith(frames.TOKENS[1])
    engine.step()
    assert transport.written.endswith(frames.DONE)
    assert engine.batch.running == {}


def test_a_stream_of_one_token_is_over_at_once() -> None:
    engine, connection, transport = connect()
    post(connection, STREAM | {"max_tokens": 1})
    assert transport.written.startswith(frames.STREAM_HEAD + frames.ROLE + frames.LAST_TOKEN)
    assert transport.written.endswith(frames.DONE)
    assert engine.batch.running == {}


def test_a_client_that_leaves_ends_its_stream() -> None:
    engine, connection, _transport = connect()
    post(connection, STREAM)
    connection.connection_lost(None)
    engine.step()
    assert (engine.batch.running, engine.seen["aborted"]) == ({}, 1)


async def test_an_answer_without_a_stream_comes_whole() -> None:
    engine, connection, transport = connect()
    post(connection, {"max_tokens": 2})
    engine.step()
    assert transport.written == b""
    engine.batch.finish(connection)
    assert b'"finish_reason":"length"' in transport.written
    engine.batch.finish(connection)  # its timer, after the client has left


def test_a_prefill_engine_returns_kv_parameters_on_request() -> None:
    engine, connection, transport = connect("prefill")
    post(connection, {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}})
    body = orjson.loads(transport.written.partition(b"\r\n\r\n")[2])
    assert body["kv_transfer_params"]["remote_engine_id"] == "bench-prefill-0"
    post(connection, {"max_tokens": 1})
    assert b'"kv_transfer_params":null' in transport.written
    assert engine.seen["prefills"] == 2


def test_a_decode_engine_takes_the_handover() -> None:
    engine, connection, _transport = connect()
    post(connection, STREAM | {"kv_transfer_params": handover.given(3, 3000)})
    assert engine.seen == {"decodes with handover": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"remote_block_ids": None},
        {"remote_block_ids": [[7, 9]]},
        {"remote_engine_id": "other"},
        {"do_remote_prefill": False},
    ],
)
def test_a_handover_that_was_changed_is_refused(change: dict[str, Any]) -> None:
    engine, connection, transport = connect()
    post(connection, STREAM | {"kv_transfer_params": handover.given(3, 3000) | change})
    assert transport.written.startswith(b"HTTP/1.1 400")
    assert engine.seen == {"bad handovers": 1}


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/version"])
def test_probes_of_routers(path: str) -> None:
    _, connection, transport = connect()
    connection.data_received(f"GET {path}?x=1 HTTP/1.1\r\nhost: e\r\n\r\n".encode())
    assert transport.written.startswith(b"HTTP/1.1 200 OK")


def test_unknown_paths_and_invalid_http() -> None:
    _, connection, transport = connect()
    connection.data_received(b"GET /get_load HTTP/1.1\r\nhost: e\r\n\r\n")
    post(connection, {}, "/v1/other")
    assert transport.written.count(b"HTTP/1.1 404") == 2
    connection.data_received(b"\x00\x00\r\n\r\n")
    assert transport.closed


def test_with_slots_the_first_event_comes_with_the_first_token() -> None:
    engine, connection, transport = connect(plan=JOB)
    post(connection, STREAM)
    assert transport.written == frames.STREAM_HEAD
    engine.step()
    assert transport.written.startswith(frames.STREAM_HEAD + frames.ROLE + frames.TOKENS[1])
    engine.step()
    assert transport.written.endswith(frames.DONE)
    assert transport.written.count(frames.ROLE) == 1


def test_one_token_is_a_whole_stream() -> None:
    engine, connection, transport = connect(plan=JOB)
    post(connection, STREAM | {"max_tokens": 1})
    engine.step()
    assert transport.written.count(frames.ROLE) == 1
    assert transport.written.endswith(frames.DONE)


def test_the_gauges_count_running_and_waiting_requests() -> None:
    engine, first, _ = connect(plan=JOB)
    second, waiting = to(engine)
    post(first, STREAM)
    post(second, STREAM)
    engine.step()
    assert waiting.written == frames.STREAM_HEAD
    assert b'num_requests_running{engine="0",model_name="bench"} 1.0' in engine.get(b"/metrics")
    assert b'num_requests_waiting{engine="0",model_name="bench"} 1.0' in engine.get(b"/metrics")
    second.connection_lost(None)
    assert b'num_requests_waiting{engine="0",model_name="bench"} 0.0' in engine.get(b"/metrics")


def gauges(engine: Engine) -> tuple[bool, bool]:
    """Whether one request runs, and whether one waits, by what routers read."""
    text = engine.get(b"/metrics")
    running, waiting = (
        f'num_requests_{state}{{engine="0",model_name="bench"}} 1.0'.encode() in text
        for state in ("running", "waiting")
    )
    return running, waiting


def test_request_in_prefill_counts_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("benchmarks.engines.engine.time.monotonic", lambda: now[0])
    plan = dataclasses.replace(JOB, slots=2, prefill_s=0.04, changes=[Change(0, 0, 2)])
    engine, connection, transport = connect(plan=plan)
    engine.beat()
    post(connection, STREAM)
    now[0] += 0.07  # at half the speed a prefill takes 80 ms
    engine.step()
    assert (transport.written, gauges(engine)) == (frames.STREAM_HEAD, (False, True))
    now[0] += 0.02
    engine.step()
    assert transport.written.endswith(frames.TOKENS[1])
    assert gauges(engine) == (True, False)


def test_prefill_engines_differ_from_decode_engines() -> None:
    plan = dataclasses.replace(JOB, prefill_engines=1, prefill_s=1000.0)
    engine, connection, transport = connect(plan=plan)
    post(connection, STREAM)
    engine.step()
    assert transport.written.endswith(frames.TOKENS[1])


def test_an_answer_without_a_stream_takes_a_slot_and_its_steps() -> None:
    engine, connection, transport = connect(plan=JOB)
    post(connection, {"max_tokens": 2})
    engine.step()
    assert transport.written == b""
    engine.step()
    assert b'"finish_reason":"length"' in transport.written


def test_a_prefill_takes_its_steps_and_a_slot() -> None:
    plan = Plan(decode_engines=0, prefill_engines=1, step_s=0.01, prefill_s=0.04, prefill_slots=1)
    engine, first, done = connect("prefill", plan)
    second, waits = to(engine)
    post(first, {"max_tokens": 1})
    post(second, {"max_tokens": 1})
    assert engine.beat_s == 0.04 / PREFILL_STEPS
    for _ in range(PREFILL_STEPS):
        assert done.written == b""
        engine.beat()
    assert done.written.startswith(b"HTTP/1.1 200")
    assert waits.written == b""
    for _ in range(PREFILL_STEPS):
        engine.beat()
    assert waits.written.startswith(b"HTTP/1.1 200")


def test_a_slow_engine_steps_at_some_beats_and_a_frozen_one_at_none() -> None:
    slow, frozen = (
        connect(plan=dataclasses.replace(JOB, changes=[Change(0, 0, factor)]))
        for factor in (4, FREEZE)
    )
    for engine, connection, _ in (slow, frozen):
        post(connection, STREAM | {"max_tokens": 3})
        for _ in range(8):
            engine.beat()
    assert slow[2].written.count(b"data: ") == 3
    assert frozen[2].written == frames.STREAM_HEAD


def test_a_jobs_requests_are_distinguished_from_the_routers_own() -> None:
    engine, connection, _ = connect(plan=JOB)
    words = frames.JOB_MARK.decode() + "7. "
    post(connection, STREAM | {"messages": [{"role": "user", "content": words}]})
    post(connection, STREAM)
    warming = frames.WARM_UP_MARK.decode() + "7. "
    post(connection, STREAM | {"messages": [{"role": "user", "content": warming}]})
    assert engine.arrivals == {0: 1}
    assert engine.seen["requests of the router's own"] == 1
    assert engine.seen["warm-up requests"] == 1


def test_a_plan_survives_the_command_line() -> None:
    plan = dataclasses.replace(JOB, changes=[Change(0, 0, 8), Change(1.5, 0, FREEZE)])
    assert Plan.decode(plan.encode()) == plan
