"""Engines that join and leave while the router serves: clients notice nothing, and no state
remains."""

import asyncio
import gc
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from router.core.candidate import Candidate
from router.core.errors import Unhealthy
from router.core.events import Ordered, SharedEvent
from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.health import HealthThresholds
from router.core.judge.member import Member
from router.core.membership.entry import Entry, Order, Target
from router.core.membership.roster import Roster
from router.core.values import Endpoint, Role
from router.net.engine.pool import EnginePool
from router.net.processes.shared_state import SharedState, WorkerBus
from router.web.fleet_sync import ORDER_TIMEOUT_SECONDS, FleetSync
from tests.core.fixtures import D0, D1
from tests.net.engine import ScriptedEngine, json_reply
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import COMPLETIONS, DONE, STREAM, completion, token


def names(router: Running, *engines: ScriptedEngine, **members: Any) -> None:
    """A source names these engines."""
    targets = tuple(Target(Endpoint(engine.url, Role.DECODE), **members) for engine in engines)
    router.router.sync.on_targets("test", targets)


async def empty(harness: Harness, tmp_path: Path, **settings: Any) -> Running:
    """A router that knows no engine yet."""
    path = tmp_path / "engines.json"
    path.write_text('{"decode": []}')
    return await harness.router(engines_file=path, **settings)


def has_series(router: Running, engine: ScriptedEngine) -> bool:
    """Whether the metrics speak of an engine."""
    return engine.url.encode() in router.router.metrics.exposition()


def follow(router: Running) -> bool:
    """As the next tick would."""
    router.router.sync.follow()
    return True


def loops(router: Running) -> int:
    """Background loops of engines."""
    kinds = {"health probe", "metrics scrape", "speed probe"}
    return sum(task.get_name() in kinds for task in router.router._tasks._tasks)


async def test_before_discovery_requests_get_503(harness: Harness, tmp_path: Path) -> None:
    router = await empty(harness, tmp_path)
    client = await router.client()
    answer = await client.ask(COMPLETIONS, completion())
    assert answer.status == 503
    assert answer.error["message"] == (
        "No decode engine can take this request now: none is known yet."
    )
    answer = await client.get("/ready")
    assert answer.status == 503
    assert answer.error["message"] == "No decode engine is up: none is known yet."
    assert (await client.get("/health")).status == 200


async def test_named_engine_is_used_at_once(harness: Harness, tmp_path: Path) -> None:
    router = await empty(harness, tmp_path)
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    names(router, engine)
    await router.usable(engine)
    assert (await router.ask(COMPLETIONS, completion())).status == 200
    assert has_series(router, engine)


async def test_streams_of_a_leaving_engine_finish_and_then_it_is_removed(
    harness: Harness, tmp_path: Path
) -> None:
    router = await empty(harness, tmp_path, speed_probe_interval=3600)
    one, other = await harness.engine(), await harness.engine()
    names(router, one)
    await router.usable(one)
    client = await router.send(COMPLETIONS, STREAM)
    call = await one.call()
    call.stream(token("a"))
    answer = await client.begin()
    names(router, other)
    await router.usable(other)
    assert [m.is_drained for m in router.router.fleet] == [False, True]
    other.answer_all(lambda call: call.send(json_reply({})))
    for _ in range(3):
        assert (await router.ask(COMPLETIONS, completion())).status == 200
    router.router.sync.follow()
    assert has_series(router, one)
    call.end(token("b"), DONE)
    await answer.rest()
    assert token("b") in answer.body
    await router.is_quiet()
    router.router.sync.follow()
    assert [m.endpoint.url for m in router.router.fleet] == [other.url]
    assert list(router.pools) == [router.endpoint(other)]
    assert not has_series(router, one)
    assert has_series(router, other)
    await eventually(lambda: loops(router) == 3)
    await eventually(lambda: not one.connections)


async def test_stream_outlives_the_drain_timeout(harness: Harness, tmp_path: Path) -> None:
    router = await empty(harness, tmp_path, engine_leave_timeout=0.001)
    engine = await harness.engine()
    names(router, engine)
    await router.usable(engine)
    client = await router.send(COMPLETIONS, STREAM)
    call = await engine.call()
    call.stream(token("a"))
    answer = await client.begin()
    names(router)
    await eventually(lambda: follow(router) and not router.pools)
    call.end(token("b"), DONE)
    await answer.rest()
    assert token("b") in answer.body
    assert (await router.record()).outcome == "ok"
    assert not has_series(router, engine)
    await eventually(lambda: not engine.connections)


