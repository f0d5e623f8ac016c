"""Real engines and a real router for the tests of this folder.

They are collected only with `-m engines`: a plain `pytest` must neither start vLLM nor skip, and
with the marker a lab that is missing is a failure, never a skip.
"""

import os
import sys
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from benchmarks.system.ports import free_port
from tests.engines import lab, observe
from tests.engines.layout import LabError, Layout, layout
from tests.engines.service import Service

THRESHOLD = 64
"""Estimated tokens, 256 characters: between the short and the long prompts of `traffic`."""
SECONDS_PER_TEST = 300
"""Three engines may have to start first, which takes a minute on a busy machine."""
HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore this folder without its marker; None leaves it to other hooks."""
    return None if "engines" in config.getoption("markexpr") else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test in here needs engines, and time for them to start."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.engines)
            item.add_marker(pytest.mark.timeout(SECONDS_PER_TEST))


@dataclass(frozen=True)
class Engines:
    """The fleet of the lab."""

    prefill: Service
    decodes: tuple[Service, ...]

    @property
    def all(self) -> tuple[Service, ...]:
        return (self.prefill, *self.decodes)

    def restore(self) -> None:
        """Bring back what a test froze or killed."""
        for engine in self.all:
            engine.thaw()
        lab.start(layout(), self.all)


def fleet_of(services: Sequence[Service]) -> Iterator[Engines]:
    """A prefill engine and its decode engines, running until the generator is closed; those that
    run already are used, and left running."""
    try:
        running = lab.start(layout(), services)
    except LabError as error:
        pytest.fail(str(error), pytrace=False)
    try:
        yield Engines(services[0], tuple(services[1:]))
    finally:
        for engine in running:
            engine.stop()


@pytest.fixture(scope="session")
def engines() -> Iterator[Engines]:
    """One prefill and two decode engines; those that `lab start` left running are used."""
    yield from fleet_of(lab.engines(layout()))


@pytest.fixture(scope="session")
def router(engines: Engines) -> Iterator[Service]:
    """The router in front of the engines, with its default settings but for two."""
    yield from started(router_of(engines, layout()))


def started(service: Service) -> Iterator[Service]:
    """The service, running and ready, until the generator is closed."""
    service.stop()  # one that an interrupted run left behind
    try:
        service.start()
        service.wait_ready(30)
    except LabError as error:
        pytest.fail(str(error), pytrace=False)
    try:
        yield service
    finally:
        service.stop()


def router_of(
    engines: Engines, where: Layout, *more: str, name: str = "router", first: str = "--prefill"
) -> Service:
    """A router in front of the engines, not running. `more`: further options; `first`: that of the
    first engine."""
    port = free_port()
    options = [
        *("--host", "127.0.0.1", "--port", str(port)),
        *(first, engines.prefill.url),
        *(word for engine in engines.decodes for word in ("--decode", engine.url)),
        *("--routing-threshold", str(THRESHOLD)),
        *("--speed-probe-interval", "0"),  # tests count the tokens that engines compute
        *more,
    ]
    # PD_ROUTER_LAB is the lab's; the router refuses variables of its prefix that it does not know.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PD_ROUTER_")}
    return Service(
        name=name,
        url=f"http://127.0.0.1:{port}",
        ready_path="/ready",
        command=(sys.executable, "-m", "router", "serve", *options),
        environment=environment,
        run=where.run,
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the router's output if a test of it fails."""
    report = yield
    router = getattr(item, "funcargs", {}).get("router")
    if report.failed and isinstance(router, Service):
        report.sections.append(("router", router.tail()))
    return report


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """A client with a connection per request: none outlives an engine that is killed."""
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as client:
        yield client


@pytest.fixture(autouse=True)
async def _whole_fleet(
    request: pytest.FixtureRequest, engines: Engines, session: aiohttp.ClientSession
) -> AsyncIterator[None]:
    """Each test begins with idle engines, all known to the router, and leaves them running."""
    if "router" in request.fixturenames:
        router: Service = request.getfixturevalue("router")
        await observe.eventually(
            lambda: observe.up(session, router),
            lambda seen: seen == {engine.url for engine in engines.all},
            within=10,
        )
    await observe.settled(session, engines.all, within=40)
    yield
    engines.restore()
