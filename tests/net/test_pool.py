"""Connections to an engine: reused while fresh, closed before the engine closes them."""

import asyncio
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from router.core.values import Failure, FailureKind
from router.net.addresses import Addresses
from router.net.engine.answer import Sink
from router.net.engine.dial import Dial
from router.net.engine.engine_connection import EngineConnection
from router.net.engine.pool import EnginePool
from tests.net.client import SECONDS, request
from tests.net.engine import Connection, json_reply
from tests.net.harness import Harness, Running, eventually, flow_of
from tests.net.mute_server import mute_server
from tests.net.payloads import COMPLETIONS, DONE, completion
from tests.net.test_addresses import Lookups

OK = json_reply({})


async def _busy(harness: Harness, number: int, **settings: Any) -> tuple[Running, EnginePool]:
    """A router that has had `number` requests at once on its only engine."""
    engine, router = await harness.single(**settings)
    clients = [await router.client() for _ in range(number)]
    for client in clients:
        await client.send(request(COMPLETIONS, completion()))
    calls = [await engine.call() for _ in clients]
    for call in calls:
        call.send(OK)
    for client in clients:
        assert (await client.answer()).status == 200
    return router, router.pool(engine)


async def test_connections_in_use_are_not_limited_idle_ones_are(harness: Harness) -> None:
    router, pool = await _busy(harness, 20, max_idle_connections=3)
    await router.is_quiet()
    assert (pool.open, pool.idle) == (3, 3)
    assert repr(pool).endswith("[3 open, 3 idle]>")


async def test_without_idle_connections_each_request_has_its_own(harness: Harness) -> None:
    router, pool = await _busy(harness, 2, max_idle_connections=0)
    await router.is_quiet()
    assert pool.open == 0


async def test_idle_connections_are_closed_before_their_engine_does(harness: Harness) -> None:
    router, pool = await _busy(harness, 3, idle_connection_timeout=0.05)
    await eventually(lambda: pool.open == 0)
    assert pool.idle == 0
    assert pool._reaper is None
    client = await router.client()
    harness.engines[0].answer_all(lambda call: call.send(OK))
    assert (await client.ask(COMPLETIONS, completion())).status == 200


async def test_only_connections_that_are_too_old_are_closed(harness: Harness) -> None:
    _, pool = await _busy(harness, 3, idle_connection_timeout=3600)
    old, young = pool._idle[0], pool._idle[-1]
    old.idle_since -= 3600
    pool._reap()
    assert old.is_closing()
    assert not young.is_closing()
    await eventually(lambda: (pool.open, pool.idle) == (2, 2))
    assert pool._reaper is not None


async def test_connections_closed_by_the_engine_are_dropped(harness: Harness) -> None:
    router, pool = await _busy(harness, 3)
    await eventually(lambda: pool.idle == 3)
    for connection in list(harness.engines[0].connections):
        connection.transport.close()
    await eventually(lambda: (pool.open, pool.idle) == (0, 0))
    harness.engines[0].answer_all(lambda call: call.send(OK))
    assert (await router.ask(COMPLETIONS, completion())).status == 200


async def test_the_connection_used_last_is_used_first(harness: Harness) -> None:
    router, pool = await _busy(harness, 3)
    last = pool._idle[-1]
    engine = harness.engines[0]
    seen: set[Connection] = set()
    engine.on_call = lambda call: seen.add(call.connection)
    engine.answer_all(lambda call: call.send(OK))
    for _ in range(5):
        await router.ask(COMPLETIONS, completion())
    assert len(seen) == 1
    assert pool._idle[-1] is last


async def test_an_idle_connection_that_is_closing_is_passed_over(harness: Harness) -> None:
    _, pool = await _busy(harness, 3)
    good = pool._idle[0]
    for connection in list(pool._idle)[1:]:
        connection.transport.abort()
    assert pool.take(replay=True) is good
    await eventually(lambda: pool.open == 1)
    pool.put(good)


async def test_stale_connections_are_closed_on_demand(harness: Harness) -> None:
    _, pool = await _busy(harness, 3)
    for connection in pool._idle:
        connection.idle_since -= 3600
    assert pool.take(replay=False) is None  # they stay for requests that may be replayed
    assert pool.idle == 3
    assert pool.take(replay=True) is None
    await eventually(lambda: pool.open == 0)


