"""The server's start and its end, in this process; tests/e2e has the same with real signals."""

import asyncio
import logging
import os
import signal
import socket
import threading

import pytest

from router.core.events import RequestEnded
from router.settings import Settings, SettingsError
from router.web.app import Router
from router.web.server import FORCE_STOP, Server, tune_process
from tests.net.client import SECONDS, request
from tests.net.engine import json_reply
from tests.net.harness import Harness, Running, eventually, flow_of
from tests.net.payloads import COMPLETIONS, DONE, STREAM, completion, error_in, token
from tests.web.startup import start

NEVER = 3600.0


def _shut_down(router: Running) -> asyncio.Task[None]:
    """Begin the graceful end; afterwards the harness has nothing left to end."""
    return asyncio.ensure_future(router.server.shutdown())


async def test_a_stream_in_flight_is_finished(harness: Harness) -> None:
    engine, router = await harness.single(shutdown_grace=NEVER)
    client, idle = await router.client(), await router.client()
    assert (await idle.get("/ready")).status == 200
    await client.send(request(COMPLETIONS, STREAM))
    call = await engine.call()
    call.stream(token("a"))
    answer = await client.begin()
    await answer.until(token("a"))
    ending = _shut_down(router)
    assert await idle.ended() == b""  # idle connections are closed
    with pytest.raises(ConnectionRefusedError):
        await router.client()
    assert not ending.done()
    call.end(DONE)
    await answer.rest()
    assert answer.body == token("a") + DONE
    assert await client.ended() == b""
    async with asyncio.timeout(SECONDS):
        await ending
    assert (await router.record()).outcome == "ok"


