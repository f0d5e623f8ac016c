"""Events that workers send to each other, here within one process."""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from router.core.events import (
    Ejected,
    LegAnswered,
    LegDone,
    LegFailed,
    PrefixesHeld,
    Probed,
    Scraped,
    SharedEvent,
)
from router.core.fleet.fleet import MAX_EVENT_KEYS
from router.core.health import HealthSignal
from router.core.membership.entry import Target
from router.core.membership.roster import Roster
from router.core.request_facts import PrefixKeys
from router.core.values import Endpoint, FailureKind, Gauges, Role
from router.net.processes import shared_state
from router.net.processes.shared_state import (
    BUFFER_BYTES,
    SharedState,
    WorkerEvent,
    decode_event,
    encode_event,
)
from tests.net.harness import eventually

D0, D1 = Endpoint("http://d0", Role.DECODE), Endpoint("http://d1", Role.DECODE)

EVENTS: list[WorkerEvent] = [
    Probed(D0, HealthSignal.OK, ({"id": "m", "root": "Qwen"},)),
    Scraped(D1, Gauges(3, 4, 0.5), 2),
    LegFailed(D0, FailureKind.REFUSED),
    Ejected(D1, 1.0, 31.0),
]


Make = Callable[[int], SharedState]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes crews of so many, and closes them."""
    with contextlib.ExitStack() as stack:

        def one(workers: int) -> SharedState:
            roster = Roster(8, 600.0)
            roster.set_targets("test", [Target(D0), Target(D1)], 0.0)
            shared_state = SharedState(workers, roster)
            stack.callback(shared_state.close)
            return shared_state

        yield one


async def test_all_workers_receive_events_in_order(make: Make) -> None:
    shared_state = make(3)
    contexts = [shared_state.join(number, 100 + number) for number in range(3)]
    heard: list[list[WorkerEvent]] = [[], [], []]
    for context in contexts:
        context.bus.subscribe(heard[context.number].append)
    for event in EVENTS:
        contexts[1].bus.publish(event)
    await eventually(lambda: heard[0] == heard[2] == EVENTS)
    assert heard[1] == []
    for context in contexts:
        context.bus.close()


async def test_only_shared_events_are_sent_to_other_workers(make: Make) -> None:
    shared_state = make(2)
    one, other = shared_state.join(0, 1), shared_state.join(1, 2)
    heard: list[WorkerEvent] = []
    other.bus.subscribe(heard.append)
    for event in (
        LegAnswered(D0, 200, 0.1, True),
        LegDone(D0),
        LegFailed(D0, FailureKind.TIMEOUT),
        LegFailed(D0, FailureKind.RESET),
    ):
        one.bus.observe(event)
    await eventually(lambda: heard)
    assert heard == [LegFailed(D0, FailureKind.RESET)]
    other.bus.close()


async def test_events_wait_for_a_worker_that_is_restarted(make: Make) -> None:
    shared_state = make(2)
    one = shared_state.join(0, 1)
    one.bus.publish(EVENTS[0])
    heard: list[WorkerEvent] = []
    late = shared_state.join(1, 2)
    late.bus.subscribe(heard.append)
    await eventually(lambda: heard == EVENTS[:1])
    late.bus.close()


async def test_a_worker_that_does_not_read_blocks_no_other(make: Make) -> None:
    shared_state = make(2)
    one, deaf = shared_state.join(0, 1), shared_state.join(1, 2)
    for _ in range(20_000):  # more than fits
        one.bus.publish(EVENTS[1])
    heard: list[WorkerEvent] = []
    deaf.bus.subscribe(heard.append)
    await eventually(lambda: heard)
    deaf.bus.close()


async def test_many_models_fit_into_one_piece_of_news(make: Make) -> None:
    shared_state = make(2)
    one, other = shared_state.join(0, 1), shared_state.join(1, 2)
    heard: list[WorkerEvent] = []
    other.bus.subscribe(heard.append)
    cards = tuple(
        {"id": f"adapter-{n}", "object": "model", "root": f"/adapters/{n}", "parent": "Qwen"}
        for n in range(2000)
    )
    one.bus.publish(Probed(D0, HealthSignal.OK, cards))
    await eventually(lambda: heard)
    assert heard == [Probed(D0, HealthSignal.OK, cards)]
    other.bus.close()


@pytest.mark.parametrize("is_allowed", [False, True], ids=["by the kernel", "by us"])
async def test_oversized_news_are_sent_once_and_not_cut(
    make: Make,
    is_allowed: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not is_allowed:  # the kernel has a limit of its own
        monkeypatch.setattr(shared_state, "BUFFER_BYTES", 16 << 20)
    one, other = (shared := make(2)).join(0, 1), shared.join(1, 2)
    if not is_allowed:
        for outbox in one.bus._others:
            outbox.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    heard: list[WorkerEvent] = []
    other.bus.subscribe(heard.append)
    cards = ({"id": "m", "root": os.urandom(600_000).hex()},)
    for _ in range(3):
        one.bus.publish(Probed(D0, HealthSignal.OK, cards))
    one.bus.publish(EVENTS[2])
    await eventually(lambda: heard)
    assert heard == [EVENTS[2]]
    [line] = caplog.messages
    assert line.startswith("Probed: ")
    assert "net.core.wmem_max" in line
    other.bus.close()


def test_cpu_time_of_a_worker_that_ends_is_never_missing(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = make(1)
    shared.join(0, os.getpid())
    seen: list[float] = []
    key_usage = SimpleNamespace(clear_streams=lambda _: seen.append(shared.table.ended_cpu()))
    monkeypatch.setattr(shared, "_key_usage", key_usage)
    shared.worker_left(0)
    assert seen[0] > 0.0


def test_the_usage_of_a_worker_survives_its_end(make: Make) -> None:
    shared = make(2)
    pid = os.fork()
    if not pid:
        while time.process_time() < 0.1:
            pass
        os._exit(0)
    shared.join(1, pid)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    shared.worker_left(1)
    os.waitpid(pid, 0)
    assert shared.table.pids() == []
    used = shared.table.ended_cpu()
    assert used >= 0.09
    shared.worker_left(0)  # which had not begun
    assert shared.table.ended_cpu() == used


@pytest.mark.parametrize("number", [0, 1])
def test_the_first_worker_leads(make: Make, number: int) -> None:
    assert make(2).join(number, 1).is_leader is (number == 0)


def test_a_restarted_worker_knows_when_the_router_was_started(make: Make) -> None:
    shared_state = make(2)
    first, again = (shared_state.join(0, pid) for pid in (1, 2))
    assert first.began == again.began == shared_state.began


ENGINE = Endpoint("http://127.0.0.1:1", Role.DECODE)


@pytest.mark.parametrize(
    "event",
    [
        Probed(ENGINE, HealthSignal.OK, ({"id": "m", "max_model_len": 131072, "root": None},)),
        Probed(ENGINE, HealthSignal.FAILED),
        Scraped(ENGINE, Gauges(running=3, kv_usage=0.5), own=2),
        Scraped(ENGINE, None, own=0),
        LegFailed(ENGINE, FailureKind.REFUSED, 12.5),
        Ejected(ENGINE, 1.0, 31.0),
        PrefixesHeld(ENGINE, (PrefixKeys((-(1 << 62), 7), (128, 200)),)),
    ],
)
def test_an_event_arrives_as_it_was_sent(event: SharedEvent) -> None:
    arrived = decode_event(encode_event(event))
    assert arrived == event
    assert type(arrived) is type(event)


def test_its_roles_and_kinds_are_still_those() -> None:
    arrived = decode_event(encode_event(LegFailed(ENGINE, FailureKind.REFUSED)))
    assert arrived.kind is FailureKind.REFUSED
    assert arrived.endpoint.role is Role.DECODE


def test_as_many_prompts_of_60_000_tokens_as_one_event_holds_fit_into_the_sockets_buffer() -> None:
    ends = tuple(range(128, 60_001, 128))
    prefixes = tuple(
        PrefixKeys(tuple(hash((number, end)) for end in ends), ends)
        for number in range(MAX_EVENT_KEYS // len(ends))
    )
    assert len(encode_event(PrefixesHeld(ENGINE, prefixes))) < BUFFER_BYTES
