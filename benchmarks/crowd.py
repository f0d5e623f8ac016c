"""The clients of a load and their connections: what a timed window and a finite job share."""

import asyncio
import time
from itertools import cycle

import numpy as np

from benchmarks.client import Client, Record
from benchmarks.plain import PlainTransport
from benchmarks.plan import Plan, requests
from benchmarks.pulse import Lateness, Pulse

PULSE_S = 0.005
# Long enough not to be a hot loop, short enough that a lost connection returns in the same window.
RECONNECT_S = 0.05


class Crowd:
    """The clients of one plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.events_expected = plan.events_expected
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
        """Whether there is more to ask."""
        raise NotImplementedError

    def next_request(self) -> bytes | None:
        """The bytes to send now; None when there is no more to ask."""
        return next(self._requests) if self.issuing else None

    def start_pulse(self) -> None:
        """Begin to watch the clients and the loop."""
        loop = asyncio.get_running_loop()
        Pulse(PULSE_S, lambda: self.active_seen.append(self.active), self.lateness).start(loop)

    @property
    def active_mean(self) -> float:
        """Clients with a request in flight, over what was watched."""
        return float(np.mean(self.active_seen)) if self.active_seen else 0.0

    def connect(self, client: Client) -> None:
        """Open a client's connection."""
        if self.plan.burst:
            client.began = time.perf_counter()
            PlainTransport(asyncio.get_running_loop(), client, client.target)
            return
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
        # A router that refuses streams is not to be busy with refusing while others are idle.
        delay_s = 1.0 if self.plan.endless else RECONNECT_S
        asyncio.get_running_loop().call_later(delay_s, self.connect, client)

    def idle(self, client: Client) -> None:
        """Notice the end of the last request in flight."""
        if not self.issuing and not self.active:
            self.drained.set()

    async def drain(self) -> None:
        """Wait for what is in flight, at most `drain_s`; then close all connections."""
        if self.plan.endless:
            self._cut_off()
            return
        try:
            async with asyncio.timeout(self.plan.drain_s):
                await self.drained.wait()
        except TimeoutError:
            for client in self.clients:
                client.fail("stalled: no end of the answer")
        for client in self.clients:
            client.close()

    def _cut_off(self) -> None:
        for client in self.clients:
            client.leave()
            client.close()