async def test_unsent_request_moves(harness: Harness, tmp_path: Path) -> None:
    """Its engine was forgotten between the choice and the connection."""
    router = await empty(harness, tmp_path)
    one, other = await harness.engine(), await harness.engine()
    other.answer_all(lambda call: call.send(json_reply({})))
    names(router, one)
    await router.usable(one)
    del router.pools[router.endpoint(one)]
    router.router.connections.pools._members.clear()
    names(router, one, other)
    await router.usable(other)
    del router.pools[Endpoint(one.url, Role.DECODE)]
    for _ in range(4):
        assert (await router.ask(COMPLETIONS, completion())).status == 200
    router.router.connections.pools._members.pop(Endpoint(one.url, Role.DECODE))


async def test_new_engine_has_new_connections(harness: Harness, tmp_path: Path) -> None:
    router = await empty(harness, tmp_path)
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    names(router, engine, identity="old")
    await router.usable(engine)
    assert (await router.ask(COMPLETIONS, completion())).status == 200
    pool = router.pool(engine)
    assert pool.idle == 1
    names(router, engine, identity="new")
    assert router.pool(engine) is not pool
    await eventually(lambda: pool.open == 0)
    await router.usable(engine)
    assert (await router.ask(COMPLETIONS, completion())).status == 200


async def test_the_file_is_followed(harness: Harness, tmp_path: Path) -> None:
    router = await empty(harness, tmp_path)
    engine = await harness.engine()
    path = router.router.settings.engines_file
    assert path is not None
    fresh = path.with_suffix(".fresh")  # half a file would be a mistake, and logged

    def write(*urls: str) -> None:
        fresh.write_text(json.dumps({"decode": urls}))
        fresh.replace(path)

    write(engine.url)
    await eventually(lambda: router.pools)
    await router.usable(engine)
    write()
    await eventually(lambda: not router.pools)


async def test_engines_beyond_the_bound_are_skipped_with_a_warning(
    harness: Harness, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    router = await empty(harness, tmp_path)
    router.router.sync.roster.rows = 1
    engines = [await harness.engine() for _ in range(3)]
    names(router, *engines)
    names(router, *engines)
    assert len(router.pools) == 1
    [line] = [line for line in caplog.messages if "left out" in line]
    assert line.startswith("2 engines are left out: the router holds at most 1 endpoints, ")


async def test_churn_leaves_nothing(harness: Harness, tmp_path: Path) -> None:
    router = await empty(harness, tmp_path)
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))

    async def come_and_go(number: int) -> None:
        names(router, engine, identity=str(number))
        await router.usable(engine)
        assert (await router.ask(COMPLETIONS, completion())).status == 200
        router.router.counts.event_buffer.flush()  # a request counts by model while that is listed
        names(router)
        await router.is_quiet()
        router.router.sync.follow()
        assert not router.pools

    def left() -> tuple[int, ...]:
        gc.collect()
        router.router.counts.event_buffer.flush()
        metrics = router.router.metrics
        pools = sum(isinstance(each, EnginePool) for each in gc.get_objects())
        return pools, len(metrics._series), len(metrics._engines._engines), len(asyncio.all_tasks())

    await come_and_go(0)
    await eventually(lambda: not engine.connections)
    before = left()
    for number in range(1, 20):
        await come_and_go(number)
    await eventually(
        lambda: all(now <= then for now, then in zip(left(), before, strict=True)),
        lambda: (left(), before),
    )


async def test_an_operators_order_is_obeyed_beside_the_sources(harness: Harness) -> None:
    one, other = await harness.engine(), await harness.engine()
    router = await harness.router(one)
    sync = router.router.sync
    endpoint = Endpoint(other.url, Role.DECODE)
    await sync.order(Order.ADD, endpoint)
    await router.usable(other)
    await sync.order(Order.DRAIN, router.endpoint(one))
    other.answer_all(lambda call: call.send(json_reply({})))
    for _ in range(3):
        assert (await router.ask(COMPLETIONS, completion())).status == 200
    await sync.order(Order.UNDRAIN, router.endpoint(one))
    await sync.order(Order.REMOVE, endpoint)
    await router.is_quiet()
    sync.follow()
    assert [member.endpoint.url for member in router.router.fleet] == [one.url]


