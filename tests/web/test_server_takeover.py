"""A router that takes another one's place waits until discovery has named engines."""

import asyncio
import logging
import signal

import pytest

from router.core.membership.entry import Target
from router.core.values import Endpoint, Role
from router.discovery.source import OnTargets, WrongConfiguration
from router.settings import Settings
from router.web.app import Router
from router.web.lifecycle import START_SECONDS
from router.web.server import Server
from tests.net.harness import eventually
from tests.web.startup import start


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
        starting = asyncio.ensure_future(start(self.server))
        await eventually(lambda: "waiting for discovery" in self._log.text or starting.done())
        assert not starting.done()
        return starting


@pytest.fixture
def heir(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Heir:
    return Heir(monkeypatch, caplog)


async def test_a_takeover_waits_for_the_list_of_engines_and_their_probes(
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


async def test_it_ends_at_once_when_stopped_during_a_wait(heir: Heir) -> None:
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
    assert heir.router.lifecycle.exit_status == 2


async def test_discovery_that_can_never_work_ends_no_router_that_serves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source()
    source.targets = None
    source.has_answer.set()
    monkeypatch.setattr("router.web.app.sources_of", lambda *_: [source])
    router = Router(Settings(decode=["http://127.0.0.1:9"], port=0))
    router.lifecycle._began -= START_SECONDS  # as in a worker that takes the place of another one
    server = Server(router)
    await start(server)
    await eventually(lambda: "no such selector" in caplog.text)
    assert not server.should_exit
    assert [member.endpoint.url for member in router.fleet] == ["http://127.0.0.1:9"]
    await server.shutdown()
    assert router.lifecycle.exit_status == 0


async def test_failed_restart_spares_other_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(24, "Too many open files")

    router = Router(Settings(decode=["http://127.0.0.1:9"], port=0))
    router.lifecycle._began -= START_SECONDS
    monkeypatch.setattr(router.clients, "start", fail)
    await start(Server(router))
    assert router.lifecycle.exit_status == 1  # with 2 its parent ends all workers


async def test_without_another_router_discovery_is_not_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("router.web.app.sources_of", lambda *_: [Source()])
    server = Server(Router(Settings(decode=["http://127.0.0.1:9"], port=0)))
    await start(server)
    assert server.started
    await server.shutdown()
