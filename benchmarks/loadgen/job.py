"""A finite job: a number of requests from clients that start at once and never pause.

Measured from the first request that was sent to the last answer that ended, as AIPerf does. The
parent process starts it and reads the start time, to move the engines' clock.

A few clients warm the router up first, as load tests do: at the start of the job it has measured
every engine with almost no load.
"""

import asyncio
import time
from dataclasses import replace
from typing import Any

from benchmarks.distributions import percentile
from benchmarks.loadgen import spans
from benchmarks.loadgen.crowd import Crowd
from benchmarks.loadgen.plan import Plan
from benchmarks.streaming.client import Seen
from benchmarks.system import control

# Answers per client of the warm-up: some seconds, enough for a router to measure speeds.
WARM_UP_ANSWERS = 4


class Job(Crowd):
    """The clients of one plan, until its requests are used up."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._left = plan.requests or 0

    @property
    def issuing(self) -> bool:
        return self._left > 0

    def next_request(self) -> tuple[Seen, bytes] | None:
        taken = super().next_request()
        self._left -= taken is not None
        return taken

    async def run(self, told: asyncio.Event) -> dict[str, Any]:
        """Warm up, wait for the start command, run the job and return its record."""
        await self._warm_up()
        control.say("open")
        await told.wait()
        self.start_timer()
        began = time.monotonic()
        for client in self.clients:
            client.ask()
        control.say("begun", at=began)
        await self.drain()
        took, lateness = time.monotonic() - began, self.lateness.take()
        control.say("close")
        record = self.record
        if self._left:
            record.failures["never asked: the time was over"] += self._left
            self._left = 0
        seen = spans.figures(record.spans, began, self.plan.frozen)
        return seen | {
            "periods": spans.periods(record.spans, began),
            "took_s": took,
            "requests": record.requests,
            "events": record.events,
            "reads": record.reads,
            "connects": record.connects,
            "gap_p99_s": percentile(record.gaps, 99),
            "active_mean": self.active_mean,
            "failures": dict(record.failures),
            "lateness": lateness,
        }

    async def _warm_up(self) -> None:
        clients = min(self.plan.warm_up_clients, self.plan.clients)
        if not clients:
            return
        requests = clients * WARM_UP_ANSWERS
        plan = replace(
            self.plan, clients=clients, warm_up_clients=0, requests=requests, is_warm_up=True
        )
        first = Job(plan)
        for client in first.clients:
            client.ask()
        await first.drain()
        for reason, count in first.record.failures.items():
            self.record.failures[f"warm-up: {reason}"] += count
