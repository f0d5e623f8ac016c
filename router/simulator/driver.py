"""Steps a machine in real time and passes its outputs to the waiting requests.

There is one task per engine, whatever the number of requests: a step ends, each sequence of the
batch gets its token, and the next step begins. It is the only clock of an engine.
"""

import asyncio
from collections.abc import Callable, Iterable

from router.simulator.faults import FaultPlan
from router.simulator.model.machine import Machine
from router.simulator.model.sequence import Output, Sequence, Stage

_MAX_CATCH_UP_S = 0.25
"""Delays in seconds that are made up for, so that timer granularity does not accumulate. After a
longer pause (a busy machine, a stall) the engine does not speed up."""


class Gone(Exception):
    """The client has closed the connection."""


class Inbox:
    """Outputs for one request that have not been processed."""

    __slots__ = ("_gone", "_outputs", "_waiter")

    def __init__(self) -> None:
        self._outputs: list[Output] = []
        self._waiter: asyncio.Future[None] | None = None
        self._gone = False

    def put(self, output: Output) -> None:
        self._outputs.append(output)
        self._ring()

    def leave(self) -> None:
        """Note that the client has left: waiting calls raise Gone."""
        self._gone = True
        self._ring()

    def _ring(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[Output]:
        """Wait for outputs and return all that have arrived, at least one. Raises Gone."""
        while not self._outputs and not self._gone:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._gone:
            raise Gone
        outputs, self._outputs = self._outputs, []
        return outputs


class Driver:
    """Runs a machine in real time."""

    def __init__(
        self, machine: Machine, faults: FaultPlan, load: Callable[[Sequence], None]
    ) -> None:
        self._machine = machine
        self._faults = faults
        self._load = load
        self._inboxes: dict[Sequence, Inbox] = {}
        self._bell = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.asleep = False
        self.on_step: Callable[[], None] = lambda: None
        """Called when a step has been composed."""

    def now(self) -> float:
        return self._loop.time()

    def submit(self, sequences: list[Sequence], inbox: Inbox) -> None:
        """Queue the sequences of a request. Raises the same errors as Machine.submit."""
        self._machine.submit(sequences, self.now())
        for sequence in sequences:
            self._inboxes[sequence] = inbox
        self.wake()

    def forget(self, sequences: Iterable[Sequence]) -> None:
        """Abort the sequences of a request that are still running."""
        for sequence in sequences:
            self._inboxes.pop(sequence, None)
            if sequence.stage is not Stage.ENDED:
                self._machine.abort(sequence)
        self.wake()

    def deliver(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            inbox = self._inboxes.get(output.sequence)
            if inbox is not None:
                inbox.put(output)

    def wake(self) -> None:
        """Wake an idle machine, because something has changed."""
        self._bell.set()

    async def run(self) -> None:
        """Step until cancelled."""
        at = self.now()
        while True:
            ends = self._begin(at)
            if ends is None:
                await self._rest()
                at = self.now()
                continue
            await asyncio.sleep(max(0.0, ends - self.now()))
            now = self.now()
            self.deliver(self._machine.finish(now))
            at = ends if now - ends < _MAX_CATCH_UP_S else now

    def _begin(self, at: float) -> float | None:
        if self._faults.now.stall or self.asleep:
            return None
        self._machine.batch.factor = self._faults.now.slow
        ends = self._machine.begin(at)
        self.on_step()
        loads, self._machine.loads = self._machine.loads, []
        for sequence in loads:
            self._load(sequence)
        return ends

    async def _rest(self) -> None:
        """Wait until something arrives, or until a lease ends whose blocks a sequence waits for."""
        self._bell.clear()
        expires = self._machine.kv.references.expires_next
        if not self._machine.waiting or expires == float("inf"):
            await self._bell.wait()
            return
        try:
            async with asyncio.timeout_at(expires):
                await self._bell.wait()
        except TimeoutError:
            pass
