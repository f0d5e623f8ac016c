"""The server's start and its end, in this process; tests/e2e has the same with real signals."""

import asyncio
import logging
import os
import signal
import socket
import threading

import pytest

from router.core.events import RequestEnded
from router.core.membership.membership import Target
from router.core.values import Endpoint, Role
from router.discovery.source import OnTargets, WrongConfiguration
from router.settings import Settings, SettingsError
from router.web.app import Router
from router.web.discovery import START_SECONDS
from router.web.server import FORCE_STOP, Server, tune_process
from tests.net.client import SECONDS, request
from tests.net.engine import json_reply
from tests.net.harness import Harness, Running, eventually, flow_of
from tests.net.payloads import COMPLETIONS, DONE, STREAM, completion, error_frame, token

NEVER = 3600.0


def _shut_down(router: Running) -> asyncio.Task[None]:
    """Begin the graceful end; afterwards the harness has nothing left to end."""
    return asyncio.ensure_future(router.server.shutdown())


async def test_a_stream_in_flight_is_finished(harness: Harness) -> None:
    engine = await harness.engine()
    router = await harness.router(engine, shutdown_grace=NEVER)
    client, idle = await router.client(), await router.client()
    assert (await idle.get("/ready")).status == 200
    await client.send(request(COMPLETIONS, STREAM))
    call = await engine.call()
    call.stream(token("a"))
    answer = await client.begin()
    await answer.until(token("a"))
    ending = _shut_down(router)
    assert await idle.ended() == b""  # connections that ask nothing are closed
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


async def test_what_is_not_finished_within_the_grace_ends_with_a_true_error(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await harness.engine()
    router = await harness.router(engine, shutdown_grace=0.05)
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
    assert error_frame(answer.body)["code"] == 503
    refusal = await waiting.answer()
    assert refusal.status == 503
    assert refusal.values(b"retry-after") == [b"1"]
    await first.left()
    await second.left()
    async with asyncio.timeout(SECONDS):
        await ending
    assert [r.outcome for r in router.all(RequestEnded)] == ["aborted", "aborted"]
    assert "2 requests were ended when the grace was over" in caplog.messages


async def test_what_waits_behind_an_answer_that_was_ended_is_not_begun(harness: Harness) -> None:
    engine = await harness.engine()
    router = await harness.router(engine, shutdown_grace=0.05)
    client = await router.client()
    await client.send(request(COMPLETIONS, STREAM) + request(COMPLETIONS, completion()))
    call = await engine.call()
    call.stream(token("a"))
    answer = await client.begin()
    await answer.until(token("a"))
    ending = _shut_down(router)
    await answer.rest()
    assert error_frame(answer.body)["code"] == 503
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
    engine = await harness.engine()
    router = await harness.router(engine, shutdown_grace=0.05)
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
async def test_a_signal_asks_for_the_graceful_end(harness: Harness, number: int) -> None:
    router = await harness.router(await harness.engine())
    with router.server.capture_signals():
        os.kill(os.getpid(), number)
        await eventually(lambda: router.server.should_exit)
    assert not router.server.force_exit


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_that_came_before_there_were_handlers_asks_for_it_too(
    harness: Harness, number: int
) -> None:
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
async def test_a_second_signal_ends_what_the_first_one_let_finish(
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
    assert error_frame(answer.body)["code"] == 503
    assert "1 requests were ended because of a second signal" in caplog.messages
    (line,) = [r for r in caplog.records if r.message.startswith("shutting down")]
    assert vars(line)["fields"] == {"requests": 1, "grace_seconds": NEVER}


async def test_a_workers_second_signal_is_its_parents_alone(harness: Harness) -> None:
    """systemd signals all processes of a service: workers hear the first signal twice."""
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


async def test_an_ipv6_address_is_logged_in_brackets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "router.web.server")
    server = Server(Router(Settings(decode=["http://127.0.0.1:9"], host="::1", port=0)))
    await _start(server)
    port = server.servers[0].sockets[0].getsockname()[1]
    (record,) = [r for r in caplog.records if r.message == "listening"]
    assert vars(record)["fields"]["url"] == f"http://[::1]:{port}"
    await server.shutdown()


async def test_a_server_that_did_not_start_says_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "router.web.server")
    router = Router(Settings(decode=["http://127.0.0.1:9"], port=0))

    async def fail() -> None:
        raise OSError

    monkeypatch.setattr(router.engines.prober, "probe_all", fail)
    server = Server(router)
    await _start(server)
    assert server.should_exit
    assert not [r for r in caplog.records if r.name == "router.web.server"]


async def test_a_router_that_is_told_to_end_while_it_starts_takes_nobodys_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    router = Router(Settings(decode=["http://127.0.0.1:9"], port=0))
    told: list[str] = []
    server = Server(router, on_listening=lambda: told.append("listening"))

    async def told_to_end() -> None:
        server.handle_exit(signal.SIGTERM, None)

    monkeypatch.setattr(router.engines.prober, "probe_all", told_to_end)
    await _start(server)
    assert told == []
    assert not server.started
    assert not router._tasks._tasks


class Source:
    """Names these engines when it has an answer; None: its configuration is wrong."""

    name = "pods"
    servers = ("pods",)

    def __init__(self) -> None:
        self.has_answer = asyncio.Event()
        self.targets: tuple[Target, ...] | None = ()

    async def watch(self, on_targets: OnTargets) -> None:
        """See `Source`."""
        await self.has_answer.wait()
        if self.targets is None:
            raise WrongConfiguration("no such selector; mend it")
        on_targets(self.targets)
        await asyncio.Event().wait()


