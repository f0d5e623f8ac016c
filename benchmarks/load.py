"""The load generator: a process with N closed-loop clients and one measured window.

Clients start one after the other over `ramp_s`, so that streams are out of step with each other;
after the ramp the window opens, and only what arrives inside it is counted. The process that
started it is told when the window opens and closes, to read CPU times at the same moments.
It refuses to know which router it speaks to, or whether it speaks to one at all.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import orjson
import uvloop

from benchmarks import control, frames
from benchmarks.client import Client, Record
from benchmarks.pulse import Lateness, Pulse

PULSE_S = 0.005
# Long enough not to be a hot loop, short enough that a lost connection returns in the same window.
RECONNECT_S = 0.05
FILLER = "The quick brown fox jumps over the lazy dog and runs on along the river. "


@dataclass(frozen=True)
class Plan:
    """What to offer. Seconds; `targets` are host and port, clients take turns."""

    targets: Sequence[Sequence[Any]]
    clients: int
    tokens: int
    stream: bool
    prompt_bytes: int
    ramp_s: float
    window_s: float
    drain_s: float
    path: str = "/v1/chat/completions"
    headers: dict[str, str] = field(default_factory=dict)

    def encode(self) -> str:
        """As one command line argument."""
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def decode(cls, text: str) -> "Plan":
        """The inverse of `encode`."""
        return cls(**orjson.loads(text))


def request(plan: Plan) -> bytes:
    """The bytes of one request."""
    content = (FILLER * (plan.prompt_bytes // len(FILLER) + 1))[: plan.prompt_bytes]
    body: dict[str, Any] = {
        "model": frames.MODEL,
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": content},
        ],
        "max_tokens": plan.tokens,
        "temperature": 0.7,
        "stream": plan.stream,
    }
    if plan.stream:
        body["stream_options"] = {"include_usage": True}
    payload = orjson.dumps(body)
    head = {
        "host": "bench.local",
        "content-type": "application/json",
        "accept": "*/*",
        "user-agent": "pd-router-bench",
        "content-length": str(len(payload)),
    } | plan.headers
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return f"POST {plan.path} HTTP/1.1\r\n{lines}\r\n".encode() + payload


class Generator:
    """The clients of one plan and the window over them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.request = request(plan)
        self.events_expected = frames.stream_events(plan.tokens, True) if plan.stream else None
        self.record = Record()
        self.issuing = True
        self.active = 0
        self._active_seen: list[int] = []
        self._lateness = Lateness()
        self._records: list[Record] = []
        self._clients: list[Client] = []
        self._connecting: set[asyncio.Task[None]] = set()
        self._drained = asyncio.Event()

    async def run(self) -> dict[str, Any]:
        """Offer the load and return what the window saw."""
        loop = asyncio.get_running_loop()
        Pulse(PULSE_S, lambda: self._active_seen.append(self.active), self._lateness).start(loop)
        await self._ramp(loop)
        self._turn_page()
        control.say("open")
        await asyncio.sleep(self.plan.window_s)
        control.say("close")
        active, lateness = self._active_seen, self._lateness.take()
        seen = self._turn_page()
        await self._drain()
        return self._figures(seen, active, lateness)

    async def _ramp(self, loop: asyncio.AbstractEventLoop) -> None:
        plan = self.plan
        for index in range(plan.clients):
            client = Client(self, tuple(plan.targets[index % len(plan.targets)]))
            self._clients.append(client)
            loop.call_later(plan.ramp_s * index / plan.clients, self._connect, client)
        # One ramp more, for the last clients' first answers and the router's pools.
        await asyncio.sleep(2 * plan.ramp_s)

    def _turn_page(self) -> Record:
        """Start a new record; return the one that ends."""
        ended = self.record
        self._records.append(ended)
        self.record = Record()
        self._active_seen = []
        self._lateness.take()
        return ended

    async def _drain(self) -> None:
        self.issuing = False
        for client in self._clients:
            self.idle(client)
        try:
            async with asyncio.timeout(self.plan.drain_s):
                await self._drained.wait()
        except TimeoutError:
            for client in self._clients:
                client.fail("stalled: no end of the answer")
        for client in self._clients:
            client.close()
        self._records.append(self.record)

    def _connect(self, client: Client) -> None:
        task = asyncio.ensure_future(self._open(client))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _open(self, client: Client) -> None:
        host, port = client.target
        try:
            await asyncio.get_running_loop().create_connection(lambda: client, host, port)
        except OSError as error:
            self.record.failures[f"cannot connect: {error.strerror}"] += 1
            if self.issuing:
                self.reconnect(client)

    def reconnect(self, client: Client) -> None:
        """Open the connection again, a little later."""
        asyncio.get_running_loop().call_later(RECONNECT_S, self._connect, client)

    def idle(self, client: Client) -> None:
        """Notice the end of the last request in flight."""
        if not self.issuing and not any(each.in_flight for each in self._clients):
            self._drained.set()

    def _figures(self, seen: Record, active: list[int], late: dict[str, Any]) -> dict[str, Any]:
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
            "active_mean": float(np.mean(active)) if active else 0.0,
            "failures": dict(failures),
            "lateness": late,
        }


def percentile(values: "np.ndarray[Any, np.dtype[np.float64]]", q: float) -> float | None:
    """None where there is nothing to say."""
    return float(np.percentile(values, q)) if len(values) else None


def run(plan: Plan) -> None:
    """Offer the load, say the figures and end; end early when standard input does."""
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)

    async def work() -> None:
        figures = await Generator(plan).run()
        control.say("report", **figures)
        loop.stop()

    control.listen(loop, lambda _: None)
    task = loop.create_task(work())
    loop.run_forever()
    if task.done():
        task.result()
