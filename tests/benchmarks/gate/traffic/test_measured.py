import asyncio
from array import array
from collections.abc import Callable
from datetime import UTC, datetime
from typing import cast

import pytest

from benchmarks.gate.traffic import measured
from benchmarks.gate.traffic.load import Outcome, Phase, Progress
from benchmarks.gate.traffic.measured import Offered, cached, client_of, offer, request_of
from benchmarks.gate.traffic.processes import GeneratorDied, Generators
from benchmarks.streaming.client import Seen


def seen(number: int, **changes: object) -> Seen:
    found = Seen(number, 3, 1000.0)
    for name, value in {"written": 1000.1, "ended": 1002.0, **changes}.items():
        setattr(found, name, value)
    return found


def test_times_are_since_the_phase_began_to_the_microsecond() -> None:
    given = seen(7, first=1000.5, last=1000.75000049, status=200, output_tokens=2, worker="w")
    given.gaps = array("d", [0.25000049])
    request = request_of(given, 999.0)
    assert (request.sent, request.first, request.last, request.ended) == (1.0, 1.5, 1.75, 3.0)
    assert request.gaps == (0.25,)
    assert (request.number, request.prompt, request.worker) == (7, 3, "w")
    assert request_of(seen(0, ended=None), 999.0).ended is None


def test_the_busiest_process_speaks_for_the_client() -> None:
    late = array("d", [0.001] * 99 + [0.5])
    outcomes = (
        Outcome([seen(1), seen(2)], 0.2, array("d", [0.001]), False),
        Outcome([seen(0, ended=None)], 0.9, late, True),
    )
    offered = Offered(1000.0, 1003.0, datetime.now(UTC), outcomes)
    client = client_of(offered)
    assert (client.cpu, client.reached) == (0.9, 3)
    assert (client.lag_p99_ms or 0.0) > 1.0
    assert offered.interrupted
    assert [each.number for each in offered.seen] == [0, 1, 2]


def test_cached_tokens_cover_only_answers_that_report_them() -> None:
    some = [seen(0, input_tokens=10, cached_tokens=8), seen(1, input_tokens=10, cached_tokens=0)]
    assert cached([*some, seen(2, input_tokens=10)]).share == 0.4
    assert "40% of prompt tokens" in cached(some).line
    assert cached([seen(2, input_tokens=10)]).share is None
    assert "does not say" in cached([]).line


class Fake:
    """Generators that end at a stop, or never."""

    def __init__(self, *, obey: bool = True, died: bool = False) -> None:
        self.obey, self.died = obey, died
        self.over = asyncio.Event()
        self.phase: Phase | None = None

    async def run(self, phase: Phase, tell: Callable[[int, Progress], None]) -> list[Outcome]:
        self.phase = phase
        if self.died:
            raise GeneratorDied("process 0")
        if phase.requests:
            await self.over.wait()
        return [Outcome([], 0.1, array("d"), bool(phase.requests))]

    def stop(self) -> None:
        if self.obey:
            self.over.set()


async def offered(fake: Fake, requests: int, stopped: asyncio.Event) -> Offered:
    def tell(number: int, progress: Progress) -> None:
        pass

    return await offer(cast("Generators", fake), Phase(1, requests, 0), tell, stopped)


async def test_a_phase_begins_at_a_time_that_all_processes_know() -> None:
    fake = Fake()
    found = await offered(fake, 0, asyncio.Event())
    assert fake.phase is not None
    assert fake.phase.begin == found.begin
    assert not found.interrupted


async def test_stopping_ends_a_phase() -> None:
    stopped = asyncio.Event()
    stopped.set()
    assert (await offered(Fake(), 9, stopped)).interrupted


async def test_disobedient_process_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "STOP_S", 0.01)
    stopped = asyncio.Event()
    stopped.set()
    with pytest.raises(GeneratorDied, match="did not stop"):
        await offered(Fake(obey=False), 9, stopped)


async def test_a_death_is_passed_on() -> None:
    with pytest.raises(GeneratorDied, match="process 0"):
        await offered(Fake(died=True), 9, asyncio.Event())