async def test_unfinished_streams_end_with_an_error_after_the_grace_period(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    engine, router = await harness.single(shutdown_grace=0.05)
    streaming, waiting = await router.client(), await router.client()
    await streaming.send(request(COMPLETIONS, STREAM))
    first = await engine.call()
    first.stream(token("a"))
    answer = await streaming.begin()
    await answer.until(token("a"))
    await waiting.send(request(COMPLETIONS, completion()))
    second = await engine.call()
    ending = _shut_down(router)
    await answer.rest()
    assert answer.body.startswith(token("a"))
    assert error_in(answer.body)["code"] == 503
    refusal = await waiting.answer()
    assert refusal.status == 503
    assert refusal.values(b"retry-after") == [b"1"]
    await first.left()
    await second.left()
    async with asyncio.timeout(SECONDS):
        await ending
    assert [r.outcome for r in router.all(RequestEnded)] == ["aborted", "aborted"]
    assert "2 requests were ended when the grace was over" in caplog.messages


async def test_pipelined_requests_after_an_aborted_answer_do_not_start(harness: Harness) -> None:
    engine, router = await harness.single(shutdown_grace=0.05)
    client = await router.send(COMPLETIONS, STREAM)
    await client.send(request(COMPLETIONS, completion()))
    call = await engine.call()
    call.stream(token("a"))
    answer = await client.begin()
    await answer.until(token("a"))
    ending = _shut_down(router)
    await answer.rest()
    assert error_in(answer.body)["code"] == 503
    assert (await client.answer()).status == 503
    async with asyncio.timeout(SECONDS):
        await ending
    assert engine.seen == 1
    assert [r.outcome for r in router.all(RequestEnded)] == ["aborted", "aborted"]


async def test_a_connection_that_was_just_accepted_does_not_hold_up_the_end(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.net.client.client_connection.HEAD_SECONDS", NEVER)
    router = await harness.router(await harness.engine(), shutdown_grace=NEVER)
    with socket.create_connection(("127.0.0.1", router.port)):
        (listener,) = router.server.servers
        listener._accept()  # type: ignore[attr-defined]
        async with asyncio.timeout(SECONDS):
            await router.server.shutdown()
    assert not router.connections


async def test_a_router_on_its_way_out_is_not_ready(harness: Harness) -> None:
    router = await harness.router(await harness.engine())
    client = await router.client()
    router.router.lifecycle.is_draining = True
    answer = await client.get("/ready")
    assert answer.status == 503
    assert answer.error["message"] == "The router is shutting down."
    assert (await client.get("/health")).status == 200


async def test_a_client_that_does_not_read_does_not_hold_up_the_end(
    harness: Harness, complaints: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.web.server.FLUSH_SECONDS", 0.05)
    engine, router = await harness.single(shutdown_grace=0.05)
    client = await router.client(receive_buffer=4096)
    await client.send(request(COMPLETIONS, STREAM))
    call = await engine.call()
    call.stream(*[token("x" * 1000)] * 10_000)
    (connection,) = router.connections
    await eventually(lambda: flow_of(connection).write_paused)
    async with asyncio.timeout(SECONDS):
        await _shut_down(router)
    await call.left()
    complaints.clear()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_starts_the_graceful_shutdown(harness: Harness, number: int) -> None:
    router = await harness.router(await harness.engine())
    with router.server.capture_signals():
        os.kill(os.getpid(), number)
        await eventually(lambda: router.server.should_exit)
    assert not router.server.force_exit


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_before_the_handlers_starts_it_too(harness: Harness, number: int) -> None:
    """It is blocked until then, as workers begin."""
    router = await harness.router(await harness.engine())
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        signal.pthread_kill(threading.main_thread().ident or 0, number)
        with router.server.capture_signals():
            await eventually(lambda: router.server.should_exit)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_draining_streams(
    harness: Harness, second: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "router.web.server")
    _, router, client, call = await harness.stream(shutdown_grace=NEVER)
    call.stream(token("a"))
    answer = await client.begin()
    await answer.until(token("a"))
    with router.server.capture_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        await eventually(lambda: router.server.should_exit)
        ending = _shut_down(router)
        await eventually(lambda: "shutting down; a second signal ends at once" in caplog.messages)
        assert not ending.done()
        os.kill(os.getpid(), second)
        await answer.rest()
        async with asyncio.timeout(SECONDS):
            await ending
    assert error_in(answer.body)["code"] == 503
    assert "1 requests were ended because of a second signal" in caplog.messages
    (line,) = [r for r in caplog.records if r.message.startswith("shutting down")]
    assert vars(line)["fields"] == {"requests": 1, "grace_seconds": NEVER}


async def test_a_workers_second_signal_is_its_parents_alone(harness: Harness) -> None:
    """systemd signals all processes of a service: workers get the first signal twice."""
    reading, writing = os.pipe()
    try:
        server = Server(Router(Settings(decode=["http://d"])), reading)
        with server.capture_signals():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
                os.kill(os.getpid(), number)
            await eventually(lambda: server.should_exit)
            assert not server.force_exit
            os.kill(os.getpid(), FORCE_STOP)
            await eventually(lambda: server.force_exit)
            asyncio.get_running_loop().remove_reader(reading)
    finally:
        os.close(reading)
        os.close(writing)


async def test_the_address_is_logged_with_the_port_that_was_taken(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "router.web.server")
    router = await harness.router(await harness.engine())
    (record,) = [r for r in caplog.records if r.message == "listening"]
    assert vars(record)["fields"]["url"] == f"http://127.0.0.1:{router.port}"


async def test_ipv6_address_is_in_brackets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "router.web.server")
    server = Server(Router(Settings(decode=["http://127.0.0.1:9"], host="::1", port=0)))
    await start(server)
    port = server.servers[0].sockets[0].getsockname()[1]
    (record,) = [r for r in caplog.records if r.message == "listening"]
    assert vars(record)["fields"]["url"] == f"http://[::1]:{port}"
    await server.shutdown()


@pytest.mark.parametrize(
    ("host", "admin_port", "shown"),
    [
        *(("127.0.0.1", None, "127.0.0.1"), ("::1", None, "[::1]")),
        *(("0.0.0.0", None, "localhost"), ("::", 0, "localhost")),
    ],
)
async def test_the_log_names_the_live_page_where_a_browser_on_the_host_finds_it(
    caplog: pytest.LogCaptureFixture, host: str, admin_port: int | None, shown: str
) -> None:
    caplog.set_level(logging.INFO, "router.web.server")
    settings = Settings(decode=["http://127.0.0.1:9"], host=host, port=0, admin_port=admin_port)
    server = Server(Router(settings))
    await start(server)
    listening = server.servers[0].sockets[0] if server.admin is None else server.admin.socket
    (record,) = [r for r in caplog.records if r.message == "listening"]
    port = listening.getsockname()[1]
    assert vars(record)["fields"]["live_page"] == f"http://{shown}:{port}/dashboard"
    await server.shutdown()


async def test_a_server_that_did_not_start_logs_no_shutdown(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "router.web.server")
    router = Router(Settings(decode=["http://127.0.0.1:9"], port=0))

    async def fail() -> None:
        raise OSError

    monkeypatch.setattr(router.engines.prober, "probe_all", fail)
    server = Server(router)
    await start(server)
    assert server.should_exit
    assert not [r for r in caplog.records if r.name == "router.web.server"]


async def test_a_router_stopped_during_startup_takes_over_no_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    router = Router(Settings(decode=["http://127.0.0.1:9"], port=0))
    told: list[str] = []
    server = Server(router, on_listening=lambda: told.append("listening"))

    async def told_to_end() -> None:
        server.handle_exit(signal.SIGTERM, None)

    monkeypatch.setattr(router.engines.prober, "probe_all", told_to_end)
    await start(server)
    assert told == []
    assert not server.started
    assert not router._tasks._tasks


@pytest.mark.parametrize(
    "error", [SettingsError("--epp-port: taken"), OSError(98, "cannot listen on 127.0.0.1:9")]
)
async def test_a_router_that_cannot_start_logs_one_line_and_exits_with_status_2(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error

    router = Router(Settings(decode=["http://127.0.0.1:9"], port=0))
    monkeypatch.setattr(router.clients, "start", fail)
    server = Server(router)
    await start(server)
    assert not server.started
    assert server.should_exit
    assert router.lifecycle.exit_status == 2
    [line] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert line.message == f"cannot start: {error}"
    assert line.exc_info is None
    assert not router._tasks._tasks


async def test_fractions_of_seconds_count() -> None:
    settings = Settings(decode=["http://d"], keep_alive_timeout=0.5, shutdown_grace=0.25)
    router = Router(settings)
    assert router.handler.keep_alive_seconds == 0.5
    assert Server(router)._router.settings.shutdown_grace == 0.25


async def test_two_routers_live_in_one_process(harness: Harness) -> None:
    one, other = await harness.engine(), await harness.engine()
    first, second = await harness.router(one), await harness.router(other)
    one.answer_all(lambda call: call.send(json_reply({"from": 1})))
    other.answer_all(lambda call: call.send(json_reply({"from": 2})))
    assert (await first.ask(COMPLETIONS, completion())).json == {"from": 1}
    assert (await second.ask(COMPLETIONS, completion())).json == {"from": 2}
    assert len(first.all(RequestEnded)) == len(second.all(RequestEnded)) == 1


def test_process_may_open_all_allowed_files(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, int]] = [(10, 20)]
    monkeypatch.setattr("resource.getrlimit", lambda _: limits[-1])
    monkeypatch.setattr("resource.setrlimit", lambda _, pair: limits.append(pair))
    for name in ("freeze", "set_threshold"):
        monkeypatch.setattr(f"gc.{name}", lambda *_: None)
    tune_process()
    tune_process()
    assert limits == [(10, 20), (20, 20)]


def test_serving_process_is_built_and_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    router = Router(Settings(decode=["http://127.0.0.1:9"]))
    seen: list[str] = []
    monkeypatch.setattr(router, "prepare", lambda: seen.append("prepared"))
    monkeypatch.setattr("router.web.server.tune_process", lambda: seen.append("tuned"))
    monkeypatch.setattr("uvicorn.Server.run", lambda *_: seen.append("served"))
    Server(router).run([])
    assert seen == ["prepared", "tuned", "served"]
