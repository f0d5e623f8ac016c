"""The harness: engines and routers of one test. A test fails if a router logs an error."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.net.harness import Complaints, Harness, eventually
from tests.net.tls import make_certificate


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the router runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def complaints() -> Iterator[list[str]]:
    """Errors in the log; a test that expects some clears them."""
    handler = Complaints()
    root = logging.getLogger()
    root.addHandler(handler)
    yield handler.lines
    root.removeHandler(handler)
    assert handler.lines == []


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1, its key beside it."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
async def harness(complaints: list[str], certificate: Path) -> AsyncIterator[Harness]:
    """Engines and routers; at the end none may hold anything or have failed in a callback."""
    harness = Harness(certificate)
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    yield harness
    await harness.close()
    # gRPC's server has stopped some turns of the loop before its tasks end.
    await eventually(lambda: asyncio.all_tasks() == {asyncio.current_task()})
    assert failures == []