class Heir:
    """A router that takes the place of another one, and waits for its source of engines."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture) -> None:
        log.set_level(logging.INFO, "router.web.server")
        self._log = log
        self.source = Source()
        monkeypatch.setattr("router.web.app.sources_of", lambda *_: [self.source])
        self.router = Router(Settings(decode=["http://127.0.0.1:9"], port=0))
        self.told: list[str] = []
        self.is_preceded = True
        self.server = Server(
            self.router,
            on_listening=lambda: self.told.append("listening"),
            is_preceded=lambda: self.is_preceded,
        )

    async def start(self) -> asyncio.Task[None]:
        """Until it waits."""
        starting = asyncio.ensure_future(_start(self.server))
        await eventually(lambda: "waiting for discovery" in self._log.text or starting.done())
        assert not starting.done()
        return starting


@pytest.fixture
def heir(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Heir:
    return Heir(monkeypatch, caplog)


async def test_who_takes_over_waits_until_engines_are_named_and_probes_them(
    heir: Heir, monkeypatch: pytest.MonkeyPatch
) -> None:
    probed: list[list[str]] = []

    async def probe_all() -> None:
        probed.append([member.endpoint.url for member in heir.router.fleet])

    monkeypatch.setattr(heir.router.engines.prober, "probe_all", probe_all)
    heir.source.targets = (Target(Endpoint("http://127.0.0.1:8", Role.DECODE)),)
    starting = await heir.start()
    assert heir.told == []
    heir.source.has_answer.set()
    await starting
    assert heir.told == ["listening"]
    assert probed == [["http://127.0.0.1:9"], ["http://127.0.0.1:9", "http://127.0.0.1:8"]]
    await heir.server.shutdown()


async def test_it_waits_no_longer_than_the_router_before_it_serves(heir: Heir) -> None:
    starting = await heir.start()
    heir.is_preceded = False
    await starting
    assert heir.told == ["listening"]
    await heir.server.shutdown()


async def test_it_ends_at_once_when_it_is_told_to_while_it_waits(heir: Heir) -> None:
    starting = await heir.start()
    heir.server.handle_exit(signal.SIGTERM, None)
    await starting
    assert heir.told == []
    assert not heir.router._tasks._tasks


async def test_it_ends_when_its_discovery_can_never_work(heir: Heir) -> None:
    starting = await heir.start()
    heir.source.targets = None
    heir.source.has_answer.set()
    await starting
    assert heir.told == []
    assert heir.router.exit_status == 2


async def test_discovery_that_can_never_work_ends_no_router_that_serves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source()
    source.targets = None
    source.has_answer.set()
    monkeypatch.setattr("router.web.app.sources_of", lambda *_: [source])
    router = Router(Settings(decode=["http://127.0.0.1:9"], port=0))
    router._began -= START_SECONDS  # as in a worker that takes the place of another one
    server = Server(router)
    await _start(server)
    await eventually(lambda: "no such selector" in caplog.text)
    assert not server.should_exit
    assert [member.endpoint.url for member in router.fleet] == ["http://127.0.0.1:9"]
    await server.shutdown()
    assert router.exit_status == 0


async def test_a_worker_that_cannot_start_again_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise OSError(24, "Too many open files")

    router = Router(Settings(decode=["http://127.0.0.1:9"], port=0))
    router._began -= START_SECONDS
    monkeypatch.setattr(router.clients, "start", fail)
    await _start(Server(router))
    assert router.exit_status == 1  # with 2 its parent ends all workers


async def test_without_another_router_nobody_waits_for_discovery(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("router.web.app.sources_of", lambda *_: [Source()])
    server = Server(Router(Settings(decode=["http://127.0.0.1:9"], port=0)))
    await _start(server)
    assert server.started
    await server.shutdown()


@pytest.mark.parametrize(
    "error", [SettingsError("--epp-port: taken"), OSError(98, "cannot listen on 127.0.0.1:9")]
)
async def test_a_router_that_cannot_start_says_why_in_a_line_and_ends_with_status_2(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error

    router = Router(Settings(decode=["http://127.0.0.1:9"], port=0))
    monkeypatch.setattr(router.clients, "start", fail)
    server = Server(router)
    await _start(server)
    assert not server.started
    assert server.should_exit
    assert router.exit_status == 2
    [line] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert line.message == f"cannot start: {error}"
    assert line.exc_info is None
    assert not router._tasks._tasks


async def _start(server: Server) -> None:
    """As uvicorn's `serve` does."""
    config = server.config
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()


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


def test_a_process_may_open_all_the_files_that_it_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits: list[tuple[int, int]] = [(10, 20)]
    monkeypatch.setattr("resource.getrlimit", lambda _: limits[-1])
    monkeypatch.setattr("resource.setrlimit", lambda _, pair: limits.append(pair))
    for name in ("freeze", "set_threshold"):
        monkeypatch.setattr(f"gc.{name}", lambda *_: None)
    tune_process()
    tune_process()
    assert limits == [(10, 20), (20, 20)]


def test_a_process_that_serves_has_made_its_applications_and_is_tuned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    router = Router(Settings(decode=["http://127.0.0.1:9"]))
    seen: list[str] = []
    monkeypatch.setattr(router, "prepare", lambda: seen.append("prepared"))
    monkeypatch.setattr("router.web.server.tune_process", lambda: seen.append("tuned"))
    monkeypatch.setattr("uvicorn.Server.run", lambda *_: seen.append("served"))
    Server(router).run([])
    assert seen == ["prepared", "tuned", "served"]
