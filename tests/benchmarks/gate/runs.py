"""Runs that never happened: a closed loop against a few workers, in virtual time."""

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks.gate.analysis.records import Client, Request, Run, WorkerSample

Policy = Callable[[int, Sequence[int]], int]
"""The worker for the n-th request, given what each holds."""


def round_robin(number: int, held: Sequence[int]) -> int:
    return number % len(held)


def least_loaded(number: int, held: Sequence[int]) -> int:
    return min(range(len(held)), key=lambda index: (held[index], (index - number) % len(held)))


@dataclass(frozen=True)
class Stall:
    """A hung worker: its steps take time and produce nothing."""

    worker: int
    since: float
    until: float

    def later(self, at: float) -> float:
        """When something is over that would be over at `at`."""
        return self.until + (at - self.since) if self.since <= at < self.until else at


ROOM = Client(cpu=0.3, lag_p99_ms=2.0, reached=10**6)


def request(number: int = 0, **changes: object) -> Request:
    """Sent at once, 4 tokens, 10 ms apart, the first after 0.1 s."""
    plain = Request(
        number=number,
        prompt=number % 100,
        worker="w0",
        sent=0.0,
        first=0.1,
        last=0.13,
        ended=0.131,
        input_tokens=8,
        output_tokens=4,
        status=200,
        error=None,
        gaps=(0.01, 0.01, 0.01),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def run(requests: Sequence[Request] = (), **changes: object) -> Run:
    plain = Run(
        profile="smoke",
        url="http://127.0.0.1:8000",
        model="m",
        gpus=1,
        concurrency=max(len(requests), 1),
        started_at="2026-11-21T10:00:00+00:00",
        requests=tuple(requests),
        samples=(),
        client=ROOM,
        interrupted=False,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def loop(
    policy: Policy,
    *,
    workers: int = 4,
    concurrency: int = 64,
    count: int = 640,
    stall: Stall | None = None,
    slots: int = 64,
    step: float = 0.02,
    tokens: int = 10,
    prefill: float = 0.02,
    prefill_all: float = 0.0,
    ready: Sequence[float] = (),
) -> Run:
    """A closed loop. A worker serves `slots` at once, a token each `step`; a request without a slot
    waits. `prefill_all` is added for every request that the worker holds; a worker does nothing
    before it is `ready`."""
    held, free = [0] * workers, [[0.0] * slots for _ in range(workers)]
    done: list[tuple[float, int]] = []
    requests: list[Request] = []
    for number in range(count):
        now = 0.0
        if number >= concurrency:
            now, finished = heapq.heappop(done)
            held[finished] -= 1
        index = policy(number, held)
        held[index] += 1
        begin = max(now, heapq.heappop(free[index]), ready[index] if ready else 0.0)
        times = [begin + prefill + prefill_all * held[index]]
        times += [times[0] + step * each for each in range(1, tokens)]
        if stall is not None and index == stall.worker:
            times = late(times, stall)
        heapq.heappush(free[index], times[-1])
        heapq.heappush(done, (times[-1], index))
        requests.append(
            request(
                number,
                worker=f"w{index}",
                sent=now,
                first=times[0],
                last=times[-1],
                ended=times[-1],
                output_tokens=tokens,
                gaps=tuple(b - a for a, b in itertools.pairwise(times)),
            )
        )
    return run(requests, concurrency=concurrency, gpus=workers)


def rescued(seen: Run, stall: Stall, after: float = 1.0) -> Run:
    """Like a router that moves requests: requests without a byte from the stalled worker for so
    long are answered by another one at once."""
    requests = []
    for each in seen.requests:
        waits = each.worker == f"w{stall.worker}" and stall.since < each.sent < stall.until - after
        if waits and each.first is not None and each.first - each.sent > after:
            first = each.sent + after + 0.02
            last = first + sum(each.gaps)
            each = replace(
                each,
                worker="w0",
                left=(f"w{stall.worker}",),
                first=first,
                last=last,
                ended=last,
            )
        requests.append(each)
    return replace(seen, requests=tuple(requests))


def late(times: list[float], stall: Stall) -> list[float]:
    """The times of one answer with the stall in it: what falls into it comes after it."""
    shift = 0.0
    moved = []
    for at in times:
        now = at + shift
        if stall.since <= now < stall.until:
            shift += stall.until - now
            now = stall.until
        moved.append(now)
    return moved


def sampled(seen: Run, interval: float = 0.1, *, router: bool = True) -> Run:
    """The same with what the router (or only the engines) would have said meanwhile, and without
    the requests' own word."""
    end = max(each.ended or 0.0 for each in seen.requests)
    names = sorted({each.worker for each in seen.requests if each.worker})
    samples = []
    for tick in range(int(end / interval) + 1):
        at = tick * interval
        for name in names:
            held = sum(
                each.worker == name and each.sent <= at < (each.ended or end)
                for each in seen.requests
            )
            running = float(min(held, 64))
            samples.append(
                WorkerSample(
                    at=at,
                    worker=name,
                    running=running,
                    waiting=held - running,
                    kv_usage=0.1,
                    in_flight=held if router else None,
                    exclusion=None,
                    seconds_per_token=0.02,
                )
            )
    requests = tuple(replace(each, worker=None) for each in seen.requests)
    return replace(seen, requests=requests, samples=tuple(samples))