async def test_a_connection_closed_during_a_request_reports_it(harness: Harness) -> None:
    """Between the moment it was made or taken and the moment it is used it may have closed."""
    engine, router = await harness.single()
    pool = router.pool(engine)
    connection = await pool.connect()
    assert isinstance(connection, EngineConnection)
    own = connection.transport.get_extra_info("sockname")
    await eventually(
        lambda: own in [each.transport.get_extra_info("peername") for each in engine.connections]
    )
    engine.drop()
    await eventually(lambda: pool.open == 0)

    class Failures(Sink):
        failures: ClassVar[list[str]] = []

        def on_lost(self, failure: Failure) -> None:
            self.failures.append(str(failure))

    sink = Failures()
    connection.start(b"head", b"body", sink)
    assert len(sink.failures) == 1
    assert "RESET" in sink.failures[0]
    connection.pause_reading()
    connection.resume_reading()
    connection.abort()


async def test_a_closed_pool_closes_idle_and_busy_connections(harness: Harness) -> None:
    router, pool = await _busy(harness, 2)
    engine = harness.engines[0]
    client = await router.send(COMPLETIONS, completion())
    call = await engine.call()
    assert (pool.open, pool.idle) == (2, 1)
    pool.close()
    pool.close()
    await eventually(lambda: (pool.open, pool.idle) == (0, 0))
    await call.left()
    client.leave()


async def test_an_engine_with_an_invalid_host_name_is_unreachable(harness: Harness) -> None:
    engine, router = await harness.single()
    pool = router.pool(engine)
    pool.origin = type(pool.origin)("a" * 70 + ".invalid", 80, False, "")
    pool._addresses = Addresses(pool.origin.host, pool.origin.port)
    answer = await router.ask(COMPLETIONS, completion())
    assert answer.status == 502
    assert "cannot be reached" in answer.error["message"]


async def test_a_cancelled_connect_leaves_nothing_behind(harness: Harness) -> None:
    engine, router = await harness.single()
    pool = router.pool(engine)
    await eventually(lambda: b"/metrics" in engine.probes)  # whose connection is kept
    before = len(engine.connections)
    for turns in range(6):  # cancelled at each of its steps
        task = asyncio.ensure_future(pool.connect())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        try:
            made = await task
        except asyncio.CancelledError:
            continue
        assert isinstance(made, EngineConnection)
        made.abort()
    await eventually(lambda: pool.open == 0)
    await eventually(lambda: len(engine.connections) <= before)


async def test_a_cancelled_connect_is_given_up(harness: Harness) -> None:
    """On 127.0.0.1 only a TLS handshake can hang."""
    engine = await harness.engine(tls=True)
    router = await harness.router(engine, connect_timeout=3600)
    pool = router.pool(engine)
    async with mute_server() as mute:
        pool.origin = replace(pool.origin, port=mute.port)
        pool._addresses = Addresses(pool.origin.host, mute.port)
        task = asyncio.ensure_future(pool.connect())
        await mute.has_come.wait()
        task.cancel()
        async with asyncio.timeout(SECONDS):
            await mute.is_gone.wait()


@pytest.mark.parametrize(
    ("broken", "status", "said"),
    [
        ("_addresses", 502, "failed inside the router"),  # before it is made
        ("prefix", 500, "TypeError"),  # when the request is to be sent
    ],
)
async def test_a_fault_of_ours_while_connecting_is_logged_and_leaves_no_connection(
    harness: Harness, complaints: list[str], broken: str, status: int, said: str
) -> None:
    engine, router = await harness.single()
    pool = router.pool(engine)
    whole = getattr(pool, broken)
    setattr(pool, broken, None)
    assert (await router.ask(COMPLETIONS, completion())).status == status
    await eventually(lambda: pool.open == 0)
    assert [said in line for line in complaints] == [True]
    complaints.clear()
    setattr(pool, broken, whole)


# Names.


def _named(pool: EnginePool, *answers: list[str], host: str = "engine.test") -> Lookups:
    """Let the engine have a name, and the resolver give these answers."""
    pool.origin = replace(pool.origin, host=host)
    lookups = Lookups(*answers)
    pool._addresses = Addresses(host, pool.origin.port, lookups.resolve, lambda: lookups.now)
    return lookups


async def _connects(pool: EnginePool) -> bool:
    connection = await pool.connect()
    if not isinstance(connection, EngineConnection):
        return False
    connection.abort()
    return True


GOOD, DEAD = "127.0.0.1", "127.0.0.2"
"""The engines of these tests listen on the first one only."""


async def test_a_name_is_looked_up_once_for_many_connections(harness: Harness) -> None:
    _, pool = await _busy(harness, 1)
    lookups = _named(pool, [GOOD])
    assert all(await asyncio.gather(*(_connects(pool) for _ in range(20))))
    assert lookups.seen == 1


