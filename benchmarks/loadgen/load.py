"""The load generator: a process with N closed-loop clients and one measured window.

Clients start one after the other over `ramp_s`, so that streams are out of step with each other;
after the ramp the window opens, and only what arrives inside it is counted. The parent
process learns when the window opens and closes, to read CPU times at the same moments.
"""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import uvloop

from benchmarks.distributions import percentile
from benchmarks.loadgen.crowd import Crowd, Record
from benchmarks.loadgen.job import Job
from benchmarks.loadgen.plan import Plan, requests
from benchmarks.loadgen.slow import SlowClient
from benchmarks.system import control

# Longer than any turn, at any step.
SLOW_TOKENS = 1_000_000
LEAVE_S = 1.0


class Window(Crowd):
    """The clients of one plan and the window over them."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._issuing = True
        self._records: list[Record] = []
        self._slow = self._slow_clients()

    def _slow_clients(self) -> list[SlowClient]:
        plan = self.plan
        if not plan.slow_clients:
            return []
        [request] = requests(replace(plan, tokens=SLOW_TOKENS, prompts=1))
        return [
            SlowClient(
                self, tuple(plan.targets[n % len(plan.targets)]), request, plan.slow_bytes_per_s
            )
            for n in range(plan.slow_clients)
        ]

    @property
    def issuing(self) -> bool:
        return self._issuing

    async def run(self) -> dict[str, Any]:
        """Offer the load and return the window's record."""
        self.start_timer()
        await self._ramp()
        self._turn_page()
        control.say("open")
        await asyncio.sleep(self.plan.window_s)
        control.say("close")
        active, lateness = self.active_mean, self.lateness.take()
        seen = self._turn_page()
        if self.plan.endless or self._slow:
            # Closing thousands of connections is not measured, nor may it disturb the last sample.
            await asyncio.sleep(LEAVE_S)
        self._issuing = False
        for slow in self._slow:
            slow.hang_up()
        self.check_drained()
        await self.drain()
        self._records.append(self.record)
        return self._figures(seen, active, lateness)

    async def _ramp(self) -> None:
        plan, loop = self.plan, asyncio.get_running_loop()
        for index, client in enumerate(self.clients):
            loop.call_later(plan.ramp_s * index / len(self.clients), client.ask)
        for index, slow in enumerate(self._slow):
            loop.call_later(plan.ramp_s * index / len(self._slow), slow.start, loop)
        # One ramp more, for the last clients' first answers and the router's pools.
        await asyncio.sleep(2 * plan.ramp_s)

    def _turn_page(self) -> Record:
        """Start a new record and return the previous one."""
        ended = self.record
        self._records.append(ended)
        self.record = Record()
        self.active_seen = []
        self.lateness.take()
        return ended

    def _figures(self, seen: Record, active: float, late: dict[str, Any]) -> dict[str, Any]:
        failures: Counter[str] = sum((each.failures for each in self._records), Counter())
        first, gaps = np.asarray(seen.first), np.asarray(seen.gaps)
        return {
            "requests": seen.requests,
            "events": seen.events,
            "reads": seen.reads,
            "connects": sum(each.connects for each in self._records),
            "first_p50_s": percentile(first, 50),
            "first_p99_s": percentile(first, 99),
            "gap_p99_s": percentile(gaps, 99),
            "active_mean": active,
            "failures": dict(failures),
            "lateness": late,
        }


def run(plan: Plan) -> None:
    """Offer the load, print the figures and exit; exit early at the end of standard input."""
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    told = asyncio.Event()

    async def work() -> None:
        figures = await (Job(plan).run(told) if plan.requests else Window(plan).run())
        control.say("report", **figures)
        loop.stop()

    control.listen(loop, lambda _: told.set())
    task = loop.create_task(work())
    loop.run_forever()
    if task.done():
        task.result()
