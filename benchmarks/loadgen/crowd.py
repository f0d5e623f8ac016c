"""The clients of a load and their connections, shared by timed windows and finite jobs."""

import asyncio
import time
from array import array
from collections import Counter
from dataclasses import dataclass, field
from itertools import cycle

import numpy as np

from benchmarks.loadgen.plain import PlainTransport
from benchmarks.loadgen.plan import Plan, requests
from benchmarks.loadgen.spans import Span
from benchmarks.streaming.client import Seen, Stream, open_connection
from benchmarks.streaming.sse import DONE
from benchmarks.system.interval_timer import IntervalTimer, Lateness

PULSE_S = 0.005
# After a failure: long enough not to be a hot loop, short enough to be back in the same window.
RETRY_S = 0.05
# After a refusal, so that a router at its limit does not spend its time on refusing.
RETRY_ENDLESS_S = 1.0
LAST_EVENT = b"data: " + DONE
ERROR = b'data: {"error"'
NOT_A_TOKEN = (ERROR, b"data: [")


@dataclass
class Record:
    """Counts and latencies of one phase of a load. Times in seconds."""

    requests: int = 0
    events: int = 0
    reads: int = 0
    connects: int = 0
    first: "array[float]" = field(default_factory=lambda: array("d"))
    gaps: "array[float]" = field(default_factory=lambda: array("d"))
    spans: list[Span] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)


class Client(Stream):
    """A closed-loop client. All events of an answer count, the role's too, and there must be
    exactly as many as the plan expects; an answer without a stream counts when it is whole."""

    def __init__(self, crowd: "Crowd", target: tuple[str, int]) -> None:
        self._count, self._errors = 0, False
        self.target, self._load = target, crowd
        super().__init__(crowd, asyncio.get_running_loop())

    def _new_answer(self) -> None:
        super()._new_answer()
        self._count, self._errors = 0, False

    def _read(self, seen: Seen, events: list[bytes], now: float) -> None:
        self._count += len(events)
        for event in events:
            if event.startswith(NOT_A_TOKEN):
                self._done = event == LAST_EVENT
                self._errors |= event.startswith(ERROR)
        if self._is_new_read:  # one read, one arrival
            self._is_new_read = False
            seen.arrival(now)
            self._load.arrived(seen, len(events))
        else:
            self._load.record.events += len(events)

    def _wrong(self, seen: Seen) -> str | None:
        if seen.status != 200:
            return f"status {seen.status}"
        expected = self._load.plan.events_expected
        if expected is None:
            return None if self._events.tail or self._count else "empty body"
        if self._errors:
            return "error event"
        done = self._done and not self._events.tail
        if self._count != expected or not done:
            return f"{self._count} of {expected} events, done: {done}"
        return None

    def fail(self, reason: str, *, keep: bool = False) -> None:
        """Reconnect after a failure, after a pause."""
        super().fail(reason)

    def _again(self, seen: Seen) -> None:
        if seen.error is None:
            super()._again(seen)
        else:
            self._loop.call_later(self._load.retry_s, self.ask)


class Crowd:
    """The clients of one plan."""

    timeout = float("inf")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.retry_s = RETRY_ENDLESS_S if plan.endless else RETRY_S
        self.record = Record()
        self.active = 0
        self.clients = [
            Client(self, tuple(plan.targets[index % len(plan.targets)]))
            for index in range(plan.clients - plan.slow_clients)
        ]
        self.lateness = Lateness()
        self.drained = asyncio.Event()
        self.active_seen: list[int] = []
        self._requests = cycle(requests(plan))
        self._connecting: set[asyncio.Task[None]] = set()

    @property
    def issuing(self) -> bool:
        """Whether requests remain to be sent."""
        raise NotImplementedError

    def next_request(self) -> tuple[Seen, bytes] | None:
        """The next request; None at the end."""
        if not self.issuing:
            return None
        self.active += 1
        return Seen(0, 0, time.monotonic()), next(self._requests)

    def arrived(self, seen: Seen, count: int) -> None:
        """Count the events of one read."""
        record = self.record
        record.events += count
        record.reads += 1
        if seen.gaps:
            record.gaps.append(seen.gaps[-1])
        elif seen.first is not None:
            record.first.append(seen.first - seen.sent)

    def ended(self, seen: Seen) -> None:
        """Record the outcome of a request."""
        self.active -= 1
        record, ended = self.record, seen.ended or 0.0
        if seen.error is not None:
            record.failures[seen.error] += 1
            return
        record.requests += 1
        if seen.first is None:  # a unary answer
            record.first.append(ended - seen.sent)
        record.spans.append(Span(seen.sent, seen.first or ended, ended))

    def start_timer(self) -> None:
        """Start to sample the active clients and the loop's lag."""
        IntervalTimer(PULSE_S, lambda: self.active_seen.append(self.active), self.lateness).start()

    @property
    def active_mean(self) -> float:
        """Mean number of clients with a request in flight."""
        return float(np.mean(self.active_seen)) if self.active_seen else 0.0

    def connect(self, stream: Stream) -> None:
        """Open a client's connection."""
        assert isinstance(stream, Client)
        self.record.connects += 1
        if self.plan.burst:
            PlainTransport(asyncio.get_running_loop(), stream, stream.target)
            return
        task = asyncio.ensure_future(open_connection(stream, *stream.target))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def idle(self, stream: Stream) -> None:
        """Notice the end of the last request in flight."""
        self.check_drained()

    def check_drained(self) -> None:
        """Set `drained` when no request remains or is in flight."""
        if not self.issuing and not self.active:
            self.drained.set()

    async def drain(self) -> None:
        """Wait up to `drain_s` for requests in flight, then close all connections."""
        if not self.plan.endless:
            try:
                async with asyncio.timeout(self.plan.drain_s):
                    await self.drained.wait()
            except TimeoutError:
                for client in self.clients:
                    client.fail("stalled: no end of the answer")
        for client in self.clients:
            client.stop()