class LossyBus:
    """Loses the first order, which is not waited for; what is not lost the leader obeys."""

    def __init__(self, leader: FleetSync, monkeypatch: pytest.MonkeyPatch) -> None:
        self.leader = leader
        self.monkeypatch = monkeypatch
        self.sent: list[SharedEvent | Ordered] = []

    def publish(self, event: SharedEvent | Ordered) -> None:
        self.sent.append(event)
        is_lost = len(self.sent) == 1
        seconds = 0.0 if is_lost else 3600.0
        self.monkeypatch.setattr("router.web.fleet_sync.ORDER_TIMEOUT_SECONDS", seconds)
        if not is_lost:
            assert isinstance(event, Ordered)
            self.leader.obey(event)


async def test_lost_order_is_not_taken_for_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    roster = Roster(8, 60.0)
    roster.set_targets("file", [Target(D0), Target(D1)], 0.0)
    state = SharedState(2, roster)
    leader, worker = (
        FleetSync(Roster(8, 60.0), fleet(), state.join(number, number + 1)) for number in range(2)
    )
    assert worker._context is not None
    bus = cast("WorkerBus", LossyBus(leader, monkeypatch))
    monkeypatch.setattr(worker, "_context", replace(worker._context, bus=bus))
    lost, obeyed = await asyncio.gather(
        worker.order(Order.DRAIN, D0), worker.order(Order.DRAIN, D1), return_exceptions=True
    )
    assert isinstance(lost, Unhealthy)
    assert obeyed is None
    assert [(e.endpoint, e.is_draining) for e in leader.roster.entries] == [(D0, False), (D1, True)]
    state.close()


def test_an_order_that_was_answered_with_an_error_is_not_executed_later() -> None:
    roster = Roster(8, 60.0)
    roster.set_targets("file", [Target(D0)], 0.0)
    state = SharedState(2, roster)
    leader = FleetSync(roster, fleet(), state.join(0, 1))
    late = time.monotonic_ns() - int(ORDER_TIMEOUT_SECONDS * 1e9)
    for number, is_draining in ((late, False), (late + 10**9, True)):
        leader.obey(Ordered(1, number, Order.DRAIN, D0))
        assert [entry.is_draining for entry in leader.roster.entries] == [is_draining]
    state.close()


def test_a_restarted_leader_knows_a_source_without_engines() -> None:
    state = SharedState(2, Roster(8, 60.0))
    for number, known in enumerate((None, ())):
        leader = FleetSync(Roster(8, 60.0), fleet(), state.join(0, number + 1))
        assert leader.roster.named_by("pods") == known
        leader.on_targets("pods", ())
    state.close()


def fleet() -> Fleet:
    """An empty one."""
    return Fleet((), Ledger(), HealthThresholds(), stale_after=5.0)


class Rows(list[Member]):
    """A fleet of members that counts how often it is gone through."""

    times = 0

    def __iter__(self) -> Iterator[Member]:
        self.times += 1
        return super().__iter__()

    def apply(self, *_: object) -> None:
        """The members stay."""


def test_busy_engines_are_looked_for_once_a_tick_however_many_leave() -> None:
    leaving = [Target(Endpoint(f"http://e{n}:8000", Role.DECODE)) for n in range(4)]
    members = Rows(Member(Candidate(target.endpoint, n)) for n, target in enumerate(leaving))
    for row, member in enumerate(members):
        member.enter(Entry(member.endpoint, row), 0.0)
    members.times = 0
    busy = members[2].view.load
    busy.add(1, 10, 0)
    sync = FleetSync(Roster(8, 60.0), cast("Fleet", members), None)
    sync.on_targets("file", tuple(leaving))
    sync.follow()
    assert members.times == 0
    sync.on_targets("file", ())
    sync.follow()
    assert members.times == 1
    assert [entry.endpoint for entry in sync.roster.entries] == [leaving[2].endpoint]
