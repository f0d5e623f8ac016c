"""A router without file descriptors reports it, and does not blame engines."""

import contextlib
import gc
import os
import resource
from collections.abc import Iterator

import pytest

from router.core.events import Probed
from router.core.health import State
from router.core.judge.member import Member
from router.core.routing.large_body import LARGE_BYTES
from router.core.values import FailureKind
from router.net.engine.pool import EnginePool
from router.net.exhaustion import remedy
from tests.net.engine import ScriptedEngine, json_reply
from tests.net.harness import Harness, Running
from tests.net.payloads import COMPLETIONS, completion

OK = json_reply({})


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can open no file and no socket. Nothing is collected meanwhile: a socket that
    an earlier test has left as garbage would become a free descriptor."""
    gc.disable()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, before[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(taken[0]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for descriptor in taken:
            os.close(descriptor)
        gc.enable()


@pytest.fixture(autouse=True)
def complains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EnginePool, "_complains_at", 0.0)


def member(router: Running, engine: ScriptedEngine) -> Member:
    """What the router knows of an engine."""
    return router.router.fleet.member(router.endpoint(engine))


async def test_unreachable_engines_stay_up(harness: Harness, complaints: list[str]) -> None:
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(OK))
    router = await harness.router(engine)
    client = await router.client()
    router.router.events.clear()
    with no_descriptors():
        for _ in range(5):
            answer = await client.ask(COMPLETIONS, completion())
            assert answer.status == 503
            assert answer.error["message"] == "The router cannot open a connection now."
            assert answer.values(b"retry-after") == [b"1"]
        await router.router.engines.prober.probe_all()
    assert member(router, engine).health.state is State.UP
    assert member(router, engine).last_error is None
    assert router.all(Probed) == []
    said = "cannot connect to engines: Too many open files; raise this process's limit"
    assert [line.startswith(said) for line in complaints] == [True]
    complaints.clear()
    assert (await client.ask(COMPLETIONS, completion())).status == 200


async def test_a_connection_that_is_kept_serves_meanwhile(
    harness: Harness, complaints: list[str]
) -> None:
    engines = [await harness.engine() for _ in range(2)]
    router = await harness.router(*engines, load_balancing_strategy="round_robin")
    client, other = await router.client(), await router.client()
    engines[0].answer_all(lambda call: call.send(OK))
    assert (await client.ask(COMPLETIONS, completion())).status == 200
    with no_descriptors():
        # Whoever's turn it is: where there is no connection the request moves on.
        for each in (client, other, client):
            assert (await each.ask(COMPLETIONS, completion())).status == 200
    complaints.clear()
    assert all(member(router, engine).health.state is State.UP for engine in engines)
    reasons = {f.reason for record in await router.records(4) for f in record.fallbacks}
    assert reasons == {FailureKind.EXHAUSTED}


async def test_a_large_body_for_whose_reader_there_is_no_descriptor_gets_503(
    harness: Harness, complaints: list[str]
) -> None:
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(OK))
    router = await harness.router(engine)
    client = await router.client()
    large = completion("x" * LARGE_BYTES)
    with no_descriptors():
        answer = await client.ask(COMPLETIONS, large)
    assert answer.status == 503
    assert answer.error["message"] == "The router cannot read a large body now."
    assert answer.values(b"retry-after") == [b"1"]
    said = "cannot start the large-body parser: Too many open files; raise this process's limit"
    assert [line.startswith(said) for line in complaints] == [True]
    complaints.clear()
    assert (await client.ask(COMPLETIONS, large)).status == 200


@pytest.mark.parametrize(
    ("number", "advice"), [(24, "ulimit -n"), (23, "fs.file-max"), (99, "ip_local_port_range")]
)
def test_the_remedy_is_that_of_the_cause(number: int, advice: str) -> None:
    assert advice in remedy(OSError(number, "x"))