async def test_a_refused_connection_goes_to_the_next_address(harness: Harness) -> None:
    _, pool = await _busy(harness, 1)
    lookups = _named(pool, [DEAD, GOOD])
    assert await _connects(pool)
    assert pool._addresses._known == [GOOD]
    assert await _connects(pool)
    assert lookups.seen == 1


async def test_an_engine_that_has_moved_is_found_at_once(harness: Harness) -> None:
    _, pool = await _busy(harness, 1)
    lookups = _named(pool, [DEAD], [GOOD])
    await pool._addresses.get()
    assert await _connects(pool)
    assert lookups.seen == 2


async def test_an_engine_that_is_down_is_looked_up_once_per_attempt(harness: Harness) -> None:
    _, pool = await _busy(harness, 1)
    lookups = _named(pool, [DEAD], [DEAD], [DEAD])
    for number in (1, 2):
        failure = await pool.connect()
        assert isinstance(failure, Failure)
        assert failure.kind is FailureKind.REFUSED
        assert lookups.seen == number
    await pool._addresses.get()
    assert isinstance(await pool.connect(), Failure)


async def test_an_address_that_never_answers_is_not_used_again(harness: Harness) -> None:
    _, pool = await _busy(harness, 1)
    _named(pool, [DEAD, GOOD])
    pool._connect_seconds = 0.05
    hanging = asyncio.Event()

    async def connect_to(address: str, dial: Dial) -> None:
        await hanging.wait()
        raise AssertionError(address)

    pool._connect_to = connect_to  # type: ignore[method-assign]
    assert isinstance(await pool.connect(), Failure)
    assert pool._addresses._known == [GOOD]


async def test_a_certificate_is_checked_for_the_name_not_the_address(harness: Harness) -> None:
    engine = await harness.engine(tls=True)
    router = await harness.router(engine)
    pool = router.pool(engine)
    _named(pool, [GOOD])  # the certificate is for 127.0.0.1 alone
    failure = await pool.connect()
    assert isinstance(failure, Failure)
    assert "certificate is not trusted" in failure.cause


# TLS.


@pytest.mark.parametrize("stream", [True, False])
async def test_tls_to_an_engine_of_our_ca_works(harness: Harness, stream: bool) -> None:
    engine = await harness.engine(tls=True)
    assert engine.url.startswith("https://")
    router = await harness.router(engine, stream_continuation="off")
    client = await router.client()
    body = completion("x" * 500_000, stream=stream)
    for _ in range(2):
        await client.send(request(COMPLETIONS, body))
        call = await engine.call()
        assert call.json == body
        if stream:
            call.stream_whole(*[b"data: 1\n\n"] * 1000, DONE)
            assert (await client.answer()).body == b"data: 1\n\n" * 1000 + DONE
        else:
            call.send(OK)
            assert (await client.answer()).status == 200
    assert router.pool(engine).open == 1


async def test_an_engine_whose_certificate_is_unknown_is_never_up(harness: Harness) -> None:
    engine = await harness.engine(tls=True)
    router = await harness.router(engine, ready=False, engine_ca_file=None)
    answer = await router.ask(COMPLETIONS, completion())
    assert answer.status == 503
    failure = await router.pool(engine).connect()
    assert failure.message == "The engine cannot be reached."  # type: ignore[union-attr]
    assert "certificate is not trusted" in failure.cause  # type: ignore[union-attr]


async def test_a_client_that_leaves_ends_a_tls_connection(harness: Harness) -> None:
    engine = await harness.engine(tls=True)
    router = await harness.router(engine)
    client = await router.send(COMPLETIONS, completion(stream=True))
    call = await engine.call()
    call.stream(b"data: 1\n\n")
    answer = await client.begin()
    await answer.until(b"data: 1\n\n")
    client.leave()
    await call.left()
    await router.is_quiet()


async def test_a_slow_client_stops_a_tls_engine(harness: Harness) -> None:
    engine = await harness.engine(tls=True)
    router = await harness.router(engine)
    client = await router.client(receive_buffer=4096)
    await client.send(request(COMPLETIONS, completion(stream=True)))
    call = await engine.call()
    piece = b"data: " + b"x" * 1000 + b"\n\n"
    call.stream_whole(*[piece] * 20_000, DONE)
    (connection,) = router.connections
    await eventually(lambda: flow_of(connection).write_paused)
    assert (await client.answer()).body == piece * 20_000 + DONE
